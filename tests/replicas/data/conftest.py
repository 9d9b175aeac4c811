"""A small real corpus and its shards: this project's own source text, cut into two domains."""

from pathlib import Path

import pytest
import yaml

from replicas.data.corpus import build_corpus
from replicas.data.shards import Shards, build_shards, open_shards
from replicas.data.sources import Sources, load_sources

ROOT = Path(__file__).parents[3]


def write_sources(folder: Path) -> Sources:
    """Folders of this repository as sources: `code` (the package `replicas`) and `prose` (its manuals)."""
    local = {"client": "local", "licence": "Apache-2.0"}
    code = {"path": str(ROOT / "replicas"), "include": ["*.py"], "split": "\n\ndef "}
    manuals = ["README.md", "CONTRIBUTING.md", "LICENSE"]
    prose = {"path": str(ROOT), "include": manuals, "split": "\n\n"}
    path = folder / "sources.yaml"
    path.write_text(yaml.safe_dump({"code": [local | code], "prose": [local | prose]}))
    return load_sources(path)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    build_corpus(write_sources(folder), folder / "corpus", megabytes_per_domain=1, downloads=folder / "none")
    return folder / "corpus"


@pytest.fixture(scope="session")
def shards(corpus: Path) -> Shards:
    build_shards(corpus, corpus.with_name("shards"), vocab_size=300, eval_fraction=0.1)
    return open_shards(corpus.with_name("shards"))
