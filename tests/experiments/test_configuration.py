"""Configuration files: what is accepted comes back unchanged, what is not gives one clear error."""

import json
import math
import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from experiments.configuration import Config, InputError, load, parse, read_yaml, write_json, write_whole

KEYS = st.text("abcdefghij_", min_size=1, max_size=8).filter(lambda key: key.strip("_") != "")
UNQUOTED_NUMBER = re.compile(
    r"[-+]?\d+[eE][-+]?\d+"
)  # to YAML 1.2, which is read; 1.1, which is written, calls it text
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(10**18), 10**18)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(
        st.characters(min_codepoint=32, exclude_categories=("Cs", "Cc", "Co", "Cn")), max_size=20
    ).filter(lambda text: not UNQUOTED_NUMBER.fullmatch(text))
)
DOCUMENTS = st.dictionaries(
    KEYS,
    st.recursive(
        SCALARS,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
        max_leaves=8,
    ),
    min_size=1,
    max_size=5,
)


class Rung(Config):
    width: int
    lr: float = 0.1


class Ladder(Config):
    name: str
    rungs: list[Rung] = Field(default=[])
    by_domain: dict[str, Rung] = Field(default={})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("configuration")


@given(DOCUMENTS)
def test_what_another_writer_wrote_is_read_back(folder: Path, document: dict) -> None:
    path = folder / "document.yaml"
    path.write_text(yaml.safe_dump(document, allow_unicode=True), encoding="utf-8")
    assert read_yaml(path) == document


@given(st.floats(-1e300, 1e300))
def test_a_number_in_any_notation_is_a_number(folder: Path, number: float) -> None:
    path = folder / "number.yaml"
    for written in (f"{number:.17e}", repr(number), f"{number:.0e}"):
        path.write_text(f"name: x\nrungs: [{{width: 1, lr: {written}}}]\n")
        assert load(path, Ladder).rungs[0].lr == float(written)


@given(DOCUMENTS, st.data())
def test_a_repeated_key_is_refused_with_its_line(folder: Path, document: dict, data: st.DataObject) -> None:
    key = data.draw(st.sampled_from(sorted(document)))
    text = yaml.safe_dump(document, allow_unicode=True)
    path = folder / "twice.yaml"
    path.write_text(f"{text}{yaml.safe_dump({key: 1})}", encoding="utf-8")
    with pytest.raises(InputError, match=rf"line {text.count(chr(10)) + 1}: .*{key}.* stands twice"):
        read_yaml(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "expected `key: value` lines, found NoneType"),
        (b"- 1\n- 2\n", "found list"),
        (b"a: [1, 2\nb: 3\n", "line 2"),
        (b"a: \xff\xfe\n", "not UTF-8"),
        (b"a: !!python/object/apply:os.system [true]\n", "line 1"),
        (b"a: 1\n  b: 2\n", "line 2"),
    ],
)
def test_a_broken_file_is_one_error_that_names_it(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "broken.yaml"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_yaml(path)
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_folder_are_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_yaml(tmp_path / "none.yaml")
    with pytest.raises(InputError, match="cannot be read"):
        read_yaml(tmp_path)


@pytest.mark.parametrize(
    ("data", "parts"),
    [
        (
            {"name": "x", "rung": []},
            ["`rung` is not a known key", "did you mean `rungs`?", "allowed: by_domain"],
        ),
        ({"name": "x", "rungs": [{"width": 1, "lrr": 1}]}, ["`rungs.0.lrr`", "allowed: lr, width"]),
        (
            {"name": "x", "by_domain": {"code": {"widht": 1}}},
            ["`by_domain.code.widht`", "did you mean `width`"],
        ),
        ({"rungs": []}, ["`name` is missing"]),
        ({"name": "x", "rungs": [{"width": "8"}]}, ["`rungs.0.width`", 'found "8"']),
        ({"name": "x", "rungs": [{"width": True}]}, ["`rungs.0.width`", "found true"]),
        ({"name": "x", "rungs": [{"width": 1.5}]}, ["`rungs.0.width`", "found 1.5"]),
    ],
)
def test_a_wrong_key_or_type_names_the_field_and_what_is_allowed(data: dict, parts: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        parse(Ladder, data, "study.yaml")
    assert all(part in str(caught.value) for part in ["study.yaml: ", *parts]), str(caught.value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_none_is_refused(value: float) -> None:
    with pytest.raises(InputError, match="lr"):
        parse(Rung, {"width": 1, "lr": value}, "here")


def test_several_mistakes_are_told_at_once() -> None:
    with pytest.raises(InputError) as caught:
        parse(Ladder, {"rungs": [{"width": "a"}], "nonsense": 1}, "study.yaml")
    assert all(field in str(caught.value) for field in ("`name`", "`rungs.0.width`", "`nonsense`"))


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file.json"
    with write_whole(path) as stream:
        stream.write("old")
    writing = write_whole(path)
    stream = writing.__enter__()
    stream.write("half of the n")
    stream.flush()
    assert path.read_text() == "old"
    assert not writing.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert path.read_text() == "old"
    assert [other.name for other in path.parent.iterdir()] == ["file.json"]


@given(
    st.recursive(
        st.none() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=("Cs",))),
        lambda inner: (
            st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=("Cs",))), inner)
        ),
        max_leaves=10,
    )
)
def test_json_is_standard_json_whatever_the_numbers(folder: Path, data: object) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    path = folder / "data.json"
    write_json(path, data)
    read = json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)
    assert read == _without_non_finite(data)


def _without_non_finite(data: object) -> object:
    if isinstance(data, float) and not math.isfinite(data):
        return None
    if isinstance(data, dict):
        return {key: _without_non_finite(value) for key, value in data.items()}
    return [_without_non_finite(value) for value in data] if isinstance(data, list) else data
