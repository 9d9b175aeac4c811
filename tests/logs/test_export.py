"""Exports for TensorBoard and W&B, read back by TensorBoard and by W&B's own messages."""

import math
import struct
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from experiments.configuration import InputError
from logs.export import export
from logs.ingest import read_logs
from logs.parsing.tfrecords import masked_checksum
from logs.schema import Run, RunFacts, Segment, make_table, metric_column
from logs.store import write_run

PUBLISHED = Path(__file__).parents[2] / "logs" / "published" / "marin"


@pytest.fixture(scope="module")
def hero() -> Run:
    (run,) = read_logs(PUBLISHED / "marin_hero_train.csv", "hero").runs
    return run


def forked() -> Run:
    rows = pd.DataFrame({"step": [0, 1, 2, 1, 2], "segment": ["a", "a", "a", "b/1", "b/1"]})
    rows["wall_time"] = pd.array([1.7e9, None, 1.7e9 + 2, 1.7e9 + 3, 1.7e9 + 4], "Float64")
    rows["train/loss"] = metric_column([3.0, math.nan, 2.5, None, -math.inf])
    rows["empty"] = metric_column([None, None, None, None, 1e-30])
    return Run(
        "own/forked",
        make_table(rows, "own/forked"),
        {"train/loss": "nats/token", "empty": "unknown"},
        facts=RunFacts(title="forked", seq_len=64),
        segments=(
            Segment(id="a", first_step=0, last_step=2),
            Segment(id="b/1", first_step=1, last_step=2, parent="a"),
        ),
    )


def tensorboard_scalars(folder: Path) -> dict[str, list[tuple[float, int, float]]]:
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulators.EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0}).Reload()
    return {
        tag: [(event.wall_time, event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def test_checksums_are_those_of_the_standard() -> None:
    def plain(data: bytes) -> int:
        rotated = (masked_checksum(data) - 0xA282EAD8) & 0xFFFFFFFF
        return (rotated >> 17 | rotated << 15) & 0xFFFFFFFF

    assert plain(bytes(32)) == 0x8A9136AA  # RFC 3720, appendix B.4
    assert plain(b"\xff" * 32) == 0x62A8AB43
    assert plain(bytes(range(32))) == 0x46DD794E
    assert plain(b"123456789") == 0xE3069283


def test_tensorboard_reads_what_was_written(hero: Run, tmp_path: Path) -> None:
    assert export(hero, "tensorboard", tmp_path / "hero") == len(hero.lineage())
    found = tensorboard_scalars(tmp_path / "hero")
    assert set(found) == set(hero.metrics)
    for metric in hero.metrics:
        series = hero.series(metric)
        assert [step for _, step, _ in found[metric]] == series["step"].tolist()
        assert [value for _, _, value in found[metric]] == series["value"].astype(np.float32).tolist()


def test_a_raw_export_has_one_tensorboard_run_per_segment(tmp_path: Path) -> None:
    export(forked(), "tensorboard", tmp_path / "raw", raw=True)
    assert sorted(path.name for path in (tmp_path / "raw").iterdir()) == ["a", "b-1"]
    first = tensorboard_scalars(tmp_path / "raw" / "a")["train/loss"]
    assert [event[:2] for event in first] == [(1.7e9, 0), (0.0, 1), (1.7e9 + 2, 2)]
    assert [event[2] for event in first] == pytest.approx([3.0, math.nan, 2.5], nan_ok=True)
    export(forked(), "tensorboard", tmp_path / "lineage")
    assert tensorboard_scalars(tmp_path / "lineage") == {
        "train/loss": [(1.7e9, 0, 3.0), (1.7e9 + 4, 2, -math.inf)],
        "empty": [(1.7e9 + 4, 2, np.float32(1e-30))],
    }


def test_the_same_run_gives_the_same_event_file(tmp_path: Path) -> None:
    for name in ("one", "two"):
        export(forked(), "tensorboard", tmp_path / name)
    files = [list((tmp_path / name).iterdir()) for name in ("one", "two")]
    assert files[0][0].name == files[1][0].name
    assert files[0][0].read_bytes() == files[1][0].read_bytes()


def wandb_history(folder: Path) -> tuple[dict, list[dict]]:
    """Configuration and rows of an offline run: records of a LevelDB log that hold W&B's messages."""
    import json

    from wandb.proto import wandb_internal_pb2

    (file,) = folder.rglob("*.wandb")
    data, at, whole = file.read_bytes(), 7, b""
    config: dict = {}
    rows: list[dict] = []
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + 7])
        whole = (b"" if kind in (1, 2) else whole) + data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind not in (1, 4):
            continue
        record = wandb_internal_pb2.Record.FromString(whole)
        config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
        if record.HasField("history"):
            cells = {".".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.history.item}
            rows.append(cells)
    return config, rows


def test_an_offline_wandb_run_holds_the_lineage(
    hero: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    export(hero, "wandb", tmp_path / "hero")
    config, rows = wandb_history(tmp_path / "hero" / "wandb" / "latest-run")
    assert [path.name for path in tmp_path.iterdir()] == ["hero"]
    assert config["seq_len"] == hero.facts.seq_len
    for metric in hero.metrics:
        series = hero.series(metric)
        logged = [(row["_step"], row[metric]) for row in rows if metric in row]
        assert logged == list(zip(series["step"], series["value"], strict=True))


def test_a_service_that_takes_no_run_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_API_KEY", "too-short")
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    with pytest.raises(
        InputError, match=r"W&B takes no run \(.*; without WANDB_MODE=online it is written here"
    ):
        export(forked(), "wandb", tmp_path / "wandb")
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_exported_is_said(tmp_path: Path) -> None:
    run = forked()
    write_run(run, tmp_path)
    with pytest.raises(InputError, match="W&B takes one row per step; leave out --raw"):
        export(run, "wandb", tmp_path / "wandb", raw=True)
    for kind in ("tensorboard", "wandb"):
        with pytest.raises(InputError, match=f"{kind} needs a folder that is new or empty"):
            export(run, kind, tmp_path / "own")
        (tmp_path / "file").write_text("kept")
        with pytest.raises(InputError, match="new or empty"):
            export(run, kind, tmp_path / "file")
        with pytest.raises(InputError, match="cannot be written"):
            export(run, kind, Path("/proc/nothing/here"))
    assert (tmp_path / "file").read_text() == "kept"
