"""How numbers are written: which mark stands for the decimal point and which for thousands, told per column.

`1.000` is one in most logs and a thousand in a table that a German spreadsheet saved. What no cell of the file
settles is not guessed.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.configuration import InputError


@dataclass(frozen=True)
class Numerals:
    """The decimal mark of a column's numbers, and what may stand between their thousands (nothing: "")."""

    decimal: str = "."
    thousands: str = ""

    @property
    def grouped(self) -> str:
        """Pattern of a number with separated thousands."""
        return rf"[+-]?[1-9]\d{{0,2}}(\{self.thousands}\d{{3}})+(\{self.decimal}\d+)?"


PLAIN = Numerals()
POINT = Numerals(".", ",")
COMMA = Numerals(",", ".")

QUIRKS = {
    (COMMA, ","): ("decimal_comma", "the comma read as a decimal point, as other cells show"),
    (COMMA, "."): ("thousands_point", "the point read as a separator of thousands, as other cells show"),
    (POINT, ","): ("thousands_comma", "the comma read as a separator of thousands, as other cells show"),
}
"""Numerals and a mark that cells hold -> the kind of quirk, and what was done."""

AMBIGUOUS = re.compile(r"[+-]?[1-9]\d{0,2}([.,])\d{3}")
ONE_MARK = re.compile(r"[+-]?\d*([.,])\d*([eE][+-]?\d+)?")
SEVERAL = {numerals: re.compile(numerals.grouped) for numerals in (POINT, COMMA)}


def find_numerals(
    path: Path,
    names: Sequence[str],
    rows: Iterable[tuple[int, Sequence[str]]],
    counts: Iterable[str] = (),
    spreadsheet: bool = False,
) -> dict[str, Numerals]:
    """How the numbers of each column are written, by what its cells and those of the other columns show.

    Args:
        path: for messages.
        names: of the columns.
        rows: line and cells of the rows at the head of the file.
        counts: columns of whole numbers, in which `1.000` may well be a thousand.
        spreadsheet: the cells are separated as spreadsheets do where the comma is the decimal mark.

    Raises:
        InputError: a column whose numbers may mean two things; the message names it, a line and the remedy.
    """
    shown: dict[str, set[Numerals]] = {name: set() for name in names}
    open_to_doubt: dict[str, tuple[int, str]] = {}
    for line, cells in rows:
        for name, cell in zip(names, map(str.strip, cells), strict=False):
            if "," not in cell and "." not in cell:
                continue
            if AMBIGUOUS.fullmatch(cell):
                first = open_to_doubt.get(name)
                if first is None or ("," in cell and "," not in first[1]):
                    open_to_doubt[name] = (line, cell)
            elif (numerals := _shown_by(cell)) is not None:
                shown[name].add(numerals)
    in_file = set().union(*shown.values())
    found: dict[str, Numerals] = {}
    for name in names:
        evidence = shown[name] or in_file
        if len(evidence) == 1:
            found[name] = next(iter(evidence))
            continue
        found[name] = PLAIN
        line, cell = open_to_doubt.get(name, (0, ""))
        usual = "." in cell and not in_file and not (spreadsheet and name in counts)
        if cell and not shown[name] and not usual:
            raise InputError(_doubt(path, name, line, cell))
    return found


def _shown_by(cell: str) -> Numerals | None:
    """What a number with a mark shows of its column, or None if it is no such number."""
    if match := ONE_MARK.fullmatch(cell):
        has_digit = any(map(str.isdigit, cell))
        return ({".": POINT, ",": COMMA}[match[1]]) if has_digit else None
    return next((numerals for numerals, form in SEVERAL.items() if form.fullmatch(cell)), None)


def _doubt(path: Path, name: str, line: int, cell: str) -> str:
    whole, decimal = cell.replace(",", "").replace(".", ""), cell.replace(",", ".")
    return (
        f"{path}, line {line}: the {cell!r} in column {name!r} may be {decimal} or {whole}, and no other cell "
        "tells which; write decimals with a point and thousands without a separator"
    )


def marks_of(numerals: Numerals) -> Mapping[str, str]:
    """The marks that are worth a quirk in a column of such numbers -> the quirk's kind."""
    return {mark: kind for (of, mark), (kind, _) in QUIRKS.items() if of == numerals}
