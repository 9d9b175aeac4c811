import gettext
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from experiments.configuration import InputError
from replicas.data.extract import read_folder, read_package, tidy
from replicas.data.sources import Source

from .archives import source_for, wheel


def texts(tmp_path: Path, files: dict[str, bytes], **changes: object) -> list[tuple[str, str]]:
    packed = wheel(tmp_path / "p-1-py3-none-any.whl", files)
    return list(read_package(source_for(packed, **changes), packed))


def local(folder: Path, **changes: object) -> list[tuple[str, str]]:
    fields = {"client": "local", "path": str(folder), "licence": "MIT"}
    return list(read_folder(Source.model_validate(fields | changes)))


def test_text_is_taken_as_it_stands_by_globs(tmp_path: Path) -> None:
    files = {"p/a.py": b"x = 1  \r\n", "p/deep/b.py": b"\n\ny = 2\n", "p/tests/c.py": b"z", "p/d.md": b"# d"}
    found = texts(tmp_path, files, include=["p/*.py"], exclude=["*/tests/*"])
    assert found == [("p/a.py", "x = 1"), ("p/deep/b.py", "y = 2")]


def test_docstrings_come_in_order_under_their_names(tmp_path: Path) -> None:
    long = "Explains at length. " * 6
    module = f'"""{long}"""\ndef f():\n    "short"\nclass C:\n    def g(self):\n        """{long}\n\n        End."""\n'
    [(path, text)] = texts(tmp_path, {"p/m.py": module.encode()}, read="docstrings")
    assert path == "p/m.py"
    assert text == f"p.m\n\n{long.strip()}\n\n\np.m.C.g\n\n{long.strip()}\n\nEnd."


def test_long_literals_are_split_where_asked(tmp_path: Path) -> None:
    chapters = "\n".join(f"{n}. In chapter {n} " + "word " * 100 for n in (1, 2, 3))
    module = f"NAME = 'short'\nBOOK = {chapters!r}\n"
    found = texts(tmp_path, {"book.py": module.encode()}, read="literals", split=r"(?<!\d)\d\. ")
    assert [path for path, _ in found] == ["book.py#1", "book.py#2", "book.py#3", "book.py#4"]
    assert [text[:15] for _, text in found] == ["", "1. In chapter 1", "2. In chapter 2", "3. In chapter 3"]


def test_json_lists_of_texts_lines_and_objects(tmp_path: Path) -> None:
    assert texts(tmp_path, {"a.json": b'["one", ["two", "lines"]]'}, read="json") == [
        ("a.json#1", "one"),
        ("a.json#2", "two\nlines"),
    ]
    objects = json.dumps([{"poem": ["line", "and line"], "id": 1}]).encode()
    assert texts(tmp_path, {"a.json": objects}, read="json", field="poem") == [("a.json#1", "line\nand line")]


def test_a_catalogue_gives_what_gettext_gives(tmp_path: Path) -> None:
    """Against the standard library's reader of the same file."""
    catalogue = _catalogue(
        {
            "": "Content-Type: text/plain; charset=UTF-8\n",
            "cat": "Katze",
            "%d dog\0%d dogs": "%d Hund\0%d Hunde",
        }
    )
    path = tmp_path / "m.mo"
    path.write_bytes(catalogue)
    with path.open("rb") as stream:
        known = gettext.GNUTranslations(stream)
    [(_, text)] = texts(tmp_path, {"p/locale/de/m.mo": catalogue}, read="gettext")
    assert text.split("\n") == [
        known.ngettext("%d dog", "%d dogs", 1),
        known.ngettext("%d dog", "%d dogs", 2),
        known.gettext("cat"),
    ]


def test_local_folders_give_text_json_lines_and_parquet(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b.txt").write_text("plain", encoding="utf-8")
    (tmp_path / "a.jsonl").write_text('{"text": "first"}\n\n{"text": "sec\\u2028ond"}\n', encoding="utf-8")
    pq.write_table(pa.table({"text": ["x", "y"], "id": [1, 2]}), tmp_path / "c.parquet")
    (tmp_path / "skipped.bin").write_bytes(b"\xff")
    assert local(tmp_path) == [
        ("a.jsonl#1", "first"),
        ("a.jsonl#2", "sec\u2028ond"),
        ("c.parquet#1", "x"),
        ("c.parquet#2", "y"),
        ("sub/b.txt", "plain"),
    ]


@pytest.mark.parametrize(
    ("name", "data", "changes", "message"),
    [
        ("a.txt", b"ok\nb\xe9\n", {}, "a.txt, line 2: not UTF-8"),
        ("a.jsonl", b'{"text": "ok"}\n{"text": ', {}, "a.jsonl, line 2: not JSON"),
        ("a.jsonl", b'{"body": "ok"}', {}, "a.jsonl, line 1: no field 'text'"),
        ("a.jsonl", b'{"text": 5}', {}, "a.jsonl, line 1: the text is int, not text"),
        ("a.parquet", b"PAR1 or not", {}, "a.parquet: not a Parquet file"),
        ("a.txt", b"def f(:\n", {"read": "docstrings"}, "a.txt, line 1: not Python"),
        ("a.txt", b"{}", {"read": "json"}, "a.txt: expected a JSON list"),
        ("a.txt", b"hello", {"read": "gettext"}, "a.txt: not a compiled gettext catalogue"),
        ("a.txt", b"\xde\x12\x04\x95" + bytes(3), {"read": "gettext"}, "a.txt: cut short"),
    ],
)
def test_files_that_are_not_what_they_should_be(
    tmp_path: Path, name: str, data: bytes, changes: dict[str, str], message: str
) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError) as caught:
        local(tmp_path, **changes)
    assert message in str(caught.value)


def test_a_parquet_column_that_is_not_there(tmp_path: Path) -> None:
    pq.write_table(pa.table({"body": ["x"]}), tmp_path / "c.parquet")
    with pytest.raises(InputError, match="no column 'text'; set `field` to one of: body"):
        local(tmp_path)


def test_tidy_keeps_what_matters() -> None:
    assert tidy("\r\n\n  a \t\r\n\r\n\r\n\tb\x00\rc\n\n") == "  a\n\n\n\tb\nc"


def _catalogue(messages: dict[str, str]) -> bytes:
    """A compiled catalogue in the layout of the GNU gettext manual."""
    keys = sorted(messages)
    start = 28 + 16 * len(keys)
    table, body = b"", b""
    for texts_ in (keys, [messages[key] for key in keys]):
        for text in texts_:
            table += len(text.encode()).to_bytes(4, "little") + (start + len(body)).to_bytes(4, "little")
            body += text.encode() + b"\0"
    numbers = (0x950412DE, 0, len(keys), 28, 28 + 8 * len(keys), 0, 0)
    return b"".join(number.to_bytes(4, "little") for number in numbers) + table + body
