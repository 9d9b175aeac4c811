import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from experiments.configuration import InputError
from replicas.data.corpus import build_corpus, read_documents
from replicas.data.shards import Shards, build_shards, held_out_keys, open_shards, split_key
from replicas.data.sources import load_sources


def documents_of(shards: Shards, domain: str, split: str) -> list[str]:
    """Texts of a split, decoded from its tokens."""
    data, tokenizer = shards.splits[domain][split], shards.tokenizer()
    bounds = zip(data.offsets[:-1], data.offsets[1:], strict=True)
    return [tokenizer.decode(data.tokens[start : end - 1].tolist()) for start, end in bounds]


def test_every_document_is_in_one_split_word_for_word(corpus: Path, shards: Shards) -> None:
    for domain in shards.domains:
        written = [document.text for document in read_documents(corpus, domain)]
        train, held_out = documents_of(shards, domain, "train"), documents_of(shards, domain, "eval")
        assert sorted(train + held_out) == sorted(written)
        assert held_out


def test_manifest_counts_are_those_of_the_files(shards: Shards) -> None:
    for domain, splits in shards.manifest["domains"].items():
        for split, described in splits.items():
            data, texts = shards.splits[domain][split], documents_of(shards, domain, split)
            assert described["tokens"] == len(data.tokens)
            assert described["documents"] == len(texts) == int((data.tokens == 0).sum())
            assert described["bytes"] == sum(len(text.encode()) for text in texts)
            assert described["bytes"] == shards.token_bytes[data.tokens].sum()
            assert described["bytes_per_token"] == described["bytes"] / described["tokens"]


def test_about_the_asked_share_is_held_out(shards: Shards) -> None:
    for splits in shards.manifest["domains"].values():
        total = splits["train"]["bytes"] + splits["eval"]["bytes"]
        assert 0.1 <= splits["eval"]["bytes"] / total < 0.3  # one document more than asked at most


def test_equal_texts_never_straddle_the_splits() -> None:
    texts = [f"document {i % 40}" for i in range(400)]
    held = held_out_keys(texts, 0.2, "planted")
    train = {text for text in texts if split_key(text) not in held}
    assert len(train) == 32
    assert not train & {text for text in texts if split_key(text) in held}


def test_planted_copies_of_held_out_texts_do_not_reach_training(tmp_path: Path) -> None:
    """Every text is planted three times; no copy of a held-out text may be trained on."""
    texts = [f"{word} and some more words to make a document of it" for word in map(str, range(60))]
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": text * 3}) + "\n" for text in texts * 3))
    (tmp_path / "s.yaml").write_text(f"x: [{{client: local, path: {folder}, licence: CC0-1.0}}]")
    build_corpus(load_sources(tmp_path / "s.yaml"), tmp_path / "corpus", 1)
    assert len(list(read_documents(tmp_path / "corpus", "x"))) == 60
    build_shards(tmp_path / "corpus", tmp_path / "shards", 270, eval_fraction=0.2)
    opened = open_shards(tmp_path / "shards")
    train, held_out = documents_of(opened, "x", "train"), documents_of(opened, "x", "eval")
    assert len(train) + len(held_out) == 60
    assert not set(train) & set(held_out)


def test_the_tokenizer_never_sees_a_held_out_text(tmp_path: Path) -> None:
    """Two corpora that differ only in the held-out documents' words give the same tokenizer."""
    common = [f"the cat number {i} sat on the mat number {i * 7}, " * 3 + "so" for i in range(50)]
    tokenizers = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        held = held_out_keys(common, 0.1, "x")
        texts = [text if split_key(text) not in held else "" for text in common]
        secret = next(
            secret
            for i in range(10**6)
            if split_key(secret := f"{name}{i} zebra" * 90) < min(split_key(text) for text in common)
        )
        rows = [json.dumps({"text": text}) + "\n" for text in [*filter(None, texts), secret]]
        (folder / "a.jsonl").write_text("".join(rows))
        (folder / "s.yaml").write_text(f"x: [{{client: local, path: {folder}, licence: CC0-1.0}}]")
        build_corpus(load_sources(folder / "s.yaml"), folder / "corpus", 1)
        build_shards(folder / "corpus", folder / "shards", 280, eval_fraction=0.01)
        tokenizers.append((folder / "shards" / "tokenizer.json").read_text())
    assert tokenizers[0] == tokenizers[1]
    assert "zeb" not in tokenizers[0]


def test_the_same_corpus_gives_the_same_bytes_and_version(
    corpus: Path, shards: Shards, tmp_path: Path
) -> None:
    manifest = build_shards(corpus, tmp_path / "again", vocab_size=300, eval_fraction=0.1)
    assert manifest["sha256"] == shards.version
    for path in shards.path.rglob("*"):
        if path.is_file():
            assert path.read_bytes() == (tmp_path / "again" / path.relative_to(shards.path)).read_bytes()


def test_the_version_changes_with_the_data(corpus: Path, shards: Shards, tmp_path: Path) -> None:
    assert build_shards(corpus, tmp_path / "other", 300, eval_fraction=0.11)["sha256"] != shards.version


def test_a_large_vocabulary_is_stored_in_four_bytes(shards: Shards) -> None:
    assert shards.splits["code"]["train"].tokens.dtype == np.uint16
    assert shards.manifest["dtype"] == "uint16"


def test_damaged_shards_are_refused(shards: Shards, tmp_path: Path) -> None:
    shutil.copytree(shards.path, tmp_path / "cut")
    path = tmp_path / "cut" / "train" / "code.bin"
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(InputError, match=r"damaged shards \(train/code\.bin has \d+ tokens\)"):
        open_shards(tmp_path / "cut")
    path.unlink()
    with pytest.raises(InputError, match="damaged shards"):
        open_shards(tmp_path / "cut")


def test_wrong_numbers_and_missing_folders_are_refused_and_leave_nothing(
    corpus: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="`maquette corpus` makes it"):
        build_shards(tmp_path / "none", tmp_path / "out", 300)
    with pytest.raises(InputError, match="evaluation fraction must lie between 0 and 1"):
        build_shards(corpus, tmp_path / "out", 300, eval_fraction=1)
    with pytest.raises(InputError, match="too few to hold out"):
        build_shards(corpus, tmp_path / "out", 300, eval_fraction=0.9999)
    with pytest.raises(InputError, match="lower the vocabulary size"):
        build_shards(corpus, tmp_path / "out", 10**6)
    assert not list(tmp_path.iterdir())
