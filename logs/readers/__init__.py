"""Readers of log formats, one module each, found by what is in a file and not by its name.

A reader is any module in this folder with

    NAME, VERSION: str
    matches(sample: Sample) -> bool      is this file mine?
    read(path: Path) -> list[Run]        the rows as written, names mapped, no splicing

and, where they differ from the default,

    FALLBACK = True     asked only when no other reader claims the file
    FOLDER = True       the run is the folder in which the file lies
    PARTS = True        several such files of one folder are one run, in the order of their names
    PUBLIC = True       its runs are public ones, named as in the catalogue

A run is named after the place of its file; where a file holds several, each has a `name` of its own besides.
Readers take bytes from `logs.parsing.opened`, which sees through gz, xz and zst.
"""

import importlib
import pkgutil
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from types import ModuleType

from experiments.configuration import InputError
from logs.parsing.opened import compression_of, open_bytes

HEAD_BYTES = 65536
LONGEST_FIRST_LINE = 2**22
"""Bytes; a header of 20,000 long names has two million."""

LFS_POINTER = b"version https://git-lfs.github.com/spec/"
WIDE_TEXT = (b"\xff\xfe", b"\xfe\xff", b"\0\0\xfe\xff")
ARCHIVES = (
    ("a zip archive", 0, b"PK\x03\x04", "unzip"),
    ("a zip archive", 0, b"PK\x05\x06", "unzip"),
    ("a tar archive", 257, b"ustar", "tar xf"),
    ("a bzip2 archive", 4, b"1AY&SY", "bunzip2"),
    ("a 7z archive", 0, b"7z\xbc\xaf\x27\x1c", "7z x"),
    ("a rar archive", 0, b"Rar!\x1a\x07", "unrar x"),
    ("a gzip archive", 0, b"\x1f\x8b", "gunzip"),
    ("an xz archive", 0, b"\xfd7zXZ\0", "unxz"),
    ("a zstd archive", 0, b"\x28\xb5\x2f\xfd", "unzstd"),
)
"""What a file may be packed with, once its own gz, xz or zst is undone: where its mark stands, the mark, and the
program that unpacks it."""


class NotALog(InputError):  # noqa: N818 (it is told to the user as any other mistake of input)
    """A file whose format is known but which holds no training log; passed over inside a folder."""


@dataclass(frozen=True)
class Sample:
    """The beginning of a file's content, decompressed, from which its format is told.

    Attributes:
        whole: whether `head` is all there is.
    """

    path: Path
    head: bytes
    whole: bool

    @cached_property
    def text(self) -> str:
        """The head as text without its byte-order mark; bytes that are not UTF-8 show as U+FFFD."""
        return self.head.decode("utf-8-sig", errors="replace")

    @cached_property
    def lines(self) -> list[str]:
        """The whole lines of the head; the last one only if the file ends there."""
        lines = self.text.splitlines()
        return lines if self.whole or self.text.endswith("\n") else lines[:-1]

    @property
    def binary(self) -> bool:
        """Whether the file holds bytes that no text has."""
        return b"\0" in self.head


def take_sample(path: Path) -> Sample:
    """The first bytes of `path`, decompressed.

    Raises:
        InputError: no such file, it cannot be read, or is an archive whose beginning is damaged.
        NotALog: no regular file (reading a pipe would wait for ever), an empty one, a Git-LFS pointer,
            text in a wide encoding, or an archive that must be unpacked first.
    """
    try:
        if path.exists() and not path.is_file():
            raise NotALog(f"{path}: is not a regular file; save the log to a file first")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    with open_bytes(path) as stream:
        head = stream.read(HEAD_BYTES)
        while head.count(b"\n") < 2 and b"\0" not in head and HEAD_BYTES <= len(head) < LONGEST_FIRST_LINE:
            more = stream.read(len(head))
            if not more:
                break
            head += more
        sample = Sample(path, head, not stream.read(1))
    if not sample.head.strip():
        raise NotALog(f"{path}: is empty ({path.stat().st_size} bytes); fetch or write it again")
    if sample.head.startswith(LFS_POINTER):
        raise NotALog(
            f"{path}: is a Git-LFS pointer, not the file itself; run `git lfs pull` where it came from"
        )
    if sample.head.startswith(WIDE_TEXT):
        raise NotALog(f"{path}: is UTF-16 or UTF-32 text; save it as UTF-8")
    for kind, at, mark, program in ARCHIVES:
        if sample.head.startswith(mark, at):
            within = f" within {compression_of(path)}" if compression_of(path) else ""
            raise NotALog(
                f"{path}: is {kind}{within}; unpack it with `{program}` and ingest the file or folder"
            )
    return sample


@lru_cache(maxsize=1)
def readers() -> tuple[ModuleType, ...]:
    """All readers, those that recognise one format before the general ones."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    modules = [importlib.import_module(f"{__name__}.{name}") for name in names if name != "opened"]
    return tuple(sorted(modules, key=lambda module: getattr(module, "FALLBACK", False)))


def find_reader(sample: Sample) -> ModuleType:
    """The reader that recognises the file.

    Raises:
        NotALog: none does; the message lists the formats that are known.
    """
    for reader in readers():
        if reader.matches(sample):
            return reader
    known = ", ".join(sorted(reader.NAME for reader in readers()))
    kind = "a binary file" if sample.binary else "text, but"
    if not sample.binary and not sample.whole and not sample.lines:
        kind = (
            f"text whose first line has more than {LONGEST_FIRST_LINE:,} bytes, as no header or log line has,"
        )
    raise NotALog(f"{sample.path}: {kind} in no format known here; known: {known}")
