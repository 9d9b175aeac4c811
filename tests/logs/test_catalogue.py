"""The catalogue: cited, consistent, and equal to the published tables."""

from pathlib import Path

import pandas as pd
import pytest
import yaml

from experiments.configuration import InputError
from logs.catalogue import FOLDER, load_catalogue, lookup

PUBLISHED = Path(__file__).parents[2] / "logs" / "published" / "marin"
ENTRIES = load_catalogue()


@pytest.mark.parametrize("rung", ["d768", "d1024", "d1536", "d2048", "d6144"])
def test_facts_are_the_published_ones(rung: str) -> None:
    row = pd.read_csv(PUBLISHED / "marin_ladder_config.csv").set_index("rung").loc[rung]
    facts = lookup("marin-535b" if rung == "d6144" else f"marin-{rung}").run_facts
    assert facts.params_total == row["total_params_matrices_plus_embed"]
    assert facts.params_active == row["active_params_nonembed"]
    assert facts.tokens_per_step == row["batch_seqs"] * row["seq_len"]
    assert facts.tokens_planned == row["tokens"] == facts.steps_planned * facts.tokens_per_step
    assert facts.train_flops_per_token * facts.tokens_per_step == pytest.approx(
        row["flops_per_step_no_lm_head"], rel=1e-10
    )
    assert facts.schedule is not None
    assert facts.schedule.peak_lr == pytest.approx(row["peak_muonh_lr"], rel=1e-4)
    assert facts.schedule.total_steps == row["steps"]
    assert facts.schedule.warmup_steps == int(0.01 * row["steps"])
    assert facts.params_embedding == facts.params_lm_head == 128256 * row["hidden"]


def test_events_are_those_of_the_published_table() -> None:
    table = pd.read_csv(PUBLISHED / "marin_hero_events.csv")
    events = lookup("marin-535b").events
    assert [event.step for event in events] == table["step"].tolist()
    assert [event.what for event in events] == table["event"].tolist()


def test_every_run_that_is_spliced_is_one_of_the_published_segments() -> None:
    table = pd.read_csv(PUBLISHED / "marin_hero_train.csv")
    steps = table.groupby("wandb_run_segment")["step"].agg(["min", "max"])
    segments = {segment.run: segment for segment in lookup("marin-535b").segments}
    assert set(segments) == set(steps.index)
    for run, (first, last) in zip(steps.index, steps.to_numpy(), strict=True):
        assert segments[run].first <= first
        assert segments[run].end is None or last < segments[run].end


def test_an_unknown_name_gets_a_suggestion_and_the_list() -> None:
    with pytest.raises(
        InputError, match=r"did you mean marin-535b.*it holds marin-535b, marin-d1024"
    ) as error:
        lookup("marin-535")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"licens": "x"}, "`licens` is not a known key; did you mean `licence`"),
        ({"facts": {"params": {"value": 1, "source": "x"}}}, "`params` is not a known key"),
        ({"facts": {"params_total": {"value": "many", "source": "x"}}}, "params_total"),
        ({"facts": {"params_total": {"value": 1}}}, "source` is missing"),
        ({"facts": {"params_total": {"value": 1, "source": ""}}}, "source"),
        ({"segments": [{"run": "a", "first": 0, "source": "x", "end": 5}]}, "must not have an `end`"),
        (
            {
                "segments": [
                    {"run": "a", "first": 0, "end": 5, "source": "x"},
                    {"run": "b", "first": 6, "source": "x"},
                ]
            },
            "ends at 5 but b begins at 6",
        ),
        ({"segments": [{"run": "a", "first": 0, "parent": "z", "source": "x"}]}, "is no segment"),
        ({"name": "other"}, "must be the file's name"),
        (
            {"metrics": {"x": {"logged_as": "x", "unit": "miles", "meaning": "m", "source": "x"}}},
            "unit 'miles'; allowed: nats/token",
        ),
    ],
)
def test_a_faulty_entry_is_an_error_that_names_it(tmp_path: Path, change: dict, message: str) -> None:
    data = yaml.safe_load((FOLDER / "marin-d768.yaml").read_text())
    (tmp_path / "marin-d768.yaml").write_text(yaml.safe_dump(data | change))
    with pytest.raises(InputError, match=message):
        load_catalogue(tmp_path)
