"""The published Marin run, read from the tables in the project, against what the team published of it."""

import hashlib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from experiments.configuration import InputError
from logs.ingest import read_logs
from logs.readers import NotALog
from logs.schema import Run

PUBLISHED = Path(__file__).parents[2] / "logs" / "published" / "marin"
SHARED = Path(__file__).parents[3] / "shared" / "public" / "marin"


@pytest.fixture(scope="module")
def runs() -> dict[str, Run]:
    return {run.name: run for run in read_logs(PUBLISHED).runs}


@pytest.fixture(scope="module")
def hero(runs: dict[str, Run]) -> Run:
    return runs["marin-535b"]


def test_the_folder_holds_the_run_and_its_four_rungs(runs: dict[str, Run]) -> None:
    assert sorted(runs) == ["marin-535b", "marin-d1024", "marin-d1536", "marin-d2048", "marin-d768"]


def test_seven_forks_are_one_lineage_with_the_published_learning_rate(hero: Run) -> None:
    lr = hero.series("lr")
    assert lr["step"].is_unique
    assert len(hero.segments) == 7
    assert lr["segment"].nunique() >= 5
    peak, warmup, total = 0.003290470163, 3902, 390251
    step = lr["step"].to_numpy(float)
    linear = 1 - 0.95 * (step - warmup) / (total - warmup)
    planned = np.where(step < warmup, peak * step / warmup, peak * linear)
    np.testing.assert_allclose(lr["value"], planned, rtol=1e-4)
    assert hero.lineage()["step"].is_unique


def test_every_step_belongs_to_the_run_that_the_team_spliced_it_from(hero: Run) -> None:
    table = pd.read_csv(PUBLISHED / "marin_hero_train.csv")  # holds lineage rows only
    owner = hero.lineage().set_index("step")["segment"]
    assert (owner[table["step"]].to_numpy() == table["wandb_run_segment"].to_numpy()).all()


def test_rows_that_parents_logged_after_the_fork_are_kept_but_do_not_count(hero: Run) -> None:
    overlap = pd.read_csv(PUBLISHED / "marin_hero_train_overlap.csv")
    assert sum(quirk.count for quirk in hero.quirks if quirk.kind == "overlap") == len(overlap) == 45
    at = hero.table[hero.table["step"] == 108000].set_index("segment")["train/loss"]
    assert at["hero-ragged_a2a-nccl2307-ep-step81k"] == 1.2241594791412354
    assert at["hero-mix-996f4891-step108k"] == 1.246125340461731
    loss = hero.series("train/loss").set_index("step")["value"]
    assert loss[108000] == 1.246125340461731
    assert loss[121688] == 1.2109663486480713


def test_tokens_are_those_of_the_step_done(hero: Run) -> None:
    rows = hero.lineage()
    assert (rows["tokens"] == (rows["step"] + 1) * 46137344).all()
    assert any("tokens = (step + 1) * 46137344" in statement for statement in hero.inferred)


def test_exact_values_win_over_rounded_ones_of_the_same_step(hero: Run) -> None:
    loss = hero.series("train/loss").set_index("step")["value"]
    assert loss[0] == 11.801494598388672  # 11.80149 in marin_hero_train_ce.csv
    assert 9000 in loss.index  # only there


def test_evaluations_with_and_without_drops_stay_apart(hero: Run) -> None:
    dropless = hero.series("eval/paloma_macro/loss").set_index("step")["value"]
    with_drops = hero.series("eval/paloma_macro_with_drops/loss").set_index("step")["value"]
    assert len(dropless) == 67
    assert with_drops.index.max() == 56999
    assert dropless[56999] == 2.252458333969116
    assert with_drops[56999] == 2.442978858947754
    assert round(dropless[59999], 4) == 2.2442
    assert round(dropless[149999], 4) == 2.1961
    bpb = hero.series("eval/paloma_macro/loss_bpb").set_index("step")["value"]
    assert round(bpb[197999], 4) == 0.7851
    assert hero.units["eval/paloma_macro/loss_bpb"] == "bits/byte"


def test_evaluations_inherited_by_a_fork_fill_its_parents_steps(hero: Run) -> None:
    series = hero.series("eval/paloma_macro/loss").set_index("step")
    assert series.loc[119999, "segment"] == "hero-nopdl-step108k"
    assert series.loc[119999, "value"] == 2.2088027000427246
    assert [quirk.count for quirk in hero.quirks if quirk.kind == "inherited_history"] == [12]


@pytest.mark.parametrize(
    ("rung", "points", "last_step", "last_loss"),
    [("d768", 20, 11419, 3.015353202819824), ("d1536", 21, 15127, 2.5637738704681396)],
)
def test_rungs(runs: dict[str, Run], rung: str, points: int, last_step: int, last_loss: float) -> None:
    series = runs[f"marin-{rung}"].series("eval/paloma_macro/loss")
    assert len(series) == points
    assert series.iloc[-1][["step", "value"]].tolist() == [last_step, last_loss]
    facts = runs[f"marin-{rung}"].facts
    assert series["tokens"].iloc[-1] == facts.tokens_planned == (last_step + 1) * facts.tokens_per_step


def test_the_carried_tables_are_the_published_ones() -> None:
    if not SHARED.is_dir():
        pytest.skip(f"{SHARED} is not here")
    names = sorted(path.name for path in SHARED.glob("marin_*.csv"))
    assert names == sorted(path.name for path in PUBLISHED.glob("*.csv"))
    for name in names:
        hashes = {hashlib.sha256((folder / name).read_bytes()).hexdigest() for folder in (SHARED, PUBLISHED)}
        assert len(hashes) == 1, name


def test_a_table_beside_the_logs_is_named_for_what_it_is() -> None:
    with pytest.raises(NotALog, match="not a training log"):
        read_logs(PUBLISHED / "marin_hero_events.csv")


def test_a_table_that_was_cut_off_is_an_error(tmp_path: Path) -> None:
    text = (PUBLISHED / "marin_hero_train.csv").read_text()
    lines = text.splitlines()[:20]
    lines[-1] = lines[-1][:40]
    path = tmp_path / "cut.csv"
    path.write_text("\n".join(lines))
    with pytest.raises(InputError, match="line 20"):
        read_logs(path)
