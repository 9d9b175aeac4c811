"""Lines of text logs: any line end, encoding and length, in bounded memory, and notes of what was odd.

Lines are counted from 1 at line feeds, carriage returns and both together: progress bars end their lines with
a lone carriage return.
"""

import codecs
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

from logs.parsing.opened import open_bytes
from logs.readers import Sample
from logs.schema import Quirk

BLOCK_BYTES = 2**20
LONGEST_LINE = 2**20
"""Characters; a longer line is no line of a log. It is passed over and noted."""

OPENING_BYTES = 2**21
"""How far into a file its format is looked for: many logs begin with source code or configuration."""

COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
ESCAPED = re.compile("[\udc80-\udcff]")
RANK = re.compile(r"\s*(?:\[(?:rank|default)?(\d{1,6})\]:|\[(?:rank|default)(\d{1,6})\]|(\d{1,6}):(?!\d))\s?")
NUMBER_FORM = re.compile(r"\.(\d+)|\d+")

MOST_SHOWN = 5

ENCODING = "encoding"
LONG_LINE = "long_line"
NUL_BYTES = "nul_bytes"
TORN_TAIL = "torn_tail"

ACTIONS = {
    ENCODING: "bytes that are not UTF-8 are read as U+FFFD",
    LONG_LINE: f"lines of more than {LONGEST_LINE:,} characters are left out",
    NUL_BYTES: "NUL bytes, as a crashed file system leaves them, are left out",
    TORN_TAIL: "the last line was cut off while being written; left out",
}


WHOLE_FILE = 0
"""As the number of a line: what was noted belongs to no line, as in a file that is one JSON document."""


@dataclass
class Notes:
    """What was odd in a file: kinds of quirks with the lines in which they were seen, and what was done."""

    counts: dict[str, int] = field(default_factory=dict)
    lines: dict[str, list[int]] = field(default_factory=dict)
    """The first few lines of each kind."""

    more: dict[str, int] = field(default_factory=dict)
    """How many further lines there are of each kind."""

    actions: dict[str, str] = field(default_factory=dict)
    torn: int | None = None
    """The number of the last line if it was cut off: nothing in it counts."""

    def add(self, kind: str, line: int, action: str | None = None, count: int = 1) -> None:
        """Note `kind` in line `line`, `count` times; `action` says what was done, by default what `ACTIONS` says.

        What was said last counts.
        """
        self.counts[kind] = self.counts.get(kind, 0) + count
        shown = self.lines.setdefault(kind, [])
        if len(shown) < MOST_SHOWN:
            shown.append(line)
        else:
            self.more[kind] = self.more.get(kind, 0) + 1
        self.actions[kind] = ACTIONS[kind] if action is None else action

    def quirks(self) -> tuple[Quirk, ...]:
        """The notes as quirks of a run."""
        return tuple(
            Quirk(
                kind=kind,
                count=count,
                where=lines_as_text(self.lines[kind], self.more.get(kind, 0)),
                action=self.actions[kind],
            )
            for kind, count in self.counts.items()
        )


def lines_as_text(first: list[int], more: int) -> str:
    """Line numbers for a quirk: the first few, and how many more there are."""
    if first and first[0] == WHOLE_FILE:
        return "the whole file"
    shown = ", ".join(str(number) for number in first)
    return f"lines {shown} and {more:,} more" if more else f"line {shown}"


def text_blocks(path: Path, notes: Notes) -> Iterator[tuple[int, str]]:
    """The lines of `path`, about a MiB at a time, without their ends, colours and NUL bytes.

    Yields:
        The number of the first line of a block, and its lines joined by line feeds. Lines that are left out
        are empty.

    Raises:
        InputError: the file cannot be read, or is a damaged archive.
    """
    number, rest, skipping = 1, "", False
    before = ""
    for text in _text(path):
        cut = text.rfind("\n")
        if cut < 0:
            rest = "" if skipping else rest + text
            if len(rest) > LONGEST_LINE:
                notes.add(LONG_LINE, number)
                rest, skipping = "", True
            continue
        if skipping:
            start, skipping = text.find("\n"), False
        else:
            start = 0
        block, rest = rest + text[start:cut], text[cut + 1 :]
        before = _clean(block, number, notes)
        yield number, before
        number += block.count("\n") + 1
    if rest:
        last = _clean(rest, number, notes)
        if is_cut_off(last, before.split("\n")[-2000:]):
            notes.torn = number
            notes.add(TORN_TAIL, number)
        yield number, last


def _text(path: Path) -> Iterator[str]:
    """The characters of the file with all line ends as line feeds; foreign bytes as lone surrogates."""
    utf_8 = codecs.getincrementaldecoder("utf-8-sig")("surrogateescape")
    decoder = io.IncrementalNewlineDecoder(utf_8, translate=True)
    with open_bytes(path) as stream:
        while data := stream.read(BLOCK_BYTES):
            yield decoder.decode(data)
    yield decoder.decode(b"", final=True)


def _clean(text: str, number: int, notes: Notes) -> str:
    """The lines without colours, NUL bytes and foreign bytes; the latter two are noted."""
    if "\x1b" in text:
        text = COLOURS.sub("", text)
    if not text.isascii() and ESCAPED.search(text):
        for i, line in enumerate(text.split("\n")):
            if ESCAPED.search(line):
                notes.add(ENCODING, number + i)
        text = ESCAPED.sub("\ufffd", text)
    if "\0" in text:
        for i, line in enumerate(text.split("\n")):
            if "\0" in line:
                notes.add(NUL_BYTES, number + i, count=line.count("\0"))
        text = text.replace("\0", "")
    return text


def text_lines(path: Path, notes: Notes) -> Iterator[tuple[int, str]]:
    """The lines of `path` one by one with their numbers; see `text_blocks`."""
    for first, block in text_blocks(path, notes):
        yield from enumerate(block.split("\n"), start=first)


def is_cut_off(last: str, earlier: list[str]) -> bool:
    """Whether a last line without an end is the beginning of a line of a form that stands above it.

    The form of a line is its words, and the number of decimals of its numbers: `loss 3.27` is a beginning of
    the form of `loss 3.2722`. Where loggers print as many decimals as they please, nothing can be told.
    """
    form = _form(last)
    forms = {other for other in map(_form, earlier) if other.startswith(form)}
    return len(forms) == 1 and form not in forms


def _form(line: str) -> str:
    return NUMBER_FORM.sub(lambda match: "." + "#" * len(match[1]) if match[1] else "0", line)


def opening(sample: Sample) -> tuple[str, ...]:
    """The lines in the first `OPENING_BYTES` of a text file, without ranks; none if it is not text."""
    return _opening(sample.path, sample.path.stat().st_size) if not sample.binary else ()


@lru_cache(maxsize=2)
def _opening(path: Path, size: int) -> tuple[str, ...]:
    """`size` is here to tell a file that has grown from what it was."""
    lines: list[str] = []
    seen = 0
    for _, block in text_blocks(path, Notes()):
        lines += [split_rank(line)[1] for line in block.split("\n")]
        seen += len(block)
        if seen > OPENING_BYTES:
            break
    return tuple(lines)


def has_line(sample: Sample, record: re.Pattern[str]) -> bool:
    """Whether `record` is found in a line of the opening of the file."""
    return any(map(record.search, opening(sample)))


def split_rank(line: str) -> tuple[str, str]:
    """The rank that a launcher put before a line (`3: ...`, `[rank3]: ...`, `[default3]:...`), and the line.

    The rank is empty where none is stated.
    """
    match = RANK.match(line) if line[:1] in " [0123456789" else None
    if match is None:
        return "", line
    return match[1] or match[2] or match[3], line[match.end() :]


def number(text: str) -> float | None:
    """A number as loggers print it, or None. `nan` and `inf` are numbers; `1_000` and `1,5` are not."""
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None


def timestamp(text: str) -> float | None:
    """Seconds since the epoch of a date and time such as `2024-02-29 08:00:28,125`, taken as UTC, or None."""
    try:
        moment = datetime.fromisoformat(text.strip().replace(",", "."))
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
