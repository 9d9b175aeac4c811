"""Cells of any type as columns of numbers or of text. All by whole columns, so that ten million rows cost what
their parsing costs."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from logs.parsing.numerals import PLAIN, Numerals, marks_of

NUMBER = r"(?i)^[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|nan|inf|infinity)$"
FEW_WORDS = 1000
"""Cells by which it is told whether the words of a column repeat."""


@dataclass(frozen=True)
class Numbers:
    """Cells as doubles; null where nothing stands, or nothing that is a number. NaN stays NaN.

    Attributes:
        text: how many cells are no numbers.
        marks: how many numbers hold a mark of `numerals.QUIRKS`, by the kind of quirk.
    """

    cells: pa.Array
    text: int = 0
    marks: Mapping[str, int] = field(default_factory=dict)


def as_numbers(cells: pa.Array, numerals: Numerals = PLAIN) -> Numbers:
    """Cells of any type; a time counts as seconds since the epoch, an empty text as nothing."""
    kind = cells.type
    if pa.types.is_dictionary(kind):
        return as_numbers(cells.dictionary_decode(), numerals)
    if pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        return Numbers(cells.cast(pa.float64(), safe=False))
    if pa.types.is_null(kind):
        return Numbers(pa.nulls(len(cells), pa.float64()))
    if pa.types.is_timestamp(kind):
        micros = cells.cast(pa.timestamp("us", kind.tz), safe=False).cast(pa.int64())
        return Numbers(pc.divide(micros.cast(pa.float64(), safe=False), 1e6))
    if not is_text(kind):
        return Numbers(pa.nulls(len(cells), pa.float64()), len(cells) - cells.null_count)
    words = pc.utf8_trim_whitespace(as_text(cells))
    words = pc.if_else(pc.equal(words, ""), None, words)
    plain = _plainly_written(words, numerals)
    plain = pc.if_else(pc.match_substring_regex(plain, NUMBER), pc.utf8_ltrim(plain, "+"), None)
    found = {
        kind: pc.sum(pc.and_(pc.match_substring(words, mark), plain.is_valid())).as_py() or 0
        for mark, kind in marks_of(numerals).items()
    }
    marks = {kind: count for kind, count in found.items() if count}
    return Numbers(_parsed(plain), plain.null_count - words.null_count, marks)


def _plainly_written(words: pa.Array, numerals: Numerals) -> pa.Array:
    """The numbers among `words` with a decimal point and no separators; what else has a comma stays as it is."""
    if not numerals.thousands:
        return words
    grouped = pc.match_substring_regex(words, f"^{numerals.grouped}$")
    whole = pc.if_else(grouped, pc.replace_substring(words, numerals.thousands, ""), words)
    if numerals.decimal == ".":
        return whole
    pointed = pc.match_substring(whole, ".")  # a point that separates no thousands makes no number here
    return pc.if_else(pointed, ",", pc.replace_substring(whole, ",", "."))


def is_text(kind: pa.DataType) -> bool:
    """Whether cells of this type are text, or bytes that may be."""
    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return any(test(kind) for test in texts) or pa.types.is_string_view(kind)


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
        whole = cells.cast(pa.binary()) if is_text(cells.type) else cells
        words = [c.decode(errors="replace") if isinstance(c, bytes) else c for c in whole.to_pylist()]
        return pa.array([None if word is None else str(word) for word in words], pa.string())


def repeated_words(cells: pa.Array) -> pa.DictionaryArray | None:
    """Text as numbers of words, if all cells are text and words repeat, as the names of runs do; else None."""
    if not is_text(cells.type) or cells.null_count or not len(cells):
        return None
    if 2 * len(pc.unique(cells.slice(0, FEW_WORDS))) > max(2, min(len(cells), FEW_WORDS)):
        return None
    return as_text(cells).dictionary_encode()


def flat_columns(name: str, column: pa.Array) -> list[tuple[str, pa.Array]]:
    """A column, or those of the objects in it as `outer/inner`."""
    if not pa.types.is_struct(column.type):
        return [(name, column)]
    flat: list[tuple[str, pa.Array]] = []
    for inner, cells in zip(column.type, column.flatten(), strict=True):
        flat += flat_columns(f"{name}/{inner.name}", cells)
    return flat
