"""TFRecords, the frames of TensorBoard's event files, read by blocks and written one by one.

A record is `length: uint64, crc32c(length), data, crc32c(data)`, little-endian, the checksums masked; see
tensorflow/core/lib/io/record_writer.h.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np

from logs.parsing.opened import open_bytes

HEADER, FOOTER = 12, 4
"""Bytes around the data of a record."""

LARGEST_RECORD = 2**28
READ_BYTES = 2**24
CASTAGNOLI = 0x82F63B78  # polynomial of CRC-32C, bits reversed (RFC 3720, appendix B.4)


def _crc_table() -> np.ndarray:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(CASTAGNOLI), table >> 1)
    return table


_TABLE = _crc_table()
_WORDS = tuple(int(word) for word in _TABLE)


def record_blocks(path: Path) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, bool]]:
    """Blocks of whole records: the bytes, where in them each record starts, how long its data is, and whether
    the file breaks off after them."""
    rest = b""
    with open_bytes(path) as stream:
        while True:
            data = stream.read(max(READ_BYTES, _needed(rest)))
            block = rest + data
            starts, lengths, end = _framed(block)
            array = np.frombuffer(block, np.uint8)
            heads = gather(array, starts, HEADER)
            sound = checksums_fit(heads[:, :8], heads[:, 8:])
            if not sound.all():
                whole = int(np.argmin(sound))
                yield array, starts[:whole], lengths[:whole], True
                return
            rest = block[end:]
            lost = _needed(rest) > LARGEST_RECORD
            at_end = not data
            if len(starts) or at_end or lost:
                yield array, starts, lengths, lost or (at_end and bool(rest))
            if at_end or lost:
                return


def _needed(rest: bytes) -> int:
    return HEADER + FOOTER + struct.unpack_from("<Q", rest)[0] if len(rest) >= HEADER else 0


def _framed(block: bytes) -> tuple[np.ndarray, np.ndarray, int]:
    """Where the whole records in `block` start, the lengths of their data, and where the last one ends."""
    starts: list[int] = []
    lengths: list[int] = []
    at, end = 0, len(block)
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
