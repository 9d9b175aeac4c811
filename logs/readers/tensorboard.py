"""Reader of TensorBoard event files: scalars, as `simple_value` or as a tensor of one float or double.

An event file holds `Event` messages (tensorflow/core/util/event.proto) as TFRecords. Events of one writer differ in a
few bytes only, so one of a kind is taken apart and the others are read by its layout, all at once.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from experiments.configuration import InputError
from logs.naming import canonical_names
from logs.parsing.tables import block_of, numbered, run_of, table_of
from logs.parsing.tfrecords import FOOTER, HEADER, Damage, checksums_fit, gather, record_blocks
from logs.readers import Sample
from logs.schema import AXES, Quirk, Run

NAME = "tensorboard"
VERSION = "2"
FOLDER = True
PARTS = True

MOST_CELLS = 2**28
MOST_LAYOUTS = 64
FLOAT, DOUBLE = 1, 2  # tensorflow/core/framework/types.proto


def matches(sample: Sample) -> bool:
    """A first record with the right checksum of its length, or the version that it states."""
    if len(sample.head) < HEADER:
        return False
    if b"brain.Event:" in sample.head[: HEADER + 64]:
        return True
    head = np.frombuffer(sample.head[:HEADER], np.uint8)[None]
    return bool(checksums_fit(head[:, :8], head[:, 8:])[0])


@dataclass(frozen=True)
class Scalars:
    """Scalars in the order in which they were written; `record` counts the records of the file from 1."""

    record: np.ndarray
    wall_time: np.ndarray
    step: np.ndarray
    tag: np.ndarray
    value: np.ndarray


def read(path: Path) -> list[Run]:
    """The scalars of one event file, its name left to whoever ingests it.

    Raises:
        InputError: no scalar in it.
    """
    tags: dict[str, int] = {}
    parts: list[Scalars] = []
    damaged: list[int] = []
    others = 0
    number = 1
    damage = Damage()
    for block in record_blocks(path, damage):
        fits = np.zeros(len(block.starts), bool)
        for rows in _of_equal(block.lengths):
            records = gather(block.data, block.starts[rows], HEADER + int(block.lengths[rows[0]]) + FOOTER)
            sound = checksums_fit(records[:, HEADER:-FOOTER], records[:, -FOOTER:])
            fits[rows] = sound
            found, left = _scalars(records[sound, HEADER:-FOOTER], rows[sound] + number, tags)
            parts += found
            others += left
        damaged += (np.flatnonzero(~fits) + number).tolist()
        number += len(block.starts)
    quirks = []
    if damaged:
        quirks.append(_quirk("bad_checksum", len(damaged), numbered("record", damaged), "left out"))
    quirks += _damage_quirks(damage, number)
    if others:
        action = "histograms, images, text; left in the file"
        quirks.append(_quirk("not_scalar", others, "values", action))
    if not parts:
        raise InputError(f"{path}: an event file without a single scalar")
    scalars = _in_order(parts)
    quirks += _repeated(scalars)
    table = table_of(path, [block_of(*_rows(path, scalars, list(tags)))], place="record")
    return [run_of(table.frame, [*quirks, *table.quirks])]


def _damage_quirks(damage: Damage, number: int) -> list[Quirk]:
    """What the file holds beside whole records; `number` is that of the record after the last one."""
    quirks = []
    if damage.places:
        where = numbered("byte", [f"{start}-{end - 1}" for start, end in damage.places])
        action = "no records in these bytes; passed over to the next record, or to the end if none follows"
        quirks.append(_quirk("damaged", len(damage.places), where, action))
    if damage.torn is not None:
        where = f"record {number}, byte {damage.torn}"
        quirks.append(_quirk("torn_tail", 1, where, "the file ends inside this record; left out"))
    return quirks


def _repeated(scalars: Scalars) -> list[Quirk]:
    """How often a tag was logged again for the same step."""
    order = np.lexsort((scalars.step, scalars.tag))
    tag, step = scalars.tag[order], scalars.step[order]
    again = np.flatnonzero((tag[1:] == tag[:-1]) & (step[1:] == step[:-1]))
    if not len(again):
        return []
    where = f"{len(np.unique(tag[again]))} tags, steps {step[again].min()}-{step[again].max()}"
    return [_quirk("duplicate_step", len(again), where, "all kept; the last one counts in the lineage")]


def _quirk(kind: str, count: int, where: str, action: str) -> Quirk:
    return Quirk(kind=kind, count=count, where=where, action=action)


def _of_equal(lengths: np.ndarray) -> list[np.ndarray]:
    """The indices of the records of each length."""
    order = np.argsort(lengths, kind="stable")
    return [part for part in np.split(order, np.flatnonzero(np.diff(lengths[order])) + 1) if len(part)]


@dataclass(frozen=True)
class Layout:
    """Where in the bytes of an event its scalars stand.

    Attributes:
        wall_time: where its eight bytes begin, or None.
        step: where its bytes begin and end (equal: the step is zero).
        scalars: tag, where the value begins, and its numpy type.
        others: how many values are no scalars.
    """

    wall_time: int | None
    step: tuple[int, int]
    scalars: tuple[tuple[str, int, str], ...]
    others: int

    @property
    def places(self) -> tuple[object, ...]:
        """All but the tags: events of equal places are read by the same slices."""
        return self.wall_time, self.step, tuple(scalar[1:] for scalar in self.scalars)


def _scalars(records: np.ndarray, numbers: np.ndarray, tags: dict[str, int]) -> tuple[list[Scalars], int]:
    """The scalars of events of equal length, and how many values are none; `tags` takes new tags."""
    parts: list[Scalars] = []
    others = 0
    left = np.arange(len(records))
    for _ in range(MOST_LAYOUTS):
        if not len(left):
            break
        layout = _layout(records[left[0]].tobytes())
        done = np.zeros(len(left), bool)
        for group in _alike(records[left], layout):
            of_group = _layout(records[left[group[0]]].tobytes())
            if of_group.places == layout.places:
                done[group] = True
                parts += _read(records[left[group]], numbers[left[group]], of_group, tags)
                others += of_group.others * len(group)
        left = left[~done]
    for i in left:  # as many layouts as no writer has
        layout = _layout(records[i].tobytes())
        parts += _read(records[i : i + 1], numbers[i : i + 1], layout, tags)
        others += layout.others
    return parts, others


def _alike(records: np.ndarray, layout: Layout) -> list[np.ndarray]:
    """Groups of records that differ at most where `layout` has a time, a step or a value."""
    fixed = np.full(records.shape[1], 0xFF, np.uint8)
    if layout.wall_time is not None:
        fixed[layout.wall_time : layout.wall_time + 8] = 0
    fixed[slice(*layout.step)] = 0x80  # whether the number goes on in the next byte
    for _, at, kind in layout.scalars:
        fixed[at : at + np.dtype(kind).itemsize] = 0
    rest = records & fixed
    weights = np.random.default_rng(0).integers(1, 2**63, records.shape[1], np.uint64)
    sums = np.zeros(len(rest), np.uint64)
    for column, weight in zip(np.ascontiguousarray(rest.T), weights, strict=True):
        sums += column * weight
    order = np.argsort(sums, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(sums[order])) + 1)
    return [group[(rest[group] == rest[group[0]]).all(axis=1)] for group in groups]


def _read(records: np.ndarray, numbers: np.ndarray, layout: Layout, tags: dict[str, int]) -> list[Scalars]:
    if not layout.scalars:
        return []
    wall_time = np.full(len(records), np.nan)
    if layout.wall_time is not None:
        wall_time = _cells(records, layout.wall_time, "<f8")
    step = np.zeros(len(records), np.uint64)
    for i, at in enumerate(range(*layout.step)):
        step |= (records[:, at].astype(np.uint64) & np.uint64(0x7F)) << np.uint64(7 * i)
    return [
        Scalars(
            numbers,
            wall_time,
            step.view(np.int64),
            np.full(len(records), tags.setdefault(tag, len(tags))),
            _cells(records, at, kind).astype(np.float64),
        )
        for tag, at, kind in layout.scalars
    ]


def _cells(records: np.ndarray, at: int, kind: str) -> np.ndarray:
    size = np.dtype(kind).itemsize
    return np.ascontiguousarray(records[:, at : at + size]).view(kind)[:, 0]


def _layout(event: bytes) -> Layout:
    """The layout of one `Event`; bytes that are none count as one value that is no scalar."""
    wall_time: int | None = None
    step = (0, 0)
    scalars: list[tuple[str, int, str]] = []
    others = 0
    try:
        for number, start, end in _fields(event, 0, len(event)):
            if number == 1:
                wall_time = start
            elif number == 2:
                step = (start, end)
            elif number == 5:
                for of_summary, first, last in _fields(event, start, end):
                    scalar = _scalar(event, first, last) if of_summary == 1 else None
                    scalars += [scalar] if scalar else []
                    others += of_summary == 1 and scalar is None
    except (IndexError, ValueError):
        return Layout(None, (0, 0), (), 1)
    return Layout(wall_time, step, tuple(scalars), others)


def _scalar(event: bytes, start: int, end: int) -> tuple[str, int, str] | None:
    """Tag, place and type of a `Summary.Value`, or None if it is no scalar."""
    tag: str | None = None
    value: tuple[int, str] | None = None
    for number, first, last in _fields(event, start, end):
        if number == 1:
            tag = event[first:last].decode("utf-8", errors="replace")
        elif number == 2 and last - first == 4:
            value = (first, "<f4")
        elif number == 8:
            value = _tensor(event, first, last)
    return None if tag is None or value is None else (tag, *value)


def _tensor(event: bytes, start: int, end: int) -> tuple[int, str] | None:
    """Place and type of the one float or double in a `TensorProto`, or None if it holds anything else."""
    kind, content = 0, (0, 0)
    for number, first, last in _fields(event, start, end):
        if number == 1:
            kind = event[first]
        elif number in (4, 5, 6):  # tensor_content, float_val, double_val
            content = (first, last)
    size = {FLOAT: 4, DOUBLE: 8}.get(kind)
    return (content[0], f"<f{size}") if size is not None and content[1] - content[0] == size else None


def _fields(message: bytes, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Number, first byte and end of each field of a protobuf message.

    Raises:
        IndexError, ValueError: it is none.
    """
    at = start
    while at < end:
        key, at = _varint(message, at)
        wire = key & 7
        if wire == 0:
            _, after = _varint(message, at)
        elif wire == 2:
            length, at = _varint(message, at)
            after = at + length
        elif wire in (1, 5):
            after = at + (8 if wire == 1 else 4)
        else:
            raise ValueError(f"wire type {wire}")
        if after > end:
            raise ValueError("a field longer than its message")
        yield key >> 3, at, after
        at = after


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for i in range(10):
        byte = data[at + i]
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return value, at + i + 1
    raise ValueError("a number of more than ten bytes")


def _in_order(parts: list[Scalars]) -> Scalars:
    record = np.concatenate([part.record for part in parts])
    order = np.argsort(record, kind="stable")
    return Scalars(
        record[order],
        np.concatenate([part.wall_time for part in parts])[order],
        np.concatenate([part.step for part in parts])[order],
        np.concatenate([part.tag for part in parts])[order],
        np.concatenate([part.value for part in parts])[order],
    )


def _passes(scalars: Scalars) -> np.ndarray:
    """For each scalar, how often the run had gone back to an earlier step before it.

    A pass ends where a tag that was logged in it is logged for an earlier step. Where a file holds one tag
    after the other, as converters write them, each tag has passes of its own.
    """
    by_tag = np.argsort(scalars.tag, kind="stable")
    tag, step = scalars.tag[by_tag], scalars.step[by_tag]
    back = np.flatnonzero((tag[1:] == tag[:-1]) & (step[1:] < step[:-1])) + 1
    starts = np.flatnonzero(np.diff(tag, prepend=-1))
    if (np.diff(by_tag) == 1).sum() >= len(tag) - len(starts):
        total = np.zeros(len(tag), np.int64)
        total[back] = 1
        total = np.cumsum(total)
        own = total - np.repeat(total[starts], np.diff(starts, append=len(tag)))
        passes = np.empty(len(tag), np.int64)
        passes[by_tag] = own
        return passes
    bounds: list[int] = []
    for at, before in sorted(zip(by_tag[back].tolist(), by_tag[back - 1].tolist(), strict=True)):
        if before >= (bounds[-1] if bounds else 0):
            bounds.append(at)
    return np.searchsorted(bounds, np.arange(len(tag)), side="right")


def _rows(path: Path, scalars: Scalars, tags: list[str]) -> tuple[dict[str, pa.Array], np.ndarray]:
    """One row for each pass and step, and another where a tag was logged again for the same step: the cells
    by column, and the record of each row."""
    passes = _passes(scalars)
    order = np.lexsort((scalars.step, scalars.tag, passes))
    again = np.ones(len(order), bool)
    keys = (passes[order], scalars.tag[order], scalars.step[order])
    again[1:] = np.logical_and.reduce([key[1:] == key[:-1] for key in keys])
    again[:1] = False
    count = np.arange(len(order))
    occurrence = np.empty(len(order), np.int64)
    occurrence[order] = count - np.maximum.accumulate(np.where(again, 0, count))
    order = np.lexsort((occurrence, scalars.step, passes))
    keys = (passes[order], scalars.step[order], occurrence[order])
    new = np.ones(len(order), bool)
    new[1:] = np.logical_or.reduce([key[1:] != key[:-1] for key in keys])
    row = np.empty(len(order), np.int64)
    row[order] = np.cumsum(new) - 1
    first = order[new]
    if len(first) * len(tags) > MOST_CELLS:
        raise InputError(
            f"{path}: {len(tags):,} tags in {len(first):,} rows are more than fit; split the folder"
        )
    cells = {
        "step": pa.array(scalars.step[first].astype(np.float64)),
        "wall_time": pa.array(scalars.wall_time[first], from_pandas=True),
    }
    by_tag = np.argsort(scalars.tag, kind="stable")
    bounds = np.searchsorted(scalars.tag[by_tag], np.arange(len(tags) + 1))
    for i in sorted(range(len(tags)), key=lambda i: by_tag[bounds[i]]):
        at = by_tag[bounds[i] : bounds[i + 1]]
        values, missing = np.zeros(len(first)), np.ones(len(first), bool)
        values[row[at]], missing[row[at]] = scalars.value[at], False
        name = f"tag/{tags[i]}" if canonical_names([tags[i]])[tags[i]] in AXES else tags[i]
        cells[name] = pa.array(values, pa.float64(), mask=missing)
    return cells, scalars.record[first]
