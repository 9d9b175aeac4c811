"""params.yaml and profiles: every run they describe can be planned, and mistakes in them are named."""

import shutil
import subprocess
from pathlib import Path

import pytest

from experiments.configuration import InputError
from experiments.pipeline import reproduce
from experiments.study import check_study, load_study

ROOT = Path(__file__).parents[2]
PROFILES = sorted(path.stem for path in (ROOT / "experiments/profiles").glob("*.yaml"))


@pytest.fixture
def folder(tmp_path):
    """A copy of the study's configuration."""
    shutil.copy(ROOT / "params.yaml", tmp_path)
    shutil.copytree(ROOT / "experiments/profiles", tmp_path / "experiments/profiles")
    return tmp_path


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


@pytest.mark.parametrize("profile", PROFILES)
def test_every_run_of_every_profile_can_be_planned(folder, profile):
    from replicas.published import load_published
    from replicas.training.experiment import plan_experiment

    edit(folder / "params.yaml", "profile: laptop", f"profile: {profile}")
    study = load_study(folder)
    assert PROFILES == ["cluster", "gpu", "laptop", "smoke"]
    for name in study.names():
        experiment = study.experiment(name)
        plan = plan_experiment(
            experiment, load_published(experiment.public_run), study.profile.shards.vocab_size
        )
        assert plan.steps > 10
        assert plan.config.d_model == experiment.width


def test_the_laptop_ladder_stays_below_the_published_widths_and_trains_long_enough():
    study = load_study(ROOT)
    rungs = study.profile.rungs
    assert all(rung.width < 512 and rung.tokens_per_active_param >= 20 for rung in rungs.values())


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("params.yaml", "profile: laptop", "profile: lapdog", "no profile 'lapdog'; there are cluster, gpu"),
        ("params.yaml", "public_run: marin-535b", "public_run: marin", "did you mean `marin-535b`"),
        (
            "params.yaml",
            "public_run: marin-535b",
            "public_run: delphi",
            "`public_run`: no run 'delphi' with both",
        ),
        ("params.yaml", "public_run: marin-535b", "public_run: marin-d768", "there are marin-535b"),
        (
            "params.yaml",
            "public_run: marin-535b",
            "public_run: 'x; touch y'",
            "`public_run`: no run 'x; touch y'",
        ),
        ("params.yaml", "code: 0.6", "code: 0.7", "'code-heavy' must sum to 1, not 1.1"),
        ("params.yaml", "code: 0.6", "code: -0.6", "'code-heavy' may not be negative"),
        ("params.yaml", "  prose-heavy: {", "  a;touch b: {}\n  prose-heavy: {", "use small letters"),
        (
            "params.yaml",
            "seeds: [0, 1]",
            "seeds: [0, 0.5]",
            "`ablation.seeds.1`: Input should be a valid integer (found 0.5)\n",
        ),
        ("params.yaml", "seeds: [0, 1]", "seeds: []", "`ablation.seeds`: Tuple should have at least 1 item"),
        ("params.yaml", "seeds: [0, 1]", "seeds: [0, 0]", "`seeds` lists one of its values twice"),
        ("params.yaml", ", code-heavy, prose-heavy]", "]", "`ablation.mixtures`"),
        ("params.yaml", "baseline: balanced", "baseline: none", "`baseline` must be one of"),
        ("params.yaml", "ladder: {mixture", "ladder: {mixtur", "did you mean `mixture`"),
        ("experiments/profiles/laptop.yaml", "seq_len: 128", "seq_len: short", "`training.seq_len`"),
        ("experiments/profiles/laptop.yaml", "width: 32,", "width: 0,", "`rungs.small.width`"),
        ("experiments/profiles/laptop.yaml", "precision: 32-true", "precision: fp4", "'32-true'"),
    ],
)
def test_a_mistake_names_its_file_and_key(folder, file, old, new, said):
    edit(folder / file, old, new)
    with pytest.raises(InputError) as error:
        load_study(folder)
    assert said in f"{error.value}\n"
    assert Path(file).name in str(error.value)


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("params.yaml", "code: 0.6", "codez: 0.6", "no domain 'codez' in experiments/sources.yaml"),
        ("experiments/profiles/laptop.yaml", "width: 32,", "width: 17,", "run ladder/small"),
        (
            "experiments/profiles/laptop.yaml",
            "batch_sequences: 16",
            "batch_sequences: 0",
            "experiments/profiles/laptop.yaml, run ladder/small: `batch_sequences`",
        ),
        (
            "experiments/profiles/laptop.yaml",
            "top_k: 2",
            "top_k: 96",
            "top_k (96) must be below n_experts (96)",
        ),
        ("experiments/profiles/laptop.yaml", "n_experts: 96", "nexperts: 96", "nexperts"),
    ],
)
def test_what_cannot_be_trained_is_found_before_anything_starts(folder, file, old, new, said):
    shutil.copy(ROOT / "experiments/sources.yaml", folder / "experiments")
    check_study(folder)
    edit(folder / file, old, new)
    with pytest.raises(InputError) as error:
        check_study(folder)
    assert said in str(error.value)


def test_an_unknown_run_lists_the_known_ones():
    with pytest.raises(InputError, match=r"no run 'ladder/huge'; it has ladder/small, ladder/medium"):
        load_study(ROOT).experiment("ladder/huge")


def test_a_batch_that_does_not_divide_over_the_devices_is_refused(folder):
    edit(folder / "experiments/profiles/laptop.yaml", "devices: 1", "devices: 3, strategy: ddp")
    with pytest.raises(InputError, match=r"batch_sequences \(16\) does not divide over 3 devices"):
        load_study(folder).experiment("ladder/small")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("seeds: [0, 1]", "seeds: 0", r"params\.yaml: `ablation\.seeds`: Input should be a valid array"),
        (
            "ladder: {mixture: balanced, seed: 0}",
            "ladder: balanced",
            r"params\.yaml: `ladder`: Input should be an",
        ),
        ("profile: laptop", "profile: [laptop]", r"params\.yaml: `profile`: Input should be a valid string"),
    ],
)
def test_what_dvc_fails_over_is_named(folder, monkeypatch, old, new, said):
    """DVC ends in a traceback over the first, and with a word on one of its own stages over the others."""
    for name in ("dvc.yaml", "experiments/sources.yaml"):
        shutil.copy(ROOT / name, folder / name)
    for kind in ("GLOBAL_CONFIG", "SYSTEM_CONFIG", "SITE_CACHE"):
        monkeypatch.setenv(f"DVC_{kind}_DIR", str(folder / kind))
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    (folder / ".dvc").mkdir()
    monkeypatch.chdir(folder)
    edit(folder / "params.yaml", old, new)
    with pytest.raises(InputError, match=said):
        reproduce(folder)


def test_a_local_source_that_dvc_does_not_watch_is_named(folder):
    shutil.copy(ROOT / "dvc.yaml", folder / "dvc.yaml")
    shutil.copy(ROOT / "experiments/sources.yaml", folder / "experiments/sources.yaml")
    (folder / "texts").mkdir()
    with (folder / "experiments/sources.yaml").open("a") as stream:
        stream.write(f"own:\n  - {{client: local, path: {folder / 'texts'}, licence: CC0-1.0}}\n")
    with pytest.raises(InputError, match=r"stage corpus does not depend on the local source .*texts; add it"):
        check_study(folder)
    edit(
        folder / "dvc.yaml",
        "deps: [experiments/sources.yaml,",
        f"deps: [{folder / 'texts'}, experiments/sources.yaml,",
    )
    check_study(folder)
