"""The schedule behind a logged learning rate: published configurations, PyTorch's schedulers, spoilt logs."""

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.optim import lr_scheduler

from analysis.schedule import recover_schedule
from logs.ingest import read_logs
from logs.schema import RunFacts

PUBLIC = Path(__file__).parents[3] / "shared" / "public"
public_files = pytest.mark.skipif(not PUBLIC.is_dir(), reason=f"the public logs ({PUBLIC}) are not here")


def logged(make_run, lr, step=None, **facts):
    step = np.arange(len(lr)) if step is None else step
    return recover_schedule(make_run("run", {"step": step, "lr": lr}, RunFacts(**facts)))


def simulated(shape, steps, warmup, peak, final):
    """Learning rates by PyTorch's own schedulers: the warm-up reaches the peak at step `warmup`."""
    optimizer = torch.optim.SGD([torch.zeros(1, dtype=torch.float64)], lr=peak)
    late = steps - warmup
    start = warmup + late // 2
    tail = steps - start
    plateau = lr_scheduler.ConstantLR(optimizer, 1.0, 1)
    parts = {
        "linear": [lr_scheduler.LinearLR(optimizer, 1.0, final, late)],
        "cosine": [lr_scheduler.CosineAnnealingLR(optimizer, late, peak * final)],
        "constant": [plateau],
        "inverse_sqrt": [lr_scheduler.LambdaLR(optimizer, lambda s: (warmup / (s + warmup)) ** 0.5)],
        "wsd/linear": [plateau, lr_scheduler.LinearLR(optimizer, 1.0, final, tail)],
        "wsd/cosine": [plateau, lr_scheduler.CosineAnnealingLR(optimizer, tail, peak * final)],
        "wsd/1-sqrt": [plateau, lr_scheduler.LambdaLR(optimizer, lambda s: 1 - (1 - final) * (s / tail) ** 0.5)],
        "wsd/exponential": [plateau, lr_scheduler.ExponentialLR(optimizer, max(final, 0.01) ** (1 / tail))],
    }[shape]  # fmt: skip
    ramp = lr_scheduler.LinearLR(optimizer, 1e-12, 1.0, warmup)
    milestones = [warmup, start][: len(parts)]
    schedule = lr_scheduler.SequentialLR(optimizer, [ramp, *parts], milestones)
    rates = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(steps + 1):
            rates.append(schedule.get_last_lr()[0])
            schedule.step()
    return np.array(rates), start


def test_the_published_schedule_is_recovered_from_its_log(marin):
    schedule = recover_schedule(marin)
    assert schedule["shape"] == "linear"
    assert schedule["peak_lr"] == pytest.approx(0.003290470163, rel=1e-6)
    assert schedule["warmup_steps"] == 3902
    assert schedule["final_fraction"] == pytest.approx(0.05, abs=1e-6)
    assert schedule["departures"] == []


@pytest.mark.parametrize(("peak", "warmup", "steps", "final"), [(0.02, 5, 500, 0.05), (0.3, 40, 400, 0.0)])
def test_a_linear_schedule_is_recovered(make_run, peak, warmup, steps, final):
    step = np.arange(steps)
    lr = peak * np.minimum(step / warmup, 1 - (1 - final) * (step - warmup) / (steps - warmup))
    run = make_run("linear", {"step": step, "lr": lr}, RunFacts(steps_planned=steps))
    schedule = recover_schedule(run)
    assert schedule["warmup_steps"] == warmup
    assert schedule["peak_lr"] == pytest.approx(peak)
    assert schedule["final_fraction"] == pytest.approx(final, abs=1e-9)


SHAPES = (
    "linear",
    "cosine",
    "constant",
    "inverse_sqrt",
    "wsd/linear",
    "wsd/cosine",
    "wsd/1-sqrt",
    "wsd/exponential",
)


@pytest.mark.parametrize("shape", SHAPES)
@settings(max_examples=6)
@given(data=st.data())
def test_shapes_of_pytorch_are_recovered(make_run, shape, data):
    steps = data.draw(st.integers(300, 1500))
    warmup = data.draw(st.integers(5, steps // 10))
    final = data.draw(st.sampled_from([0.0, 0.01, 0.05, 0.1, 0.3]))
    peak = data.draw(st.floats(1e-5, 0.5))
    lr, start = simulated(shape, steps, warmup, peak, final)
    found = logged(make_run, lr, steps_planned=steps)
    kind, _, form = shape.partition("/")
    assert found["shape"] == kind
    assert found["peak_lr"] == pytest.approx(peak, rel=2e-3)
    assert found["warmup_steps"] == pytest.approx(warmup, abs=1 + 0.005 * warmup)
    assert found["final_fraction"] == pytest.approx(lr[-1] / peak, abs=4e-3)
    assert found["departures"] == []
    if form:
        assert found["decay_form"] == form
        assert found["decay_start"] == pytest.approx(start, abs=3 + 0.02 * steps)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("spoilt", ["thinned", "unevenly sampled", "steps off by up to 3"])
def test_a_thinned_or_noisy_log_shows_the_same_shape(make_run, shape, spoilt):
    rng = np.random.default_rng(len(shape) + len(spoilt))
    lr, _ = simulated(shape, 3000, 150, 0.01, 0.1)
    step = np.arange(len(lr))
    if spoilt == "thinned":
        kept, said = step[::40], step[::40]
    elif spoilt == "unevenly sampled":
        kept = said = np.sort(rng.choice(step, 150, replace=False))
    else:
        kept = step[5:-5:10]
        said = kept + rng.integers(-3, 4, len(kept))
    found = logged(make_run, lr[kept], step=said, steps_planned=3000)
    kind, _, form = shape.partition("/")
    assert (found["shape"], found["decay_form"] or "") == (kind, form)
    assert found["peak_lr"] == pytest.approx(0.01, rel=0.02)
    assert found["warmup_steps"] == pytest.approx(150, abs=5)
    assert found["final_fraction"] == pytest.approx(lr[-1] / 0.01, abs=0.02)


def test_a_stretch_off_the_schedule_is_named_and_does_not_bend_it(make_run):
    lr, _ = simulated("cosine", 2000, 100, 0.01, 0.1)
    lr[700:760] *= 0.5
    found = logged(make_run, lr)
    assert found["shape"] == "cosine"
    assert found["recovered_steps"] == pytest.approx(2000, abs=2)
    assert found["departures"][:2] == [700, 701]
    (stretch,) = found["departure_stretches"]
    assert (stretch["first_step"], stretch["last_step"], stretch["points"]) == (700, 759, 60)


def test_a_saw_tooth_is_not_forced_into_a_shape(make_run):
    found = logged(make_run, 0.01 * (1 - np.arange(1000) % 100 / 100))
    assert found["shape"] == "unrecognised"
    assert "no known shape" in found["reason"]
    assert found["departure_stretches"]


@pytest.mark.parametrize(
    ("lr", "words"),
    [([0.1], "too few"), ([0.1, 0.2, 0.3, 0.4], "warm-up is all"), ([0.0] * 9, "never above zero")],
)
def test_too_little_to_see_a_schedule_is_said(make_run, lr, words):
    found = logged(make_run, np.array(lr))
    assert found["shape"] is None
    assert words in found["reason"]


def test_a_level_log_says_what_it_cannot_tell(make_run):
    found = logged(make_run, np.full(100, 0.1), steps_planned=1000)
    assert found["shape"] == "constant"
    assert found["final_fraction"] is None
    assert any("decays later looks the same" in note for note in found["notes"])


CONFIGURED = {
    # karpathy/build-nanogpt train_gpt2.py: max_lr 6e-4, min_lr 10 %, warm-up 715, max_steps 19073
    "build-nanogpt/log_1_epoch/nanogpt-train-1806877.out": ("cosine", 6e-4, 715, 0.1, 19073),
    "build-nanogpt/log_no_warmup/nanogpt-nowarmup-1816358.out": ("cosine", 6e-4, 0, 0.1, 19073),
    # llm.c: six decimals are printed; -l 0.0006 -u 700 -q 0.0, 19,560 steps
    "modded-nanogpt/2024-10-13_llmc/main.log": ("cosine", 6e-4, 700, 0.0, 19560),
    # MultiPowerLaw: peak 3e-4, cosines to a tenth
    "multi-power-law/loss_curve_repo/csv_100/cosine_24000.csv": ("cosine", 3e-4, None, 0.1, 24000),
    "multi-power-law/loss_curve_repo/csv_400/cosine_72000.csv": ("cosine", 3e-4, None, 0.1, 72000),
    # OLMo ladder: warm-up of one parameter count in tokens, alpha_f .1, last step of the export 10 later
    "olmo-ladder/190M-1xC.csv": ("cosine", 9.72728519e-4, 363, 0.1, 7262),
    "olmo-ladder/1B-1xC.csv": ("cosine", 5.15439235e-4, 813, 0.1, 16269),
}


@public_files
@pytest.mark.parametrize("file", CONFIGURED)
def test_schedules_of_public_logs_are_those_of_their_configurations(file):
    shape, peak, warmup, final, steps = CONFIGURED[file]
    (run,) = read_logs(PUBLIC / file).runs
    found = recover_schedule(run)
    assert found["shape"] == shape
    assert found["peak_lr"] == pytest.approx(peak, rel=1e-3)
    assert found["warmup_steps"] == warmup
    assert found["final_fraction"] == pytest.approx(final, abs=1e-4)
    assert found["recovered_steps"] == pytest.approx(steps, abs=2)
    assert found["departures"] == []


@public_files
@pytest.mark.parametrize(
    ("file", "shape", "form", "start"),
    [
        ("wsd_20000_24000", "wsd", "exponential", 20000),
        ("wsdld_20000_24000", "wsd", "linear", 20000),
        ("constant_24000", "constant", None, None),
        ("wsdcon_9", "steps", None, None),
    ],
)
def test_plateaus_of_public_logs(file, shape, form, start):
    (run,) = read_logs(PUBLIC / f"multi-power-law/loss_curve_repo/csv_100/{file}.csv").runs
    found = recover_schedule(run)
    assert (found["shape"], found["decay_form"], found["decay_start"]) == (shape, form, start)
    assert found["peak_lr"] == pytest.approx(3e-4)
    if shape == "steps":
        assert [level["lr"] for level in found["levels"]] == pytest.approx([3e-4, 9e-5])


@public_files
def test_a_log_without_its_warmup_says_so():
    """Hugging Face's linear schedule from 2e-5 over 5,490 steps, logged from step 500 on."""
    (run,) = read_logs(PUBLIC / "hf-trainer/cpt_trainer_state.json").runs
    found = recover_schedule(run)
    assert (found["shape"], found["warmup_steps"]) == ("linear", None)
    assert found["final_fraction"] == pytest.approx(0, abs=1e-9)
    assert "if there was no warm-up before step 500, the peak was 2e-05" in found["notes"]
