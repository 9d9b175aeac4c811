"""From the bytes of one file to texts, one function per way of reading."""

import ast
import io
import json
import re
import struct
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from experiments.configuration import InputError
from replicas.data.archive import read_members
from replicas.data.sources import Source

DOCSTRING_CHARACTERS = 100
"""Shorter docstrings ("Return self.") say nothing about the subject and are left out."""

LITERAL_CHARACTERS = 1000
"""Shorter string literals are part of the program, not texts that it carries."""


def read_package(source: Source, archive: Path) -> Iterator[tuple[str, str]]:
    """Path and text of every document in a downloaded archive.

    Raises:
        InputError: the archive is unsafe, or a file is not what the source says it is.
    """
    for path, data in read_members(archive, source.takes):
        yield from _documents(source, path, _READERS[source.read](source, path, data))


def read_folder(source: Source) -> Iterator[tuple[str, str]]:
    """Path and text of every document in a local folder, files in the order of their paths.

    Raises:
        InputError: a file cannot be read as its ending says; the message names the file and the line.
    """
    root = Path(str(source.path))
    files = {path.relative_to(root).as_posix(): path for path in root.rglob("*") if path.is_file()}
    for path in sorted(files):
        if not source.takes(path):
            continue
        reader = _MANY_TEXTS.get(files[path].suffix, _READERS[source.read])
        texts = reader(source, str(files[path]), files[path].read_bytes())
        yield from _documents(source, path, texts)


def tidy(text: str) -> str:
    """`text` with Unix line ends, no space at the ends of lines, no blank lines at either end, no NUL."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\x00", "")
    return re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE).strip("\n")


def _documents(source: Source, path: str, texts: Iterator[str]) -> Iterator[tuple[str, str]]:
    """The pieces of one file, each with the path and, where a file can have several, its number in it."""
    numbered = (
        source.split is not None or source.read in ("literals", "json") or path.endswith(tuple(_MANY_TEXTS))
    )
    pieces = (
        piece
        for text in texts
        for piece in (re.split(f"(?={source.split})", text) if source.split else [text])
    )
    for number, piece in enumerate(pieces, start=1):
        yield (f"{path}#{number}" if numbered else path), tidy(piece)


def _decode(path: str, data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise InputError(f"{path}, line {line}: not UTF-8; convert the file or exclude it") from None


def _text(source: Source, path: str, data: bytes) -> Iterator[str]:
    yield _decode(path, data)


def _parse(path: str, data: bytes) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # other people's invalid escapes are not this user's concern
            return ast.parse(_decode(path, data))
    except SyntaxError as error:
        raise InputError(f"{path}, line {error.lineno}: not Python: {error.msg}; exclude it") from None


def _docstrings(source: Source, path: str, data: bytes) -> Iterator[str]:
    """The docstrings of one module in the order of the file, each under its dotted name, as one text."""
    module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    def walk(node: ast.Module | ast.ClassDef | ast.FunctionDef, name: str) -> Iterator[str]:
        said = ast.get_docstring(node)
        if said and len(said) >= DOCSTRING_CHARACTERS:
            yield f"{name}\n\n{said}"
        for child in node.body:
            if isinstance(child, ast.ClassDef | ast.FunctionDef):
                yield from walk(child, f"{name}.{child.name}")

    yield "\n\n\n".join(walk(_parse(path, data), module))


def _literals(source: Source, path: str, data: bytes) -> Iterator[str]:
    for node in ast.walk(_parse(path, data)):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and len(node.value) >= LITERAL_CHARACTERS
        ):
            yield node.value


def _json(source: Source, path: str, data: bytes) -> Iterator[str]:
    items = _loads(_decode(path, data), path)
    if not isinstance(items, list):
        raise InputError(f"{path}: expected a JSON list of texts or objects, found {type(items).__name__}")
    for number, item in enumerate(items):
        yield _field(item, source.field, f"{path}, item {number + 1}")


def _json_lines(source: Source, path: str, data: bytes) -> Iterator[str]:
    for number, line in enumerate(_decode(path, data).split("\n"), start=1):
        if line.strip():
            where = f"{path}, line {number}"
            yield _field(_loads(line, where), source.field or "text", where)


def _parquet(source: Source, path: str, data: bytes) -> Iterator[str]:
    import pyarrow
    import pyarrow.parquet

    column = source.field or "text"
    try:
        file = pyarrow.parquet.ParquetFile(io.BytesIO(data))
    except pyarrow.ArrowException as error:
        raise InputError(f"{path}: not a Parquet file: {error}") from None
    if column not in file.schema_arrow.names:
        names = ", ".join(file.schema_arrow.names)
        raise InputError(f"{path}: no column {column!r}; set `field` to one of: {names}")
    for batch in file.iter_batches(columns=[column]):
        for row, value in enumerate(batch.column(0).to_pylist(), start=1):
            yield _field(value, None, f"{path}, column {column}, row {row}")


def _gettext(source: Source, path: str, data: bytes) -> Iterator[str]:
    """The translations of a compiled catalogue, one a line (format: GNU gettext manual, "MO Files")."""
    order = {b"\xde\x12\x04\x95": "<", b"\x95\x04\x12\xde": ">"}.get(data[:4])
    if order is None:
        raise InputError(f"{path}: not a compiled gettext catalogue (.mo)")
    try:
        count, originals, translations = struct.unpack_from(f"{order}3I", data, 8)
        lines = []
        for i in range(count):
            key_length, _ = struct.unpack_from(f"{order}2I", data, originals + 8 * i)
            length, start = struct.unpack_from(f"{order}2I", data, translations + 8 * i)
            if key_length:  # the entry without an original is the catalogue's header
                lines += _decode(path, data[start : start + length]).split("\x00")
    except struct.error:
        raise InputError(f"{path}: cut short; a damaged gettext catalogue") from None
    yield "\n".join(lines)


def _loads(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{where}: not JSON: {error.msg} at character {error.pos}") from None


def _field(item: Any, field: str | None, where: str) -> str:
    """The text of one item: itself, or what stands under `field`; a list of lines is joined."""
    if field is not None:
        if not isinstance(item, dict) or field not in item:
            raise InputError(f"{where}: no field {field!r}; set `field` to the one that holds the text")
        item = item[field]
    if isinstance(item, list) and all(isinstance(line, str) for line in item):
        return "\n".join(item)
    if not isinstance(item, str):
        raise InputError(f"{where}: the text is {type(item).__name__}, not text")
    return item


_Reader = Callable[[Source, str, bytes], Iterator[str]]

_MANY_TEXTS: dict[str, _Reader] = {".jsonl": _json_lines, ".parquet": _parquet}

_READERS: dict[str, _Reader] = {
    "text": _text,
    "docstrings": _docstrings,
    "literals": _literals,
    "json": _json,
    "gettext": _gettext,
}
