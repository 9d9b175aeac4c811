"""Learning rates against the public log and the published tables."""

import csv
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicas.heuristics import aug_hero
from replicas.plan import plan
from replicas.published import load_published
from replicas.schedule import SHAPES, learning_rate_schedule

LOG = Path(__file__).parents[2] / "logs" / "published" / "marin" / "marin_hero_train.csv"
# Hero run: tokens, width, tokens per step.
HERO = (18_005_144_633_344, 6144, 11_264 * 4096)


@pytest.fixture(scope="module")
def public_log() -> list[dict[str, str]]:
    with LOG.open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_hero_peaks() -> None:
    h = aug_hero(*HERO)
    assert h.muonh == pytest.approx(0.003290470163, rel=1e-9)
    assert h.adam == pytest.approx(0.00075934, rel=1e-5)
    assert h.adamh == h.muonh
    assert h.eps == pytest.approx(6.0446e-15, rel=1e-5)


@pytest.mark.parametrize(
    ("width", "active", "sequences", "muonh", "adam", "beta2"),
    # experiments/grug/fast_track/README.md@032ccc10: 60 tokens per active parameter, 4,096-token sequences
    [
        (512, 20_840_448, 128, 0.02272, 0.00524, 0.9960),
        (768, 60_555_264, 128, 0.01365, 0.00315, 0.9960),
        (1024, 162_004_992, 256, 0.01244, 0.00287, 0.9920),
    ],
)
def test_fast_track_rates_of_the_same_law(
    width: int, active: int, sequences: int, muonh: float, adam: float, beta2: float
) -> None:
    h = aug_hero(60 * active, width, sequences * 4096)
    assert h.muonh == pytest.approx(muonh, rel=0.01)
    assert h.adam == pytest.approx(adam, rel=0.01)
    assert h.beta2 == pytest.approx(beta2, abs=1e-4)


def test_rates_are_capped() -> None:
    h = aug_hero(10_000, 8, 1000)
    assert (h.muonh, h.adam, h.beta2) == (0.05, 0.05, 0.9999)


def hero_rate(step: int) -> float:
    published = load_published("marin-535b")
    planned, s = plan(published, 6144), published.recipe.schedule
    schedule = learning_rate_schedule(s.shape, planned.steps, s.warmup_fraction, s.final_fraction)
    assert planned.hyperparameters.muonh is not None
    return planned.hyperparameters.muonh * schedule(step)


def test_step_ten_to_the_last_float32_bit() -> None:
    """The run evaluates this line in float32 as (0 - peak) * (1 - step / warmup) + peak, which cancels."""
    f = np.float32
    peak = f(aug_hero(*HERO).muonh)
    assert (f(0) - peak) * (f(1) - f(10) / f(3902)) + peak == f(8.43266025185585e-06)
    assert hero_rate(10) == pytest.approx(8.43266025185585e-06, rel=2e-5)


def test_every_logged_learning_rate(public_log: list[dict[str, str]]) -> None:
    logged = {int(r["step"]): float(r["learning_rate"]) for r in public_log if r["learning_rate"]}
    assert len(logged) > 100
    published = load_published("marin-535b")
    planned, s = plan(published, 6144), published.recipe.schedule
    schedule = learning_rate_schedule(s.shape, planned.steps, s.warmup_fraction, s.final_fraction)
    for step, rate in logged.items():
        assert planned.hyperparameters.muonh * schedule(step) == pytest.approx(rate, rel=1e-4), step


def test_linear_reaches_five_percent_at_the_end_and_stays() -> None:
    schedule = learning_rate_schedule("linear", 390_251, 0.01, 0.05)
    assert [schedule(0), schedule(3902)] == [0, 1]
    assert schedule(390_251) == pytest.approx(0.05, abs=1e-15)
    assert schedule(500_000) == pytest.approx(0.05, abs=1e-15)


def test_the_other_shapes_at_their_landmarks() -> None:
    cosine = learning_rate_schedule("cosine", 1000, 0.1, 0.2)
    assert [cosine(50), cosine(100), cosine(550), cosine(1000)] == pytest.approx([0.5, 1, 0.6, 0.2])
    wsd = learning_rate_schedule("wsd", 1000, 0.1, 0.0, decay_fraction=0.2)
    assert [wsd(50), wsd(100), wsd(800), wsd(900), wsd(1000)] == pytest.approx([0.5, 1, 1, 0.5, 0])
    constant = learning_rate_schedule("constant", 1000, 0.1, 0.05)
    assert [constant(50), constant(100), constant(1000)] == [0.5, 1, 1]
    inverse = learning_rate_schedule("inverse_sqrt", 1000, 0.1, 0.4)
    assert [inverse(50), inverse(100), inverse(400), inverse(1000)] == pytest.approx([0.5, 1, 0.5, 0.4])


@given(
    shape=st.sampled_from(sorted(SHAPES)),
    total=st.integers(1, 10_000),
    warmup=st.floats(0, 0.9),
    final=st.floats(0, 1),
    step=st.integers(0, 20_000),
)
def test_multiplier_is_between_zero_and_one_and_falls_after_the_warmup(
    shape: str, total: int, warmup: float, final: float, step: int
) -> None:
    schedule = learning_rate_schedule(shape, total, warmup, final, 0.3 if shape == "wsd" else None)
    here, after = schedule(step), schedule(step + 1)
    assert 0 <= here <= 1
    assert math.isfinite(after)
    if step >= int(warmup * total):
        assert after <= here + 1e-12
        assert here >= final - 1e-12
    else:
        assert after > here
