"""The catalogue: cited, consistent, and equal to the published tables."""

import json
from pathlib import Path

import pandas as pd
import pytest
import yaml

from experiments.configuration import InputError
from logs.catalogue import FOLDER, load_catalogue, lookup

PUBLISHED = Path(__file__).parents[2] / "logs" / "published" / "marin"
SHARED = Path(__file__).parents[3] / "shared" / "public"
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


def test_an_unknown_name_gets_a_suggestion_or_the_list() -> None:
    with pytest.raises(
        InputError, match=r"did you mean marin-535b or .*`maquette logs list` shows all"
    ) as error:
        lookup("marin-535")
    assert "\n" not in str(error.value)
    with pytest.raises(InputError, match=r"it holds bloom-176b, llmc-gpt2-124m, .*smollm3-part1"):
        lookup("zzz")


@pytest.mark.parametrize("name", ENTRIES)
def test_the_numbers_of_an_entry_agree_with_each_other(name: str) -> None:
    entry, facts = ENTRIES[name], ENTRIES[name].run_facts
    assert facts.title
    if facts.tokens_per_step and facts.steps_planned and facts.tokens_planned:
        assert facts.tokens_planned == facts.steps_planned * facts.tokens_per_step
    if facts.tokens_per_step and facts.seq_len and facts.batch_sequences:
        assert facts.tokens_per_step == facts.seq_len * facts.batch_sequences
    if facts.schedule and facts.steps_planned:
        assert facts.schedule.total_steps == facts.steps_planned
    if facts.vocab_size and facts.params_embedding and facts.params_embedding % 1000:
        assert facts.params_embedding % facts.vocab_size == 0 or name == "bloom-176b"  # padded to 250,880
    if facts.steps_planned:
        assert all(event.step <= facts.steps_planned for event in entry.events)
    assert entry.wandb is None or f"maquette logs pull {name}" in entry.how_to_get


@pytest.mark.parametrize(
    ("name", "file", "column"),
    [
        (
            f"olmo-ladder-{size.lower()}-{length.lower()}",
            f"olmo-ladder/{size}-{length}.csv",
            "throughput/total_tokens",
        )
        for size, length in (
            ("190M", "0.5xC"),
            ("190M", "10xC"),
            ("370M", "2xC"),
            ("760M", "1xC"),
            ("1B", "1xC"),
        )
    ]
    + [("nemotron-3-super-100b", "nemotron/super_release_nvfp4_100B.csv", "tokens")],
)
def test_the_last_row_of_a_public_table_is_the_end_of_the_entry(name: str, file: str, column: str) -> None:
    if not (SHARED / file).is_file():
        pytest.skip(f"{SHARED / file} is not here")
    entry, facts = ENTRIES[name], ENTRIES[name].run_facts
    table = pd.read_csv(SHARED / file)
    step = table.iloc[:, 0]
    assert (step.iloc[-1], table[column].iloc[-1]) == (facts.steps_planned, facts.tokens_planned)
    assert (table[column] == step * facts.tokens_per_step).all()
    logged = {metric.logged_as for metric in entry.metrics.values()}
    assert logged <= set(table.columns) | {"lm loss", "mtp_1 loss"}


@pytest.mark.parametrize("size", ["130m", "300m", "520m", "1.2b"])
def test_the_speedruns_are_those_of_their_result_files(size: str) -> None:
    file = SHARED / "marin" / f"speedrun_{size.replace('.', '_')}.json"
    if not file.is_file():
        pytest.skip(f"{file} is not here")
    published = json.loads(file.read_text())["runs"][0]["run_info"]
    entry, facts = ENTRIES[f"marin-speedrun-{size}"], ENTRIES[f"marin-speedrun-{size}"].run_facts
    train, schedule = published["train_config"], facts.schedule
    assert (facts.params_total, facts.tokens_planned) == (published["model_size"], published["total_tokens"])
    assert (facts.steps_planned, facts.batch_sequences) == (
        train["num_train_steps"],
        train["train_batch_size"],
    )
    assert schedule is not None
    assert (schedule.peak_lr, schedule.warmup_steps) == (
        train["learning_rate"],
        train["optimizer_config"]["warmup"],
    )
    assert entry.wandb is not None
    address = f"{entry.wandb.entity}/{entry.wandb.project}/runs/{entry.segments[0].run}"
    assert published["wandb_run_link"] == f"https://wandb.ai/{address}"


def test_the_incidents_of_the_catalogue_stand_in_the_logs() -> None:
    file = SHARED / "megatron-golden" / "mixtral_8x7b_a100.json"
    if not file.is_file():
        pytest.skip(f"{file} is not here")
    loss = json.loads(file.read_text())["lm loss"]["values"]
    for event in ENTRIES["megatron-mixtral-8x7b"].events:
        if event.kind == "incident":
            before = float(loss[str(event.step - 10)])
            assert max(float(loss[str(event.step + i)]) for i in (-5, 0, 5)) > before + 0.05, event.step


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
        ({"segments": [{"run": "../a", "first": 0, "source": "x"}]}, "'../a' is no id of a W&B run"),
        ({"segments": []}, "no segment names a run of it"),
        ({"events": [{"step": 1, "kind": "party", "what": "x", "source": "x"}]}, "events.0.kind.*'launch'"),
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
