"""Folders replaced whole: written beside, then exchanged in one step; what a killed process left is cleared away.

A folder in the making is `.<name>.<random>.part`. Its process holds a lock on it, which the kernel lets go of
however the process ends: a `.part` that nobody holds is a leftover.
"""

import errno
import fcntl
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PART, OLD = ".part", ".old"


@contextmanager
def folder_replaced_whole(folder: Path) -> Iterator[Path]:
    """A new folder to fill, which takes the place of `folder` at the end and vanishes on any error.

    Raises:
        OSError: it cannot be written there.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder_beside(folder.parent, folder.name) as beside:
        yield beside
        with exclusive(folder.parent):
            put_in_place(beside, folder)


@contextmanager
def folder_beside(home: Path, name: str) -> Iterator[Path]:
    """A new hidden folder in `home`, in which one called `name` is made; it is gone at the end.

    What killed processes left of earlier ones of that name is cleared away first.
    """
    with exclusive(home):
        clear_leftovers(home, name)
        beside = Path(tempfile.mkdtemp(dir=home, prefix=f".{name}.", suffix=PART))
        held = _lock(beside)
    try:
        yield beside
    finally:
        shutil.rmtree(beside, ignore_errors=True)
        if held is not None:
            os.close(held)


def put_in_place(beside: Path, folder: Path) -> None:
    """Let the folder `beside` take the place of `folder`: whoever looks finds the old one or the new one.

    Where the file system cannot exchange folders, for a moment neither is there, and `restore` puts the old one
    back if the process is killed just then. The caller holds `exclusive` for the home of `beside`.

    Raises:
        OSError: it cannot be written there; nothing has changed.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    restore(folder)
    beside.chmod(0o755)
    if not os.path.lexists(folder):
        os.rename(beside, folder)
    elif not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "a file is in the way", str(folder))
    elif folder.is_symlink() or not _exchange(beside, folder):
        old = folder.with_name(f".{folder.name}{OLD}")
        os.rename(folder, old)
        try:
            os.rename(beside, folder)
        except BaseException:
            os.rename(old, folder)
            raise
        _remove(old)


def restore(folder: Path) -> None:
    """Put back the old `folder` where a process was killed between moving it away and putting the new one there.

    The caller holds `exclusive` for the folder's home.
    """
    old = folder.with_name(f".{folder.name}{OLD}")
    if os.path.lexists(old):
        if os.path.lexists(folder):
            _remove(old)
        else:
            os.rename(old, folder)


def clear_leftovers(home: Path, name: str | None = None) -> None:
    """Remove the unfinished folders that killed processes left in `home`: those for `name`, or all of them.

    What a living process is at work on stays. The caller holds `exclusive(home)`.
    """
    for path in home.glob(f".*{PART}"):
        ours = path.name[1:].removesuffix(PART).rpartition(".")[0]
        if name in (None, ours) and path.is_dir() and (free := _lock(path)) is not None:
            shutil.rmtree(path, ignore_errors=True)
            os.close(free)


@contextmanager
def exclusive(home: Path) -> Iterator[None]:
    """Be the only one who puts folders in place below `home`; waits until that is so."""
    held = _lock(home, wait=True)
    try:
        yield
    finally:
        if held is not None:
            os.close(held)


def _lock(folder: Path, wait: bool = False) -> int | None:
    """An open file that holds the lock of `folder`; None if another one does, or no lock is to be had there."""
    held = None
    try:
        held = os.open(folder, os.O_RDONLY)
        fcntl.flock(held, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        if held is not None:
            os.close(held)
        return None
    return held


def _exchange(one: Path, other: Path) -> bool:
    """Let two folders take each other's place in one step; False where system or file system cannot do that."""
    if sys.platform != "linux":
        return False
    import ctypes

    at_working_folder, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE of <linux/fs.h>
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    if rename(at_working_folder, os.fsencode(one), at_working_folder, os.fsencode(other), exchange) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code), str(other))


def _remove(path: Path) -> None:
    if path.is_symlink():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)
