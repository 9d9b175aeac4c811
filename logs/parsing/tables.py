"""From cells as a reader finds them to the table of a run: text to numbers, names to canonical ones, rows
without a step set apart. All by whole columns, so that ten million rows cost what their parsing costs."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from experiments.configuration import InputError
from logs.naming import canonical_names, load_names
from logs.readers import NotALog
from logs.schema import AXES, Quirk, Run, make_table, unit_of

MOST_COLUMNS = 20_000
NUMBER = r"(?i)^[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|nan|inf|infinity)$"
COMMAS = {"decimal": ".", "thousands": ""}
"""What a comma inside a number stands for -> what stands in its place where numbers are written plainly."""


@dataclass(frozen=True)
class Block:
    """Some rows of a file, in the order in which they were written.

    Attributes:
        columns: by the file's own names; doubles, 64-bit integers where a column may count steps, tokens or
            samples and all its cells do, or text where it names segments.
        lines: the line, or row, of the file in which each row stands, counted from 1.
        text: how many cells of a column are no numbers; they are null in `columns`.
        broken: lines left out because they are no rows.
        commas: how many cells hold a number with a comma.
    """

    columns: Mapping[str, pa.Array]
    lines: Sequence[int] | np.ndarray
    text: Mapping[str, int] = field(default_factory=dict)
    broken: Sequence[int] = ()
    commas: int = 0


def block_of(
    cells: Mapping[str, pa.Array],
    lines: Sequence[int] | np.ndarray,
    broken: Sequence[int] = (),
    comma: str = "",
) -> Block:
    """Cells of any type as a block; see `as_numbers` for `comma`. The columns that name segments stay text."""
    columns: dict[str, pa.Array] = {}
    text: dict[str, int] = {}
    commas = 0
    for name, cell in cells.items():
        if is_segment(name):
            columns[name] = as_text(cell)
            continue
        numbers, count = as_numbers(cell, comma)
        columns[name] = _whole(numbers) if _axis(name) in COUNTS else numbers
        if count:
            text[name] = count
        if comma and _is_text(cell.type):
            with_comma = pc.match_substring(as_text(cell), ",")
            commas += pc.sum(pc.and_(with_comma, columns[name].is_valid())).as_py() or 0
    return Block(columns, lines, text, broken, commas)


COUNTS = ("step", "tokens", "samples")


@lru_cache(maxsize=4096)
def _axis(name: str) -> str:
    return canonical_names([name])[name]


def is_segment(name: str) -> bool:
    """Whether a column of this name holds names of segments and not numbers."""
    return _axis(name) == "segment"


def _whole(numbers: pa.Array) -> pa.Array:
    """Doubles as integers if they all are, else as they are."""
    try:
        return numbers.cast(pa.int64())
    except pa.ArrowInvalid:
        return numbers


def as_numbers(cells: pa.Array, comma: str = "") -> tuple[pa.Array, int]:
    """Cells as doubles, and how many of them are no number (null in the result). NaN stays NaN.

    Args:
        cells: of any type; a time counts as seconds since the epoch, an empty text as nothing.
        comma: what a comma inside a number stands for, a key of `COMMAS`, or nothing that is known.
    """
    kind = cells.type
    if pa.types.is_dictionary(kind):
        return as_numbers(cells.dictionary_decode(), comma)
    if pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        return cells.cast(pa.float64(), safe=False), 0
    if pa.types.is_null(kind):
        return pa.nulls(len(cells), pa.float64()), 0
    if pa.types.is_timestamp(kind):
        micros = cells.cast(pa.timestamp("us", kind.tz), safe=False).cast(pa.int64())
        return pc.divide(micros.cast(pa.float64(), safe=False), 1e6), 0
    if not _is_text(kind):
        return pa.nulls(len(cells), pa.float64()), len(cells) - cells.null_count
    words = pc.utf8_trim_whitespace(as_text(cells))
    words = pc.if_else(pc.equal(words, ""), None, words)
    plain = pc.replace_substring(words, ",", COMMAS[comma]) if comma else words
    plain = pc.if_else(pc.match_substring_regex(plain, NUMBER), pc.utf8_ltrim(plain, "+"), None)
    return _parsed(plain), plain.null_count - words.null_count


def _is_text(kind: pa.DataType) -> bool:
    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return any(is_text(kind) for is_text in texts) or pa.types.is_string_view(kind)


def _parsed(words: pa.Array) -> pa.Array:
    try:
        return words.cast(pa.float64())
    except pa.ArrowInvalid:  # a number too large for a double, which Python reads as infinite
        return pa.array([None if w is None else float(w) for w in words.to_pylist()], pa.float64())


def as_text(cells: pa.Array) -> pa.Array:
    """Cells as text; bytes that are not UTF-8 show as U+FFFD."""
    try:
        text = cells.cast(pa.string())
        text.validate(full=True)
        return text
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        whole = cells.cast(pa.binary()) if _is_text(cells.type) else cells
        words = [c.decode(errors="replace") if isinstance(c, bytes) else c for c in whole.to_pylist()]
        return pa.array([None if word is None else str(word) for word in words], pa.string())


def flat_columns(name: str, column: pa.Array) -> dict[str, pa.Array]:
    """A column, or those of the objects in it as `outer/inner`."""
    if not pa.types.is_struct(column.type):
        return {name: column}
    flat: dict[str, pa.Array] = {}
    for inner, cells in zip(column.type, column.flatten(), strict=True):
        flat.update(flat_columns(f"{name}/{inner.name}", cells))
    return flat


def table_of(
    path: Path,
    blocks: Iterable[Block],
    names: Callable[[Sequence[str]], dict[str, str]] = canonical_names,
    place: str = "line",
    comma: str = "",
) -> tuple[pd.DataFrame, list[Quirk]]:
    """The rows of all blocks as a table of `logs.schema`, and what was odd in them.

    Args:
        path: for messages.
        blocks: in the order of the file.
        names: gives the canonical name of each of the file's columns.
        place: what `Block.lines` counts.
        comma: what a comma inside a number was read as, a key of `COMMAS`.

    Raises:
        NotALog: no rows, or no column counts steps.
        InputError: no row has a whole number from 0 up as its step, or there are too many columns.
    """
    found = _gathered(path, blocks)
    quirks = [_quirk("broken_line", found.broken, place)] if found.broken else []
    canonical = names(list(found.chunks))
    rows = sum(map(len, found.lines))
    if rows and "step" not in canonical.values():
        known = ", ".join(load_names().axes["step"])
        there = _some(list(found.chunks))
        raise NotALog(f"{path}: no column counts steps; it has {there}; rename one to one of {known}")
    own = {canonical[name]: name for name in found.chunks}
    columns = {name: _joined(found.chunks.pop(of_file), name in COUNTS) for name, of_file in own.items()}
    without_step = _keep_whole_steps(columns, found.text, own) if rows else np.zeros(0, int)
    if not rows or not len(columns["step"]):
        raise InputError(f"{path}: no row has a whole number from 0 up as its step; nothing to read")
    if len(without_step):
        numbers = np.concatenate([np.asarray(part, np.int64) for part in found.lines])
        quirks.append(_quirk("no_step", numbers[without_step].tolist(), place))
    if found.commas:
        action = "the comma read as " + (
            "a decimal point" if comma == "decimal" else "a separator of thousands"
        )
        quirks.append(Quirk(kind=f"{comma}_comma", count=found.commas, where="cells", action=action))
    for name, count in (+found.text).items():
        action = "no number; left in the file"
        quirks.append(Quirk(kind="text_value", count=count, where=f"column {name}", action=action))
    return _framed(columns), quirks


@dataclass(frozen=True)
class _Gathered:
    """All blocks of a file: as `Block`, with the chunks of each column."""

    chunks: dict[str, list[pa.Array]]
    lines: list[Sequence[int] | np.ndarray]
    text: Counter[str]
    broken: list[int]
    commas: int


def _gathered(path: Path, blocks: Iterable[Block]) -> _Gathered:
    chunks: dict[str, list[pa.Array]] = {}
    lines: list[Sequence[int] | np.ndarray] = []
    text: Counter[str] = Counter()
    broken: list[int] = []
    rows = commas = 0
    for block in blocks:
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
        lines.append(block.lines)
        text.update(block.text)
        broken += block.broken
        commas += block.commas
    return _Gathered(chunks, lines, text, broken, commas)


def _joined(chunks: list[pa.Array], counts: bool) -> pa.ChunkedArray:
    """The chunks of a column as one of doubles, or of integers if it `counts` and all of them do."""
    kinds = {chunk.type for chunk in chunks}
    if len(kinds) > 1 or (kinds == {pa.int64()} and not counts):
        chunks = [chunk.cast(pa.float64(), safe=False) for chunk in chunks]
    return pa.chunked_array(chunks)


ACTIONS = {
    "broken_line": "no row of this table; left out",
    "torn_tail": "the last line was cut off while being written; left out",
    "no_step": "no whole-number step from 0 up; left out",
    "long_line": "longer than any log's line; left out",
}


def _quirk(kind: str, at: Sequence[int], place: str) -> Quirk:
    return Quirk(kind=kind, count=len(at), where=numbered(place, at), action=ACTIONS[kind])


def line_quirk(kind: str, at: Sequence[int]) -> Quirk:
    """A quirk of some lines, a key of `ACTIONS`, with the lines' numbers."""
    return _quirk(kind, at, "line")


def numbered(place: str, at: Sequence[int]) -> str:
    """Where something stands: `line 3, 4`, or the first five of many and how many more."""
    shown = ", ".join(str(number) for number in at[:5])
    return f"{place} {shown}" if len(at) <= 5 else f"{place}s {shown} and {len(at) - 5} more"


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
        if name == "run":
            continue
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
