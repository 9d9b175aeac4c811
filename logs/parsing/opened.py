"""Files as bytes and as lines, with gz, xz and zst undone on the way: told by content, not by name.

What is read is bounded: an archive that swells without measure and a line without end are refused or passed
over before they fill the memory.
"""

import gzip
import io
import lzma
import os
import shutil
import tempfile
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar, cast

import numpy as np
import pyarrow as pa

from experiments.configuration import InputError

SUFFIXES = {"gzip": ".gz", "xz": ".xz", "zstd": ".zst"}
MAGIC = {"gzip": b"\x1f\x8b", "xz": b"\xfd7zXZ\0", "zstd": b"\x28\xb5\x2f\xfd"}

BOMB_BYTES = 64 * 2**20
BOMB_RATIO = 300
"""Past `BOMB_BYTES`, an archive may not hold more than this many times what was read of it: logs of one
repeated line reach about 150, a bomb in gzip 1,000."""

T = TypeVar("T")
R = TypeVar("R")

WORKERS = min(4, os.cpu_count() or 1)
BLOCK_BYTES = 2**20
"""Small enough that the memory of one block serves for the next: larger ones are paged in afresh each time."""
LONGEST_LINE = 16 * 2**20


def compression_of(path: Path) -> str | None:
    """How the file is compressed by its first bytes: `gzip`, `xz`, `zstd` or None.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as stream:
        head = stream.read(8)
    return next((name for name, magic in MAGIC.items() if head.startswith(magic)), None)


def name_of(path: Path) -> str:
    """The file's name without the suffix of its compression and without its own: `log.csv.gz` -> `log`."""
    kind = compression_of(path)
    plain = path.with_suffix("") if kind and path.suffix.lower() == SUFFIXES[kind] else path
    return plain.stem


def open_bytes(path: Path) -> BinaryIO:
    """The content of `path` from its beginning, decompressed if it is gz, xz or zst.

    A compressed file can only be read forwards: do not seek. Reading on raises InputError where the archive
    is cut off, damaged, or holds more than `BOMB_RATIO` times its size.

    Raises:
        InputError: no such file, or it cannot be read.
    """
    try:
        kind = compression_of(path)
        raw = path.open("rb", buffering=0)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    if kind is None:
        return io.BufferedReader(raw, buffer_size=2**18)
    return cast(BinaryIO, io.BufferedReader(_Decompressed(path, raw, kind), buffer_size=2**18))


@contextmanager
def open_seekable(path: Path) -> Iterator[BinaryIO]:
    """As `open_bytes`, for formats that are read from their end: an archive is unpacked to a temporary file."""
    with open_bytes(path) as stream:
        if compression_of(path) is None:
            yield stream
            return
        with tempfile.TemporaryFile() as unpacked:
            shutil.copyfileobj(stream, unpacked)
            unpacked.seek(0)
            yield cast(BinaryIO, unpacked)


class _Decompressed(io.RawIOBase):
    """The bytes in an archive, with every fault of it told as one InputError."""

    def __init__(self, path: Path, raw: io.FileIO, kind: str) -> None:
        self.path, self.raw, self.kind = path, raw, kind
        self.given = 0
        self.inner: io.IOBase | pa.NativeFile
        if kind == "gzip":
            self.inner = gzip.GzipFile(fileobj=raw)
        elif kind == "xz":
            self.inner = lzma.LZMAFile(raw)  # noqa: SIM115 (closed with this stream)
        else:
            self.inner = pa.CompressedInputStream(raw, "zstd")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        """As of any raw stream; see `open_bytes` for what it raises."""
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        try:
            data = self.inner.read(len(view))
        except EOFError:
            raise InputError(f"{self.path}: the {self.kind} archive is cut off; fetch it again") from None
        except (OSError, lzma.LZMAError, zlib.error) as error:
            cut = "truncated" in str(error).lower()
            fault = "is cut off" if cut else f"is damaged ({error})"
            raise InputError(f"{self.path}: the {self.kind} archive {fault}; fetch it again") from None
        self.given += len(data)
        if self.given > BOMB_BYTES and self.given > BOMB_RATIO * self.raw.tell():
            raise InputError(
                f"{self.path}: the {self.kind} archive holds more than {BOMB_RATIO} times its size, as no log "
                "does; if it is one, decompress it first"
            )
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self.inner.close()
            self.raw.close()
        super().close()


@dataclass(frozen=True)
class Lines:
    """Whole lines of a file.

    Attributes:
        first: number of the first, counted from 1 by line feeds.
        count: how many they are; the last one may lack its line feed only where the file ends.
    """

    first: int
    count: int
    data: bytearray


def line_blocks(stream: BinaryIO, too_long: list[int]) -> Iterator[Lines]:
    """The content of `stream` in blocks of whole lines, each of about `BLOCK_BYTES`.

    Args:
        stream: as `open_bytes` gives it.
        too_long: takes the numbers of lines of more than `LONGEST_LINE` bytes, which are left out.
    """
    number, rest = 1, b""
    skipping = False
    while True:
        data = bytearray(len(rest) + BLOCK_BYTES)
        data[: len(rest)] = rest
        got = stream.readinto(memoryview(data)[len(rest) :])  # type: ignore[attr-defined]
        if not got:
            break
        del data[len(rest) + got :]
        if skipping:
            end = data.find(b"\n") + 1
            if not end:
                continue
            del data[:end]
            number, skipping = number + 1, False
        cut = data.rfind(b"\n") + 1
        rest = bytes(data[cut:])
        if len(rest) > LONGEST_LINE:
            too_long.append(number + data.count(b"\n"))
            rest, skipping = b"", True
        if cut:
            del data[cut:]
            count = int(np.count_nonzero(np.frombuffer(data, np.uint8) == ord("\n")))
            yield Lines(number, count, data)
            number += count
    if rest:
        yield Lines(number, 1, bytearray(rest))


def in_order(function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """`function` of each item, in order, by `WORKERS` threads that run ahead by one item each."""
    with ThreadPoolExecutor(WORKERS) as pool:
        waiting: deque[Future[R]] = deque()
        for item in items:
            waiting.append(pool.submit(copy_context().run, function, item))
            if len(waiting) > WORKERS:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
