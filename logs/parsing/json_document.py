"""A whole file as one JSON document, in bounded memory."""

import json
from pathlib import Path
from typing import Any

from experiments.configuration import InputError
from logs.parsing.opened import open_bytes
from logs.parsing.text_lines import WHOLE_FILE, Notes

LARGEST_DOCUMENT = 2**28
"""Bytes. The largest public logs that are one document have 2 MB; parsing takes about ten times as much."""


def load_document(path: Path, notes: Notes) -> Any:
    """The JSON document in `path`. Of a key that stands twice in an object the last counts, and it is noted.

    Raises:
        InputError: too large, or not JSON; the message names the line and column.
    """
    with open_bytes(path) as stream:
        data = stream.read(LARGEST_DOCUMENT + 1)
    if len(data) > LARGEST_DOCUMENT:
        raise InputError(
            f"{path}: more than {LARGEST_DOCUMENT // 2**20} MiB in one JSON document, as no log has"
        )

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(items)
        if len(result) < len(items):
            action = (
                "keys that stand twice in one JSON object: the last one counts, as in every reader of JSON"
            )
            notes.add("duplicate_key", WHOLE_FILE, action, count=len(items) - len(result))
        return result

    try:
        return json.loads(data.decode("utf-8-sig"), object_pairs_hook=pairs)
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text at byte {error.start}; save it as UTF-8") from None
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        if error.msg == "Extra data":
            raise InputError(
                f"{path}, {place}: not one JSON document: more follows it; split the file before this place"
            ) from None
        cut = " (is the file cut off?)" if error.pos >= len(error.doc.rstrip()) - 1 else ""
        raise InputError(f"{path}, {place}: not JSON: {error.msg}{cut}") from None
    except (ValueError, RecursionError) as error:  # an integer of thousands of digits; endless nesting
        raise InputError(f"{path}: cannot be read as JSON: {error}") from None


def json_number(value: Any) -> float | None:
    """A JSON value as a number; loggers also write numbers, NaN and infinity as text."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, str) and "_" in value:
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def json_step(value: Any) -> int | None:
    """A JSON value as a step: a whole number from 0 up, below 10**12, or None."""
    step = json_number(value)
    if step is None or not 0 <= step < 1e12 or step != int(step):
        return None
    return int(step)
