import gzip
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from experiments.configuration import InputError
from replicas.data.cli import app
from replicas.data.corpus import build_corpus, read_documents, read_manifest
from replicas.data.output import whole_folder
from replicas.data.sources import Sources

from .archives import source_for, wheel


def local(folder: Path, texts: dict[str, str], **changes: object) -> dict[str, object]:
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return {"client": "local", "path": str(folder), "licence": "CC0-1.0"} | changes


def sources(**domains: list[dict[str, object]]) -> Sources:
    return Sources.model_validate({"domains": domains})


def long(word: str) -> str:
    return f"{word} " * 60 + word


def test_documents_carry_text_source_licence_and_path(tmp_path: Path) -> None:
    folder = local(tmp_path / "in", {"a.txt": long("a")})
    build_corpus(sources(x=[folder]), tmp_path / "out", 1)
    [document] = read_documents(tmp_path / "out", "x")
    assert vars(document) == {
        "text": long("a"),
        "source": folder["path"],
        "licence": "CC0-1.0",
        "path": "a.txt",
    }


def test_copies_and_short_texts_are_dropped_and_counted(tmp_path: Path) -> None:
    texts = {"a.txt": long("a"), "b.txt": long("a") + "\n\n", "c.txt": long("c"), "d.txt": "short"}
    one, two = local(tmp_path / "1", texts), local(tmp_path / "2", {"e.txt": long("c"), "f.txt": long("f")})
    manifest = build_corpus(sources(x=[one], y=[two]), tmp_path / "out", 1)
    assert manifest["domains"]["x"]["dropped"] == {"short": 1, "duplicate": 1}
    assert manifest["domains"]["y"]["dropped"] == {"duplicate": 1}
    assert [document.path for document in read_documents(tmp_path / "out", "y")] == ["f.txt"]


def test_the_manifest_counts_what_is_there(tmp_path: Path, corpus: Path) -> None:
    manifest = read_manifest(corpus, "maquette corpus")
    for domain, described in manifest["domains"].items():
        documents = list(read_documents(corpus, domain))
        assert described["documents"] == len(documents)
        assert described["bytes"] == sum(len(document.text.encode()) for document in documents)
        assert described["bytes"] == sum(source["bytes"] for source in described["sources"])
    assert manifest["bytes"] == sum(described["bytes"] for described in manifest["domains"].values())


def test_the_same_sources_give_the_same_bytes(tmp_path: Path) -> None:
    folder = local(tmp_path / "in", {f"{i}.txt": long(str(i)) for i in range(30)})
    for out in ("one", "two"):
        build_corpus(sources(x=[folder]), tmp_path / out, 1)
    for name in ("x.jsonl.gz", "manifest.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_a_smaller_cap_takes_a_part_of_what_a_larger_one_takes(tmp_path: Path) -> None:
    folder = local(tmp_path / "in", {f"{i}.txt": long(str(i)) for i in range(100, 200)})
    taken = {}
    for megabytes in (0.001, 0.004, 1):
        manifest = build_corpus(sources(x=[folder]), tmp_path / "out", megabytes)
        assert manifest["bytes"] <= 10**6 * megabytes
        taken[megabytes] = {document.path for document in read_documents(tmp_path / "out", "x")}
    assert len(taken[0.001]) == 4
    assert taken[0.001] < taken[0.004] < taken[1]
    assert len(taken[1]) == 100


def test_caps_of_sources_shrink_together(tmp_path: Path) -> None:
    texts = {f"{i}.txt": long(str(i)) for i in range(100, 200)}
    one = local(tmp_path / "1", texts, megabytes=0.009)
    two = local(tmp_path / "2", {f"{i}.txt": long(str(i)) for i in range(300, 400)}, megabytes=0.003)
    manifest = build_corpus(sources(x=[one, two]), tmp_path / "out", 0.004)
    first, second = (source["bytes"] for source in manifest["domains"]["x"]["sources"])
    assert 0.0028e6 < first <= 0.003e6
    assert 0.0008e6 < second <= 0.001e6


def test_a_package_is_read_from_the_downloads(tmp_path: Path) -> None:
    packed = wheel(tmp_path / "p-1-py3-none-any.whl", {"p/a.txt": long("a").encode(), "p/b.py": b"x"})
    package = source_for(packed, include=["*.txt"]).model_dump()
    manifest = build_corpus(sources(x=[package]), tmp_path / "out", 1, downloads=tmp_path)
    assert manifest["domains"]["x"]["sources"] == [
        {
            "name": "p==1",
            "client": "pip",
            "licence": "MIT",
            "sha256": package["sha256"],
            "documents": 1,
            "bytes": len(long("a")),
        }
    ]


def test_half_a_surrogate_pair_is_dropped_and_counted(tmp_path: Path) -> None:
    rows = [json.dumps({"text": long("a") + "\ud800"}), json.dumps({"text": long("b")})]
    folder = local(tmp_path / "in", {"a.jsonl": "\n".join(rows)})
    manifest = build_corpus(sources(x=[folder]), tmp_path / "out", 1)
    assert manifest["domains"]["x"]["dropped"] == {"not unicode": 1}


def test_an_empty_domain_is_refused_and_the_old_corpus_stays(tmp_path: Path) -> None:
    good, bad = local(tmp_path / "1", {"a.txt": long("a")}), local(tmp_path / "2", {"a.txt": "short"})
    build_corpus(sources(x=[good]), tmp_path / "out", 1)
    before = (tmp_path / "out" / "manifest.json").read_bytes()
    with pytest.raises(InputError, match="no file of 100 bytes or more matches"):
        build_corpus(sources(x=[good], y=[bad]), tmp_path / "out", 1)
    with pytest.raises(InputError, match="domain y is empty"):
        build_corpus(sources(x=[good], y=[good]), tmp_path / "out", 1)
    with pytest.raises(InputError, match="must be above 0"):
        build_corpus(sources(x=[good]), tmp_path / "out", float("nan"))
    assert (tmp_path / "out" / "manifest.json").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2", "out"]


def test_a_damaged_corpus_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"x\.jsonl\.gz: cannot be read"):
        list(read_documents(tmp_path, "x"))
    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(b'{"text": "a"}\n'))
    with pytest.raises(InputError, match="run `maquette corpus` again"):
        list(read_documents(tmp_path, "x"))
    (tmp_path / "manifest.json").write_text('{"format": 99}')
    with pytest.raises(InputError, match="not a manifest of format 1"):
        read_manifest(tmp_path, "maquette corpus")


def test_a_folder_replaced_when_killed_between_the_renames_comes_back(tmp_path: Path) -> None:
    (tmp_path / ".out.old").mkdir()
    (tmp_path / ".out.old" / "kept").touch()
    with pytest.raises(RuntimeError), whole_folder(tmp_path / "out"):
        raise RuntimeError
    assert (tmp_path / "out" / "kept").exists()


def test_the_commands_write_both_folders_and_print_json(tmp_path: Path) -> None:
    folder = local(tmp_path / "in", {f"{i}.txt": long(f"word{i}") for i in range(60)})
    (tmp_path / "sources.yaml").write_text(json.dumps({"x": [folder]}))
    run = CliRunner().invoke(
        app,
        ["corpus", "--sources", str(tmp_path / "sources.yaml"), "--out", str(tmp_path / "corpus"), "--json"],
    )
    assert run.exit_code == 0, run.stderr
    assert json.loads(run.stdout)["documents"] == 60
    arguments = [
        "--corpus",
        str(tmp_path / "corpus"),
        "--out",
        str(tmp_path / "shards"),
        "--vocab-size",
        "270",
    ]
    run = CliRunner().invoke(app, ["shards", *arguments])
    assert run.exit_code == 0, run.stderr
    assert "bytes/token" in run.stdout
    assert read_manifest(tmp_path / "shards", "maquette shards")["vocab_size"] == 270
