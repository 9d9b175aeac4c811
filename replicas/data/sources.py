"""What a corpus is made of, as configuration: packages or local folders per domain, pinned and licensed.

The file (`experiments/sources.yaml`) is a mapping of domain names to lists of `Source`.
"""

import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from experiments.configuration import Config, InputError, parse, read_yaml

Client = Literal["pip", "npm", "local"]
Reading = Literal["text", "docstrings", "literals", "json", "gettext"]

_PACKAGE_KEYS = ("package", "version", "file", "sha256")


class Source(Config):
    """One package or local folder and which of its files become documents, and how.

    Attributes:
        client: `pip` (a wheel), `npm` (a registry tarball) or `local` (a folder on this machine).
        package, version, file, sha256: what to download, the archive's file name and its content hash.
        path: the folder of a local source, relative to the current directory.
        licence: SPDX name of the text's licence, kept with every document.
        include, exclude: globs over the paths inside the archive or folder; `*` also crosses folders.
        read: `text` as it stands (code, reST, Markdown, prose), `docstrings` of Python modules, long string
            `literals` of Python modules, `json` (a list of texts, or of objects with a `field`), `gettext`
            (the translations in a compiled `.mo` catalogue). Local `.jsonl` and `.parquet` files are read
            by their `field` whatever is said here.
        field: the JSON key or Parquet column with the text.
        split: a regular expression; a file is cut before each match, each piece is a document.
        megabytes: at most this much text (10^6 bytes) from this source, before the domain's cap.
    """

    client: Client
    licence: str = Field(min_length=1)
    package: str | None = Field(default=None, pattern=r"^[A-Za-z0-9@][A-Za-z0-9._@/-]*$")
    version: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9.+!_-]*$")
    file: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_][A-Za-z0-9._+-]*\.(whl|tgz)$")
    sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    path: str | None = None
    include: list[str] = Field(default=["*.txt", "*.jsonl", "*.parquet"], min_length=1)
    exclude: list[str] = Field(default=[])
    read: Reading = "text"
    field: str | None = None
    split: str | None = None
    megabytes: float | None = Field(default=None, gt=0)

    @field_validator("split")
    @classmethod
    def _compiles(cls, pattern: str | None) -> str | None:
        try:
            re.compile(pattern or "")
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from None
        return pattern

    @model_validator(mode="after")
    def _complete(self) -> Self:
        given = [key for key in _PACKAGE_KEYS if getattr(self, key) is not None]
        if self.client == "local":
            if self.path is None or given:
                raise ValueError("a local source has a `path` and none of package, version, file, sha256")
            return self
        if self.path is not None or len(given) < len(_PACKAGE_KEYS):
            raise ValueError(
                f"a {self.client} source needs package, version, file and sha256, and has no `path`"
            )
        ending = {"pip": ".whl", "npm": ".tgz"}[self.client]
        if not str(self.file).endswith(ending):
            # pip runs a source distribution's own build code just to download it, so only wheels are taken
            raise ValueError(f"`file` of a {self.client} source must be a {ending} file")
        return self

    @property
    def name(self) -> str:
        """How the source is called in documents and messages: `package==version` or the folder."""
        return f"{self.package}=={self.version}" if self.package else str(self.path)

    def takes(self, path: str) -> bool:
        """Whether the file `path` inside the source is among those to read."""
        return any(fnmatchcase(path, glob) for glob in self.include) and not any(
            fnmatchcase(path, glob) for glob in self.exclude
        )


class Sources(Config):
    """The sources of every domain, in the order of the file."""

    domains: dict[str, list[Source]] = Field(min_length=1)

    @field_validator("domains")
    @classmethod
    def _named(cls, domains: dict[str, list[Source]]) -> dict[str, list[Source]]:
        for name, sources in domains.items():
            if not re.fullmatch(r"[a-z][a-z0-9_-]*", name):
                raise ValueError(
                    f"domain {name!r}: use small letters, digits, - and _, starting with a letter"
                )
            if not sources:
                raise ValueError(f"domain {name!r} has no sources")
        pinned: dict[str, Source] = {}
        for source in (source for listed in domains.values() for source in listed if source.file):
            first = pinned.setdefault(str(source.file), source)
            if any(getattr(first, key) != getattr(source, key) for key in ("client", *_PACKAGE_KEYS)):
                raise ValueError(f"{source.file} is pinned in two different ways")
        return domains


def load_sources(path: str | Path) -> Sources:
    """The sources file `path`, checked.

    Raises:
        InputError: no such file, an unknown key, an incomplete source or a local folder that is not there.
    """
    content = read_yaml(path)
    try:
        sources = parse(Sources, {"domains": content}, str(path))
    except InputError as error:  # the file has no key `domains`, so no message may speak of it
        raise InputError(str(error).replace("`domains.", "`").replace("`domains`: ", "")) from None
    for domain, entries in sources.domains.items():
        for source in entries:
            if source.path is not None and not Path(source.path).is_dir():
                raise InputError(f"{path}: domain {domain}: no folder {source.path}")
    return sources
