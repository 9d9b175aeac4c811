"""W&B's files: chart exports, history artifacts and offline runs, the latter written by W&B itself."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.configuration import InputError
from logs.ingest import ingest, read_logs
from logs.readers import take_sample, wandb_offline
from logs.schema import Run

SHARED = Path(__file__).parents[3] / "shared" / "public" / "wandb-export"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason=f"the public logs ({SHARED}) are not here")
COUNTER = "W&B's counter `{}` of logged rows; it need not be the iteration"


def ends(run: Run, metric: str = "train/loss") -> list[tuple[int, float]]:
    series = run.series(metric)
    return [(int(series["step"].iloc[i]), round(float(series["value"].iloc[i]), 4)) for i in (0, -1)]


@needs_shared
def test_the_exported_charts_are_the_published_runs() -> None:
    (smollm,) = read_logs(SHARED / "smollm3_part1.csv").runs
    assert (smollm.name, ends(smollm)) == ("smollm3_part1", [(4, 12.1718), (42509, 2.3295)])
    assert smollm.facts.title == "17/04/2025_22:06:37_elie-48n-1704-part1_tp_group_0"
    assert smollm.inferred == (f"step = {COUNTER.format('Step')}",)
    runs = {run.facts.title: run for run in read_logs(SHARED / "nanogpt_8_runs.csv").runs}
    theirs = pd.read_csv(SHARED / "nanogpt_8_runs.csv")
    assert len(runs) == 8
    assert [value for _, value in ends(runs["gpt2"])] == [10.954, 3.2849]
    for title, run in runs.items():
        logged = theirs[["Step", f"{title} - train/loss"]].dropna()
        assert run.series("train/loss")[["step", "value"]].to_numpy().tolist() == logged.to_numpy().tolist()


EXPORT = (
    '"Step","a/../../x: 1 - loss","a/../../x: 1 - loss__MIN","a/../../x: 1 - loss__MAX",'
    '"a - ..  x - loss","a - ..  x - loss__MIN","a - ..  x - loss__MAX"\n'
    '"0","3.5","3.0","4.0","","",""\n"20","3.25","3.25","3.25","2","2","2"\n'
)


def test_names_in_an_export_stay_below_its_place_in_the_store(tmp_path: Path) -> None:
    (tmp_path / "chart.csv").write_text(EXPORT)
    store = tmp_path / "in" / "store"
    runs = ingest(tmp_path / "chart.csv", root=store).runs
    assert {run.name for run in runs} == {"chart/a-..-..-x-1", "chart/a---..-x"}
    written = sorted(path for path in tmp_path.rglob("log.parquet"))
    assert len(written) == 2
    assert all(path.is_relative_to(store / "chart") for path in written)
    named = ingest(tmp_path / "chart.csv", "mine", root=store).runs
    assert all(run.name.startswith("mine/a-") for run in named)


def test_a_sampled_export_says_so_and_keeps_its_bounds(tmp_path: Path) -> None:
    (tmp_path / "chart.csv").write_text(EXPORT)
    first, other = read_logs(tmp_path / "chart.csv").runs
    quirk = next(quirk for run in (first, other) for quirk in run.quirks if quirk.kind == "sampled_history")
    assert quirk.count == 1
    sampled = next(run for run in (first, other) if len(run.table) == 2)
    assert sampled.series("train/loss__MIN")["value"].tolist() == [3.0, 3.25]


def test_a_step_of_the_runs_own_is_preferred_to_the_counter(tmp_path: Path) -> None:
    columns = ["r - loss", "r - trainer/global_step"]
    header = ",".join(["Step", *(f"{name}{end}" for name in columns for end in ("", "__MIN", "__MAX"))])
    (tmp_path / "chart.csv").write_text(f"{header}\n0,3.5,3.5,3.5,50,50,50\n1,3.25,3.25,3.25,100,100,100\n")
    (run,) = read_logs(tmp_path / "chart.csv").runs
    assert run.series("train/loss")["step"].tolist() == [50, 100]
    assert run.series("Step")["value"].tolist() == [0, 1]
    assert run.inferred == ("step = the run's own `trainer/global_step`; W&B's counter is kept as `Step`",)
    (tmp_path / "chart.csv").write_text(
        header.replace("Step", "Relative Time (Process)") + "\n0.5,1,1,1,2,2,2\n"
    )
    with pytest.raises(InputError, match=r"Relative Time.*export it over steps"):
        read_logs(tmp_path / "chart.csv")


def history(own: list[float | None]) -> pa.Table:
    clock = pa.array([1.5, 2.5, 3.5])
    columns = {
        "_step": pa.array([0, 1, 2]),
        "_timestamp": clock,
        "_runtime": clock,
        "global_step": pa.array(own),
    }
    bins = pa.array([None, {"bins": 2.0, "note": "x"}, None])
    return pa.table({**columns, "train/loss": pa.array([3.0, float("nan"), None]), "hist": bins})


def test_a_history_artifact_keeps_every_row(tmp_path: Path) -> None:
    path = tmp_path / "run.history.parquet"
    pq.write_table(history([0.0, None, 20.0]), path)
    (run,) = read_logs(path).runs
    assert run.table["step"].tolist() == [0, 1, 2]
    assert run.table["wall_time"].tolist() == [1.5, 2.5, 3.5]
    assert np.isnan(run.series("train/loss")["value"].iloc[1])
    assert run.series("hist/bins")["value"].tolist() == [2.0]
    assert run.inferred == (f"step = {COUNTER.format('_step')}",)
    assert [source.reader for source in run.sources] == ["wandb-history"]
    pq.write_table(history([0.0, 10.0, 20.0]), path)
    (run,) = read_logs(path).runs
    assert run.table["step"].tolist() == [0, 10, 20]
    assert run.series("_step")["value"].tolist() == [0, 1, 2]


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A `.wandb` file of 300 rows that W&B wrote, so long that some records lie across its blocks."""
    folder = tmp_path_factory.mktemp("wandb")
    script = (
        "import wandb\n"
        f"run = wandb.init(mode='offline', dir={str(folder)!r}, project='p', name='my run', settings=wandb.Settings("
        "x_disable_stats=True, x_disable_meta=True, silent=True, disable_git=True))\n"
        "for i in range(300):\n"
        "    run.log({'train/loss': 5 - i / 100, 'nested': {'inner': i}, 'long': 'x' * (i % 7 * 200),\n"
        "             'bad': float('nan') if i % 2 else float('inf')}, step=2 * i)\n"
        "run.finish()\n"
    )
    environment = {
        "WANDB_ERROR_REPORTING": "false",
        "WANDB_SILENT": "true",
        "HOME": str(folder),
        "PATH": "/usr/bin:/bin",
    }
    subprocess.run(
        [sys.executable, "-c", script], check=True, env=environment, capture_output=True, timeout=120
    )
    (path,) = folder.rglob("*.wandb")
    return path


def test_wandb_writes_what_we_read(offline: Path) -> None:
    (run,) = read_logs(offline).runs
    assert run.facts.title == "my run"
    loss = run.series("train/loss")
    assert loss["value"].tolist() == [5 - i / 100 for i in range(300)]
    assert loss["step"].tolist() == list(range(0, 600, 2))
    assert run.series("nested/inner")["value"].tolist() == list(range(300))
    bad = run.series("bad")["value"].to_numpy()
    assert np.isinf(bad[::2]).all()
    assert np.isnan(bad[1::2]).all()
    assert {quirk.kind: quirk.count for quirk in run.quirks} == {
        "thinned": 300,
        "non_finite": 300,
        "text_value": 257,
    }


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_any_damage_to_an_offline_run_is_counted_or_refused(
    offline: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    content = bytearray(offline.read_bytes())
    at = data.draw(st.integers(7, len(content) - 1))
    if data.draw(st.booleans()):
        del content[at:]
    else:
        content[at] ^= data.draw(st.integers(1, 255))
    path = tmp_path_factory.mktemp("damaged") / "run.wandb"
    path.write_bytes(content)
    rows, refused, quirks = 0, "", set()
    assert wandb_offline.matches(take_sample(path))
    try:
        (run,) = wandb_offline.read(path)
        rows, quirks = len(run.table), {quirk.kind for quirk in run.quirks}
    except InputError as error:
        refused = str(error)
    assert (
        rows == 300
        or refused
        or quirks & {"torn_tail", "bad_checksum"}
        or len(content) < offline.stat().st_size
    )
