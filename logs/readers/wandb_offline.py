"""Reader of W&B's own file of a run, `run-<id>.wandb`, as it lies in an offline run's folder.

The file is a LevelDB log (github.com/google/leveldb, doc/log_format.md) after a header of seven bytes: blocks of
32 KiB, in them pieces with `crc32: uint32, length: uint16, type: uint8`, each record whole or in several pieces.
The checksum is zlib's CRC-32 of type and data. Records are protobuf messages that the package wandb can parse.
"""

import json
import struct
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.configuration import InputError
from logs.parsing.json_lines import columns_of, flat_row
from logs.parsing.opened import open_bytes
from logs.parsing.tables import Block, block_of, numbered, run_of, table_of
from logs.readers import Sample
from logs.readers.wandb_history import counter_as_step, with_own_steps
from logs.schema import Quirk, Run, RunFacts

NAME = "wandb-offline"
VERSION = "1"
FOLDER = True

HEADER = struct.pack("<4sH", b":W&B", 0xBEE1)
BLOCK, PIECE = 32768, struct.Struct("<IHB")
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4
BATCH_ROWS = 20_000


def matches(sample: Sample) -> bool:
    """W&B's header."""
    return sample.head.startswith(HEADER)


def read(path: Path) -> list[Run]:
    """The rows that the run logged, its name left to whoever ingests it.

    Raises:
        InputError: no row with a step.
    """
    found = _Found()
    table = table_of(path, _blocks(path, found), counter_as_step, place="record")
    run = run_of(table.frame, [*table.quirks, *found.quirks()])
    return [with_own_steps(replace(run, facts=RunFacts(title=found.title)))]


class _Found:
    """What a file holds beside its rows."""

    def __init__(self) -> None:
        self.title: str | None = None
        self.damaged: list[int] = []
        self.torn: int | None = None

    def quirks(self) -> list[Quirk]:
        """Damaged records and a torn end."""
        quirks: list[Quirk] = []
        if self.damaged:
            where = numbered("record", self.damaged)
            quirks.append(Quirk(kind="bad_checksum", count=len(self.damaged), where=where, action="left out"))
        if self.torn is not None:
            action = "the file ends inside this record, as after a crash; left out"
            quirks.append(Quirk(kind="torn_tail", count=1, where=f"record {self.torn}", action=action))
        return quirks


def _blocks(path: Path, found: _Found) -> Iterator[Block]:
    from google.protobuf.message import DecodeError
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]  # half a second

    rows: list[dict[str, Any]] = []
    places: list[int] = []
    number = 0
    for number, data in enumerate(_records(path, found), start=1):
        record = Record()
        try:
            record.ParseFromString(data or b"")
        except DecodeError:
            data = None
        if data is None:
            found.damaged.append(number)
            continue
        kind = record.WhichOneof("record_type")
        if kind == "run":
            found.title = record.run.display_name or record.run.run_id or found.title
        elif kind == "history":
            rows.append(_row(record.history))
            places.append(number)
        if len(rows) == BATCH_ROWS:
            yield block_of(columns_of(rows), places)
            rows, places = [], []
    if found.torn is not None:
        found.torn = number + 1
    if not rows and not places and number == 0:
        raise InputError(f"{path}: a W&B file without records; the run ended before it logged")
    if rows:
        yield block_of(columns_of(rows), places)


def _row(history: Any) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for item in history.item:
        try:
            row["/".join(item.nested_key) or item.key] = json.loads(item.value_json)
        except (ValueError, RecursionError):
            row[item.key] = item.value_json
    row.setdefault("_step", history.step.num)
    return flat_row(row)


def _records(path: Path, found: _Found) -> Iterator[bytes | None]:
    """The records, None for one that is damaged; tells `found` if the file ends inside one."""
    parts: list[bytes] | None = []
    inside = False
    with open_bytes(path) as stream:
        at = len(HEADER) + 1
        block = stream.read(BLOCK)
        while block:
            while at + PIECE.size <= len(block):
                crc, length, kind = PIECE.unpack_from(block, at)
                data = block[at + PIECE.size : at + PIECE.size + length]
                if kind == 0 and length == 0:  # the rest of a block that nobody wrote
                    break
                if len(data) < length:
                    found.torn = 0
                    return
                sound = zlib.crc32(bytes([kind]) + data) == crc
                parts = [] if kind in (FULL, FIRST) else parts
                parts = [*parts, data] if sound and parts is not None else None
                inside = kind in (FIRST, MIDDLE)
                if not inside:
                    yield None if parts is None else b"".join(parts)
                at += PIECE.size + length
            block, at = stream.read(BLOCK), 0
    if inside:
        found.torn = 0
