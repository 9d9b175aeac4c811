"""Reading configuration: strict YAML in, a validated frozen object out, one clear error otherwise.

A leaf of the project: every package may import it, it imports none of them.
"""

import json
import math
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import IO, Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError


class InputError(Exception):
    """A mistake in what the user gave. The message names the file, line or field and the remedy.

    The command line prints it as one line and exits with 2; it is never shown as a traceback.
    """

    def __str__(self) -> str:
        return printable(super().__str__())


def printable(text: str) -> str:
    """`text` for a terminal: what would steer it, break the line or not be encoded shows as `\\x1b`, `\\n`."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class Config(BaseModel):
    """Base of every configuration object: frozen, unknown keys refused, no silent conversions."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


C = TypeVar("C", bound=BaseModel)


class _StrictLoader(yaml.SafeLoader):
    """Safe YAML in which a repeated key is an error and `1e-3` is a number, as in YAML 1.2."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = str(self.construct_object(key_node, deep=True))
            if key in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"the key {key!r} stands twice", problem_mark=key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


_StrictLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+0123456789.")
)


def read_yaml(path: str | Path) -> dict[str, Any]:
    """The mapping in the YAML file `path`. No tags that construct objects are honoured.

    Raises:
        InputError: the file is missing, not UTF-8, not YAML (line named), repeats a key, or is not a mapping.
    """
    path = Path(path)
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), Loader=_StrictLoader)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8 text; save it as UTF-8") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = f", line {mark.line + 1}" if mark else ""
        raise InputError(f"{path}{line}: {error.problem or 'not valid YAML'}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: an impossible date
        raise InputError(f"{path}: not valid YAML: {error}") from None
    if not isinstance(data, dict):
        raise InputError(f"{path}: expected `key: value` lines, found {type(data).__name__}")
    return data


def parse(model: type[C], data: Any, where: str) -> C:
    """`data` (from YAML or JSON) as a `model`, strictly: no text for numbers, no truth for integers.

    Raises:
        InputError: an unknown key, a wrong type or an impossible value; every fault is listed with its field.
    """
    try:
        return model.model_validate_json(json.dumps(data, default=str), strict=True)
    except ValidationError as error:
        errors = error.errors(include_url=False)
        # a list is also called too short if one of its items is wrong
        inside = {e["loc"][:-1] for e in errors}
        faults = [_fault(model, e) for e in errors if e["type"] != "too_short" or e["loc"] not in inside]
        raise InputError(f"{where}: {'; '.join(faults)}") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{where}: not plain keys and values: {error}") from None


def load(path: str | Path, model: type[C]) -> C:
    """The YAML file `path` as a `model`; see `read_yaml` and `parse` for the errors."""
    return parse(model, read_yaml(path), str(path))


def _fault(model: type[BaseModel], error: Any) -> str:
    location = ".".join(str(part) for part in error["loc"]) or model.__name__
    if error["type"] == "extra_forbidden":
        allowed = sorted(_fields_at(model, error["loc"][:-1]))
        guess = get_close_matches(str(error["loc"][-1]), allowed, n=1)
        hint = f"did you mean `{guess[0]}`? " if guess else ""
        return f"`{location}` is not a known key; {hint}allowed: {', '.join(allowed)}"
    if error["type"] == "missing":
        return f"`{location}` is missing"
    value = error.get("input")
    shown = "" if isinstance(value, dict | list) else f" (found {json.dumps(value, default=str)})"
    return f"`{location}`: {error['msg'].removeprefix('Value error, ')}{shown}"


def _fields_at(model: Any, location: tuple[Any, ...]) -> list[str]:
    """Names of the fields of the model nested at `location` inside `model`."""
    for part in location:
        if isinstance(model, type) and issubclass(model, BaseModel) and part in model.model_fields:
            model = model.model_fields[part].annotation
        else:  # an index into a list or a key of a mapping: go on with its value type
            arguments = [a for a in getattr(model, "__args__", ()) if a is not type(None)]
            model = arguments[-1] if arguments else model
        while not isinstance(model, type) and len([a for a in model.__args__ if a is not type(None)]) == 1:
            model = next(a for a in model.__args__ if a is not type(None))
    return list(model.model_fields) if isinstance(model, type) and issubclass(model, BaseModel) else []


@contextmanager
def write_whole(path: str | Path, mode: str = "w") -> Iterator[IO[Any]]:
    """Open `path` for writing so that it is replaced whole at the end, or left as it was on any error.

    Raises:
        InputError: the file cannot be written there.
    """
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path}: is a folder; name a file")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from None
    encoding = None if "b" in mode else "utf-8"
    try:
        with os.fdopen(handle, mode, encoding=encoding) as stream:
            yield stream
        os.chmod(beside, 0o644)
        os.replace(beside, path)
    except BaseException:
        Path(beside).unlink(missing_ok=True)
        raise


def write_json(path: str | Path, data: Any) -> None:
    """Write `data` as indented JSON, whole or not at all. A non-finite number is written as null."""
    with write_whole(path) as stream:
        json.dump(_finite(data), stream, indent=2, allow_nan=False)
        stream.write("\n")


def _finite(data: Any) -> Any:
    if isinstance(data, float) and not math.isfinite(data):
        return None
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    return data
