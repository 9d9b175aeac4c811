"""From cells as a reader finds them to the table of a run: text to numbers, names to canonical ones, rows
without a step set apart. All by whole columns, so that ten million rows cost what their parsing costs."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from experiments.configuration import InputError
from logs.naming import axis_of, canonical_names, load_names
from logs.parsing.cells import as_numbers, as_text, repeated_words
from logs.parsing.numerals import PLAIN, QUIRKS, Numerals
from logs.parsing.text_lines import COLOURS
from logs.readers import NotALog
from logs.schema import AXES, Quirk, Run, make_table, unit_of

MOST_COLUMNS = 20_000
COUNTS = ("step", "tokens", "samples")
CONTROL = dict.fromkeys([*range(0x20), *range(0x7F, 0xA0), *range(0xD800, 0xE000)], "\ufffd")


@dataclass(frozen=True)
class Block:
    """Some rows of a file, in the order in which they were written.

    Attributes:
        columns: by the file's own names; doubles, 64-bit integers where a column may count steps, tokens or
            samples and all its cells do, or text where it names segments or runs.
        lines: the line, or row, of the file in which each row stands, counted from 1.
        text: how many cells of a column are no numbers; they are null in `columns`.
        odd: lines in which something was odd, by the kind of quirk, a key of `ACTIONS`.
        marks: how many cells have a comma or point that was read so, by kind of quirk and column.
        labels: the columns in which all cells are text and words repeat.
    """

    columns: Mapping[str, pa.Array]
    lines: Sequence[int] | np.ndarray
    text: Mapping[str, int] = field(default_factory=dict)
    odd: Mapping[str, Sequence[int]] = field(default_factory=dict)
    marks: Mapping[tuple[str, str], int] = field(default_factory=dict)
    labels: Mapping[str, pa.DictionaryArray] = field(default_factory=dict)


def block_of(
    cells: Mapping[str, pa.Array],
    lines: Sequence[int] | np.ndarray,
    odd: Mapping[str, Sequence[int]] | None = None,
    numerals: Mapping[str, Numerals] | None = None,
) -> Block:
    """Cells of any type as a block. The columns that name segments or runs stay text."""
    columns: dict[str, pa.Array] = {}
    text: dict[str, int] = {}
    marks: dict[tuple[str, str], int] = {}
    labels: dict[str, pa.DictionaryArray] = {}
    for name, cell in cells.items():
        if is_name(name):
            columns[name] = as_text(cell)
            continue
        numbers = as_numbers(cell, (numerals or {}).get(name, PLAIN))
        columns[name] = _whole(numbers.cells) if _axis(name) in COUNTS else numbers.cells
        if numbers.text:
            text[name] = numbers.text
            if numbers.text == len(cell) and (words := repeated_words(cell)) is not None:
                labels[name] = words
        marks |= {(kind, name): count for kind, count in numbers.marks.items()}
    return Block(columns, lines, text, odd or {}, marks, labels)


def _axis(name: str) -> str:
    return axis_of(name) or name


def is_name(column: str) -> bool:
    """Whether a column of this name holds names of segments or runs and not numbers."""
    return _axis(column) in ("segment", "run")


def _whole(numbers: pa.Array) -> pa.Array:
    """Doubles as integers if they all are, else as they are."""
    try:
        return numbers.cast(pa.int64())
    except pa.ArrowInvalid:
        return numbers


@dataclass(frozen=True)
class Table:
    """The rows of a file.

    Attributes:
        frame: a table of `logs.schema`, without the name of a run.
        labels: for each column that holds names and no numbers, the name in each row.
        own: the file's own name of each column of `frame`.
    """

    frame: pd.DataFrame
    quirks: list[Quirk]
    labels: Mapping[str, pa.DictionaryArray]
    own: Mapping[str, str]


def table_of(
    path: Path,
    blocks: Iterable[Block],
    names: Callable[[Sequence[str]], dict[str, str]] = canonical_names,
    place: str = "line",
) -> Table:
    """The rows of all blocks as one table, and what was odd in them.

    Args:
        path: for messages.
        blocks: in the order of the file.
        names: gives the canonical name of each of the file's columns.
        place: what `Block.lines` counts.

    Raises:
        NotALog: no rows, or no column counts steps.
        InputError: no row has a whole number from 0 up as its step, or there are too many columns.
    """
    found = _gathered(path, blocks)
    quirks = [_quirk(kind, count, first, place) for kind, (count, first) in found.odd.items()]
    canonical = names(list(found.chunks))
    rows = sum(map(len, found.lines))
    if rows and "step" not in canonical.values():
        raise NotALog(_no_step(path, list(found.chunks)))
    own = {canonical[name]: name for name in found.chunks}
    columns = {name: _joined(found.chunks.pop(of_file), name in COUNTS) for name, of_file in own.items()}
    without_step = _keep_whole_steps(columns, found.text, own) if rows else np.zeros(0, int)
    if not rows or not len(columns["step"]):
        raise InputError(f"{path}: no row has a whole number from 0 up as its step; nothing to read")
    if len(without_step):
        numbers = np.concatenate([np.asarray(part, np.int64) for part in found.lines])[without_step]
        quirks.append(_quirk("no_step", len(numbers), numbers[:SHOWN].tolist(), place))
    quirks += _cell_quirks(found)
    labels = _labels(found.labels, columns.pop("run", None), rows, without_step)
    return Table(_framed(columns), quirks, labels, own)


def _no_step(path: Path, names: list[str]) -> str:
    known = ", ".join(load_names().axes["step"])
    return f"{path}: no column counts steps; it has {_some(names)}; rename one to one of {known}"


@dataclass(frozen=True)
class _Gathered:
    """All blocks of a file: as `Block`, with the chunks of each column; of the odd lines their number and the
    first few."""

    chunks: dict[str, list[pa.Array]] = field(default_factory=dict)
    lines: list[Sequence[int] | np.ndarray] = field(default_factory=list)
    text: Counter[str] = field(default_factory=Counter)
    odd: dict[str, tuple[int, list[int]]] = field(default_factory=dict)
    marks: Counter[tuple[str, str]] = field(default_factory=Counter)
    labels: dict[str, list[pa.DictionaryArray]] = field(default_factory=dict)


def _gathered(path: Path, blocks: Iterable[Block]) -> _Gathered:
    found = _Gathered()
    chunks = found.chunks
    rows = 0
    for given in blocks:
        block = _with_printable_names(path, given)
        for name, column in block.columns.items():
            if name not in chunks:
                chunks[name] = [pa.nulls(rows, column.type)] if rows else []
            chunks[name].append(column)
        for name in chunks.keys() - block.columns.keys():
            chunks[name].append(pa.nulls(len(block.lines), chunks[name][0].type))
        if len(chunks) > MOST_COLUMNS:
            raise InputError(
                f"{path}: more than {MOST_COLUMNS:,} metrics; this is no table of a training run"
            )
        rows += len(block.lines)
        found.lines.append(block.lines)
        found.text.update(block.text)
        found.marks.update(block.marks)
        for kind, lines in block.odd.items():
            if len(lines):
                count, first = found.odd.get(kind, (0, []))
                found.odd[kind] = count + len(lines), [*first, *lines[: SHOWN - len(first)]]
        for name, words in block.labels.items():
            found.labels.setdefault(name, []).append(words)
    return found


@lru_cache(maxsize=MOST_COLUMNS)
def printable(name: str) -> str:
    """`name` without the escape codes of colours; other characters that act on a terminal show as U+FFFD."""
    return COLOURS.sub("", name).translate(CONTROL)


def _with_printable_names(path: Path, block: Block) -> Block:
    """`block` with names that any file and terminal can hold.

    Raises:
        InputError: two of its columns are then one.
    """
    if all(printable(name) == name for name in block.columns):
        return block
    twice = [name for name, count in Counter(map(printable, block.columns)).items() if count > 1]
    if twice:
        raise InputError(
            f"{path}: the column {twice[0]!r} stands twice, once with other control characters; rename one"
        )
    return replace(
        block,
        columns={printable(name): column for name, column in block.columns.items()},
        text={printable(name): count for name, count in block.text.items()},
        marks={(kind, printable(name)): count for (kind, name), count in block.marks.items()},
        labels={printable(name): words for name, words in block.labels.items()},
    )


def _labels(
    found: Mapping[str, list[pa.DictionaryArray]],
    runs: pa.ChunkedArray | None,
    rows: int,
    left_out: np.ndarray,
) -> dict[str, pa.DictionaryArray]:
    """The columns of names, of those rows that have a step; under `run` the one that is known to name runs."""
    keep = np.ones(rows, bool)
    keep[left_out] = False
    whole = {name: chunks for name, chunks in found.items() if sum(map(len, chunks)) == rows}
    labels = {
        name: pa.chunked_array(chunks).unify_dictionaries().combine_chunks().filter(pa.array(keep))
        for name, chunks in whole.items()
    }
    if runs is not None:  # its rows are chosen already
        labels["run"] = pc.fill_null(runs, "").dictionary_encode().unify_dictionaries().combine_chunks()
    return labels


def _joined(chunks: list[pa.Array], counts: bool) -> pa.ChunkedArray:
    """The chunks of a column as one of doubles, or of integers if it `counts` and all of them do."""
    kinds = {chunk.type for chunk in chunks}
    if len(kinds) > 1 or (kinds == {pa.int64()} and not counts):
        chunks = [chunk.cast(pa.float64(), safe=False) for chunk in chunks]
    return pa.chunked_array(chunks)


SHOWN = 5
"""How many lines a quirk lists."""

ACTIONS = {
    "broken_line": "no row of this table; left out",
    "duplicate_key": "a key stands twice in one object: the last one counts, as in every reader of JSON",
    "long_line": "longer than any log's line; left out",
    "no_step": "no whole-number step from 0 up; left out",
    "repeated_header": "the header once more, as where files are joined; the rows below it go on",
    "stray_quote": "a quotation mark that nothing closes; the line left out",
    "torn_tail": "the last line was cut off while being written; left out",
}


def _quirk(kind: str, count: int, first: Sequence[int], place: str) -> Quirk:
    return Quirk(kind=kind, count=count, where=_place(place, count, first), action=ACTIONS[kind])


def numbered(place: str, at: Sequence[object]) -> str:
    """Where something stands: `line 3, 4`, or the first five of many and how many more."""
    return _place(place, len(at), at)


def _place(place: str, count: int, at: Sequence[object]) -> str:
    shown = ", ".join(str(number) for number in at[:SHOWN])
    return f"{place} {shown}" if count <= SHOWN else f"{place}s {shown} and {count - SHOWN} more"


def _cell_quirks(found: _Gathered) -> list[Quirk]:
    """How numbers were written, and cells that are none."""
    quirks: list[Quirk] = []
    for kind, action in dict(QUIRKS.values()).items():
        cells = {name: count for (of_kind, name), count in found.marks.items() if of_kind == kind}
        if cells:
            where = f"column{'s' * (len(cells) > 1)} {_some(list(cells))}"
            quirks.append(Quirk(kind=kind, count=sum(cells.values()), where=where, action=action))
    for name, count in (+found.text).items():
        action = "no number; left in the file"
        quirks.append(Quirk(kind="text_value", count=count, where=f"column {name}", action=action))
    return quirks


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:12]) + f" and {len(names) - 12} more" * (len(names) > 12)


def _keep_whole_steps(
    columns: dict[str, pa.ChunkedArray], text: Counter[str], own: Mapping[str, str]
) -> np.ndarray:
    """Reduce `columns` to the rows with a step and type the axes. Returns the indices of the other rows."""
    left_out = np.zeros(0, np.int64)
    step = columns["step"]
    if step.type != pa.int64() or step.null_count or (pc.min(step).as_py() or 0) < 0:
        steps = step.cast(pa.float64(), safe=False).to_numpy()
        with np.errstate(invalid="ignore"):
            whole = (np.floor(steps) == steps) & (steps >= 0) & (steps < 2**53)
        left_out = np.flatnonzero(~whole)
        keep = pa.array(whole)
        for name, column in columns.items():
            columns[name] = column.filter(keep)
        columns["step"] = columns["step"].cast(pa.int64())
    for axis in ("tokens", "samples"):
        column = columns.get(axis)
        if column is not None and column.type != pa.int64():
            fits = pc.and_(pc.equal(pc.floor(column), column), pc.less(pc.abs(column), 2.0**62))
            text[own[axis]] += len(column) - column.null_count - (pc.sum(fits).as_py() or 0)
            columns[axis] = pc.if_else(fits, column, None).cast(pa.int64())
    return left_out


def _framed(columns: dict[str, pa.ChunkedArray]) -> pd.DataFrame:
    """The columns as a table of the schema; a metric that no row holds is left out."""
    frame: dict[str, pd.Series] = {"step": pd.Series(columns.pop("step").to_numpy(), copy=False)}
    for name in list(columns):
        column = columns.pop(name)  # one by one, so that no column stands here twice for long
        if name == "segment":
            frame[name] = pd.Series(pc.fill_null(column, "").to_pandas(), dtype="str")
        elif name in AXES or column.null_count < len(column):
            frame[name] = pd.Series(pd.arrays.ArrowExtensionArray(column))
    pa.default_memory_pool().release_unused()  # what parsing left over, before splicing needs its own
    return make_table(pd.DataFrame(frame, copy=False), run="")


def run_of(table: pd.DataFrame, quirks: Sequence[Quirk] = (), name: str = "") -> Run:
    """A table of the schema as a run, each metric with the unit that its name tells."""
    units = {metric: unit_of(metric) for metric in table.columns[len(AXES) :]}
    return Run(name, table, units, quirks=tuple(quirks))
