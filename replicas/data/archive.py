"""Reading files out of wheels and tarballs without ever writing them: bounded, no links, no odd paths."""

import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from experiments.configuration import InputError

MEMBER_LIMIT = 256 * 10**6
"""Most bytes of one file in an archive once unpacked."""

ARCHIVE_LIMIT = 2 * 10**9
"""Most bytes of all files taken from one archive once unpacked."""


def read_members(archive: Path, takes: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Path and content of every regular file in a `.whl` or `.tgz` that `takes` accepts, in archive order.

    Raises:
        InputError: not such an archive, damaged, or a taken entry is a link, has a path that leaves the
            archive, or unpacks to more than `MEMBER_LIMIT` (or all of them to more than `ARCHIVE_LIMIT`).
    """
    entries = _zip_entries if archive.suffix == ".whl" else _tar_entries
    left = ARCHIVE_LIMIT
    try:
        for name, is_link, stream in entries(archive, takes):
            if is_link or not _inside(name):
                raise InputError(
                    f"{archive.name}: refused {name!r}: a link, or a path that leaves the archive"
                )
            # the size an archive states can lie, so what is really unpacked is what counts
            data = stream.read(min(MEMBER_LIMIT, left) + 1)
            if len(data) > min(MEMBER_LIMIT, left):
                raise InputError(
                    f"{archive.name}: {name} unpacks to too much (limit {MEMBER_LIMIT} bytes a file)"
                )
            left -= len(data)
            yield name, data
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, OSError, ValueError) as error:
        raise InputError(f"{archive}: damaged archive ({error}); delete it and run again") from None


def _zip_entries(archive: Path, takes: Callable[[str], bool]) -> Iterator[tuple[str, bool, IO[bytes]]]:
    with zipfile.ZipFile(archive) as bundle:
        for entry in bundle.infolist():
            if not entry.is_dir() and takes(entry.filename):
                with bundle.open(entry) as stream:
                    yield entry.filename, stat.S_ISLNK(entry.external_attr >> 16), stream


def _tar_entries(archive: Path, takes: Callable[[str], bool]) -> Iterator[tuple[str, bool, IO[bytes]]]:
    with tarfile.open(archive, "r:gz") as bundle:
        for entry in bundle:
            if entry.isdir() or not takes(entry.name):
                continue
            stream = bundle.extractfile(entry) if entry.isfile() else None
            if stream is None:
                raise InputError(f"{archive.name}: refused {entry.name!r}: a link or a special file")
            with stream:
                yield entry.name, False, stream


def _inside(name: str) -> bool:
    path = PurePosixPath(name)
    return not (path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name)
