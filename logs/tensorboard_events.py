"""TensorBoard event files, written: TFRecords of `Event` messages (tensorflow/core/util/event.proto).

Scalars are 32-bit floats, as TensorBoard keeps them. `logs.readers.tensorboard` reads such files.
"""

import struct
from collections.abc import Iterable, Mapping
from typing import IO

from logs.parsing.tfrecords import write_record

FILE_VERSION = b"brain.Event:2"


def write_events(
    rows: Iterable[tuple[int, float, Mapping[str, float]]], stream: IO[bytes], began: float = 0.0
) -> None:
    """Write one event per row.

    Args:
        rows: step, seconds since the epoch, and the values by tag.
        began: wall time of the event that opens the file.
    """
    write_record(struct.pack("<Bd", 0x09, began) + _bytes(3, FILE_VERSION), stream)
    for step, wall_time, values in rows:
        summary = b"".join(
            _bytes(1, _bytes(1, tag.encode()) + struct.pack("<Bf", 0x15, value))
            for tag, value in values.items()
        )
        event = struct.pack("<Bd", 0x09, wall_time) + b"\x10" + _varint(step) + _bytes(5, summary)
        write_record(event, stream)


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
