"""TensorBoard event files, written: TFRecords of `Event` messages.

A record is its length, the checksum of that, the message, and the checksum of that; see tensorflow
core/lib/io/record_writer.h and core/util/event.proto. Scalars are 32-bit floats, as TensorBoard keeps them.
"""

import struct
from collections.abc import Iterable, Mapping
from typing import IO

FILE_VERSION = b"brain.Event:2"
CASTAGNOLI = 0x82F63B78
"""Polynomial of CRC-32C, bits reversed (RFC 3720, appendix B.4)."""


def _checksum_table() -> tuple[int, ...]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ CASTAGNOLI * (value & 1)
        table.append(value)
    return tuple(table)


TABLE = _checksum_table()


def masked_checksum(data: bytes) -> int:
    """CRC-32C of `data`, rotated and shifted as TFRecords want it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def write_events(
    rows: Iterable[tuple[int, float, Mapping[str, float]]], stream: IO[bytes], began: float = 0.0
) -> None:
    """Write one event per row.

    Args:
        rows: step, seconds since the epoch, and the values by tag.
        began: wall time of the event that opens the file.
    """
    _write_record(struct.pack("<Bd", 0x09, began) + _bytes(3, FILE_VERSION), stream)
    for step, wall_time, values in rows:
        summary = b"".join(
            _bytes(1, _bytes(1, tag.encode()) + struct.pack("<Bf", 0x15, value))
            for tag, value in values.items()
        )
        event = struct.pack("<Bd", 0x09, wall_time) + b"\x10" + _varint(step) + _bytes(5, summary)
        _write_record(event, stream)


def _write_record(message: bytes, stream: IO[bytes]) -> None:
    length = struct.pack("<Q", len(message))
    stream.write(length + struct.pack("<I", masked_checksum(length)))
    stream.write(message + struct.pack("<I", masked_checksum(message)))


def _bytes(number: int, data: bytes) -> bytes:
    """A field of bytes, text or a message, in the wire format of protocol buffers."""
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
