"""TFRecords, the frames of TensorBoard's event files, read by blocks and written one by one.

A record is `length: uint64, crc32c(length), data, crc32c(data)`, little-endian, the checksums masked; see
tensorflow/core/lib/io/record_writer.h.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import numpy as np

from logs.parsing.opened import open_bytes

HEADER, FOOTER = 12, 4
"""Bytes around the data of a record."""

LARGEST_RECORD = 2**28
READ_BYTES = 2**24
SEARCH_BYTES = 2**18
CASTAGNOLI = 0x82F63B78  # polynomial of CRC-32C, bits reversed (RFC 3720, appendix B.4)


def _crc_table() -> np.ndarray:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(CASTAGNOLI), table >> 1)
    return table


_TABLE = _crc_table()
_WORDS = tuple(int(word) for word in _TABLE)


@dataclass(frozen=True)
class Records:
    """Whole records of a file: the bytes, where in them each starts, and how long its data is. The checksums of
    the lengths are right, those of the data are not looked at."""

    data: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray


@dataclass
class Damage:
    """Bytes of a file in which no record stands.

    Attributes:
        places: first byte of each stretch and the one behind it, counted from 0.
        torn: the byte at which a last record begins that the file does not hold whole, or None.
    """

    places: list[tuple[int, int]] = field(default_factory=list)
    torn: int | None = None


def record_blocks(path: Path, damage: Damage) -> Iterator[Records]:
    """Blocks of whole records. `damage` takes the bytes that are passed over up to the next record."""
    lost: int | None = None  # where the bytes begin that are being passed over
    block, first = b"", 0  # and the place of its first byte in the file
    with open_bytes(path) as stream:
        while data := stream.read(max(READ_BYTES, _needed(block))):
            block += data
            at = 0
            while True:
                if lost is not None:
                    at, found = _next_record(block, at)
                    if not found:
                        break
                    damage.places.append((lost, first + at))
                    lost = None
                records, end, sound = _whole_records(block, at)
                if len(records.starts):
                    yield records
                at = end
                if sound:
                    break
                lost = first + at
                at += 1
            block, first = block[at:], first + at
    if lost is not None:
        damage.places.append((lost, first + len(block)))
    elif block:
        damage.torn = first


def _whole_records(block: bytes, at: int) -> tuple[Records, int, bool]:
    """The records from byte `at` on, where they end, and whether another may follow there: not if the checksum
    of its length is wrong. A last record goes with it if its own data do not fit their checksum, for then its
    end may lie in records that follow a cut."""
    starts, lengths, end = _framed(block, at)
    array = np.frombuffer(block, np.uint8)
    heads = np.concatenate([starts, [end]]) if end + HEADER <= len(block) else starts
    found = gather(array, heads, HEADER)
    fits = checksums_fit(found[:, :8], found[:, 8:]) & (_lengths(found) <= LARGEST_RECORD)
    if fits.all():
        return Records(array, starts, lengths), end, True
    whole = int(np.argmin(fits))
    end = int(heads[whole])
    if whole and not _data_fit(block, int(starts[whole - 1]), int(lengths[whole - 1])):
        whole -= 1
        end = int(starts[whole])
    return Records(array, starts[:whole], lengths[:whole]), end, False


def _lengths(heads: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(heads[:, :8]).view("<u8")[:, 0]


def _data_fit(block: bytes, start: int, length: int) -> bool:
    behind = start + HEADER + length
    (stored,) = struct.unpack_from("<I", block, behind)
    return masked_checksum(block[start + HEADER : behind]) == stored


def _next_record(block: bytes, at: int) -> tuple[int, bool]:
    """Where from byte `at` on a length stands with its checksum, or from where on none was looked for."""
    array = np.frombuffer(block, np.uint8)
    while at + HEADER <= len(block):
        heads = np.lib.stride_tricks.sliding_window_view(array[at : at + SEARCH_BYTES + HEADER - 1], HEADER)
        fits = np.flatnonzero(checksums_fit(heads[:, :8], heads[:, 8:]))
        for place in (at + fits).tolist():
            if struct.unpack_from("<Q", block, place)[0] <= LARGEST_RECORD:
                return int(place), True
        at += len(heads)
    return at, False


def _needed(rest: bytes) -> int:
    """How many bytes the record takes that `rest` begins with, if it holds a length that can be believed."""
    if len(rest) < HEADER or masked_checksum(rest[:8]) != struct.unpack_from("<I", rest, 8)[0]:
        return 0
    return HEADER + FOOTER + min(struct.unpack_from("<Q", rest)[0], LARGEST_RECORD)


def _framed(block: bytes, at: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Where the whole records from byte `at` on start, the lengths of their data, and where the last one ends."""
    starts: list[int] = []
    lengths: list[int] = []
    end = len(block)
    unpack = struct.Struct("<Q").unpack_from
    while at + HEADER <= end:
        (length,) = unpack(block, at)
        after = at + HEADER + length + FOOTER
        if after > end:
            break
        starts.append(at)
        lengths.append(length)
        at = after
    return np.array(starts, np.int64), np.array(lengths, np.int64), at


def gather(data: np.ndarray, starts: np.ndarray, length: int) -> np.ndarray:
    """`[records, length]` bytes of `data`."""
    if not len(starts):
        return np.zeros((0, length), np.uint8)
    return np.lib.stride_tricks.sliding_window_view(data, length)[starts]


def checksums_fit(data: np.ndarray, stored: np.ndarray) -> np.ndarray:
    """Whether the masked CRC-32C of each row of `data`, `[records, length]` bytes, is the four bytes in `stored`."""
    crc = np.full(len(data), 0xFFFFFFFF, np.uint32)
    for column in np.ascontiguousarray(data.T):
        crc = _TABLE[(crc ^ column) & 0xFF] ^ (crc >> 8)
    crc = ~crc
    masked = ((crc >> 15) | (crc << 17)) + np.uint32(0xA282EAD8)
    return masked == np.ascontiguousarray(stored).view("<u4")[:, 0]


def masked_checksum(data: bytes) -> int:
    """The same of one record's bytes, which numpy would take longer for."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _WORDS[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def write_record(data: bytes, stream: IO[bytes]) -> None:
    """Append one record."""
    length = struct.pack("<Q", len(data))
    stream.write(length + struct.pack("<I", masked_checksum(length)))
    stream.write(data + struct.pack("<I", masked_checksum(data)))
