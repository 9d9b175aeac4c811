"""Mixing laws: published rank correlations, known parameters found again, proposals that keep their limits."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import approx_fprime
from scipy.stats import spearmanr
from typer.testing import CliRunner

from analysis.cli import app
from analysis.mixing.law import find, fit, names
from analysis.mixing.proposal import best_mixture, epoch_caps, limits
from analysis.mixing.score import intervals, score
from analysis.mixing.table import MixtureTable, in_order, read_mixtures
from experiments.configuration import InputError

REGMIX = Path(__file__).parents[3] / "shared" / "public" / "regmix" / "data"
needs_regmix = pytest.mark.skipif(not REGMIX.is_dir(), reason="the RegMix tables are not here")


def regmix(kind: str) -> MixtureTable:
    return read_mixtures(*(REGMIX / f"{kind.replace('*', name)}.csv" for name in ("mixture", "pile_loss")))


@needs_regmix
@pytest.mark.parametrize(
    ("law", "published"),
    [
        ("linear", (0.902, 0.893, 0.877)),
        ("exponential", (0.963, 0.958, 0.985)),
        ("lightgbm", (0.990, 0.986, 0.962)),
    ],
)
def test_the_order_of_regmix_runs_is_as_well_foreseen_as_published(
    law: str, published: tuple[float, ...]
) -> None:
    table = regmix("train_*_1m")
    fitted = fit(law, table.weights, table.loss("pile_cc"))
    for size, least in zip(("1m", "60m", "1B"), published, strict=True):
        test = regmix(f"test_*_{size}")
        found = spearmanr(
            fitted.predict(in_order(test, table.domains, REGMIX)), test.loss("pile_cc")
        ).statistic
        assert found > least - 0.0015
        if law != "exponential":
            assert found == pytest.approx(least, abs=0.0025)


@needs_regmix
def test_shares_that_sum_to_nearly_one_are_scaled_and_that_is_said() -> None:
    table = regmix("train_*_1m")
    assert np.allclose(table.weights.sum(axis=1), 1)
    assert "sum to 0.996 to 1.003; scaled to 1" in table.warnings[0]


def drawn(law: str, runs: int = 60, noise: float = 0.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights, losses of a known law with noise, and the true losses."""
    rng = np.random.default_rng(1)
    weights = rng.dirichlet(np.ones(3), runs)
    truth = {
        "linear": weights @ [2.0, 3.0, 5.0],
        "exponential": 1.5 + np.exp(weights @ [0.3, -0.7, 1.0]),
        "bimix": 2.0 + ((weights + 1e-3) ** [-0.2, -0.1, -0.4] * [0.3, 0.1, 0.05]).sum(axis=1),
    }[law]
    return weights, truth + noise * rng.standard_normal(runs), truth


@pytest.mark.parametrize("law", ["linear", "exponential", "bimix"])
def test_a_law_finds_again_what_it_was_drawn_from(law: str) -> None:
    weights, loss, _ = drawn(law)
    fitted = fit(law, weights, loss)
    np.testing.assert_allclose(fitted.predict(weights), loss, rtol=1e-4)
    if law == "exponential":
        assert list(fitted.parameters.values()) == pytest.approx([1.5, 0.3, -0.7, 1.0], abs=1e-4)


@pytest.mark.parametrize("law", ["linear", "exponential", "bimix"])
def test_the_gradient_is_that_of_the_prediction(law: str) -> None:
    weights, loss, _ = drawn(law, noise=0.01)
    fitted = fit(law, weights, loss)
    assert fitted.gradient is not None
    at = np.array([0.2, 0.3, 0.5])
    numeric = approx_fprime(at, lambda r: float(fitted.predict(r[None])[0]), 1e-7)
    np.testing.assert_allclose(fitted.gradient(at), numeric, rtol=1e-4, atol=1e-6)


def test_intervals_hold_what_they_promise() -> None:
    """New runs, noise included, fall into 95 % intervals about as often."""
    weights, loss, _ = drawn("exponential", runs=200, noise=0.05)
    spans = intervals("exponential", weights[:100], loss[:100], weights[100:], resamples=100)
    inside = (spans[:, 0] <= loss[100:]) & (loss[100:] <= spans[:, 1])
    assert 0.88 <= inside.mean() <= 1.0
    assert np.diff(spans).mean() < 0.4


@pytest.mark.parametrize("law", ["linear", "exponential", "bimix"])
def test_no_random_mixture_within_the_limits_beats_the_proposal(law: str) -> None:
    weights, loss, _ = drawn(law, noise=0.01)
    fitted, within = fit(law, weights, loss), limits(list("abc"), {"c": 0.1}, {"b": 0.4})
    best = best_mixture(fitted, within)
    assert best.sum() == pytest.approx(1)
    assert best[2] >= 0.1 - 1e-9
    assert best[1] <= 0.4 + 1e-9
    random = np.random.default_rng(0).dirichlet(np.ones(3), 5000)
    allowed = random[(random[:, 2] >= 0.1) & (random[:, 1] <= 0.4)]
    assert fitted.predict(best[None])[0] <= fitted.predict(allowed).min() + 1e-9


def test_a_law_without_gradient_proposes_the_mean_of_the_best() -> None:
    pytest.importorskip("lightgbm")
    weights, loss, _ = drawn("linear", runs=200)
    best = best_mixture(fit("lightgbm", weights, loss), limits(list("abc"), None, {"a": 0.5}))
    assert best.sum() == pytest.approx(1)
    assert 0.4 <= best[0] <= 0.5 + 1e-9
    assert best[2] < 0.15


@given(st.lists(st.floats(0, 1), min_size=2, max_size=6), st.lists(st.floats(0, 1), min_size=2, max_size=6))
def test_limits_are_kept_or_refused(low: list[float], high: list[float]) -> None:
    domains = [f"d{i}" for i in range(min(len(low), len(high)))]
    lowest, highest = dict(zip(domains, low, strict=False)), dict(zip(domains, high, strict=False))
    try:
        within = limits(domains, lowest, highest)
    except InputError:
        assert (
            any(a > b for a, b in zip(low, high, strict=False))
            or sum(lowest.values()) > 1
            or (sum(highest.values()) < 1)
        )
        return
    fitted = fit("linear", np.eye(len(domains)).repeat(3, axis=0), np.arange(3.0 * len(domains)))
    best = best_mixture(fitted, within)
    assert best.sum() == pytest.approx(1, abs=1e-9)
    assert (best >= within.lowest - 1e-9).all()
    assert (best <= within.highest + 1e-9).all()


def test_epoch_caps_bound_the_share() -> None:
    assert epoch_caps({"a": 100.0, "b": 1e6}, budget=1000.0, epochs=4) == {"a": 0.4, "b": 1.0}


def test_a_constant_prediction_has_no_order() -> None:
    weights, loss, _ = drawn("linear")
    assert score(fit("linear", weights, loss), weights[:1], loss[:1])["spearman"] is None


def test_every_law_cites_its_source() -> None:
    assert names() == ["bimix", "exponential", "lightgbm", "linear"]
    assert all("arXiv" in find(name).source for name in names())


GOOD = "run,a,b\n1,0.5,0.5\n2,0.2,0.8\n3,1,0\n4,0.1,0.9\n5,0.4,0.6\n"
LOSSES = "run,x/loss,y/loss\n" + "".join(f"{i},{3 - i / 10},2\n" for i in range(1, 6))


@pytest.mark.parametrize(
    ("weights", "losses", "options", "said"),
    [
        (GOOD.replace("0.2,0.8", "0.2,0.9"), LOSSES, [], "shares of run 2 sum to 1.1"),
        (GOOD.replace("0.2,0.8", "-0.2,1.2"), LOSSES, [], "run 2 has a negative share"),
        (GOOD.replace("0.2,0.8", "0,0"), LOSSES, [], "shares of run 2 sum to 0"),
        (GOOD.replace("0.2,0.8", "much,0.8"), LOSSES, [], "run 2, a: 'much' is no finite number"),
        (GOOD.replace("\n2,", "\n1,"), LOSSES, [], "run 1 stands twice"),
        (GOOD, LOSSES.replace("2.8", "nan"), [], "run 2, x/loss: 'nan' is no finite number"),
        (GOOD, "run,x/loss\n77,2\n", [], "no run of .* stands in it"),
        (GOOD, "", [], "not a readable CSV table"),
        (
            "run,a,b\n1,.5,.5\n",
            LOSSES,
            [],
            "1 runs are too few for the exponential law over 2 domains: at least 4",
        ),
        (GOOD, LOSSES, ["--target", "z"], "--target z is no target; targets: x/loss, y/loss"),
        (GOOD, LOSSES, ["--target", "loss"], "--target loss fits x/loss, y/loss"),
        (GOOD, LOSSES, ["--law", "linaer"], "did you mean `linear`"),
        (GOOD, LOSSES, ["--highest", "c=0.5"], "highest share of c: no such domain"),
        (GOOD, LOSSES, ["--highest", "a=half"], "expected DOMAIN=SHARE"),
        (GOOD, LOSSES, ["--lowest", "a=0.9", "--lowest", "b=0.9"], "lowest shares sum to 1.8"),
        (GOOD, LOSSES, ["--lowest", "a=0.1", "--lowest", "a=0.2"], "a is given twice"),
        (GOOD, LOSSES, ["--resamples", "1"], "at least 40, or 0"),
        (GOOD, LOSSES, ["--target", "y/"], "all 5 runs have the same loss"),
        ("run,a,b\n" + "".join(f"{i},.5,.5\n" for i in range(1, 6)), LOSSES, [], "have the same mixture"),
        (GOOD, LOSSES, ["--test", "w.csv"], "each --test needs its --test-losses"),
    ],
)
def test_the_users_mistake_is_named(
    tmp_path: Path, weights: str, losses: str, options: list[str], said: str
) -> None:
    (tmp_path / "w.csv").write_text(weights)
    (tmp_path / "l.csv").write_text(losses)
    target = [] if "--target" in options else ["--target", "x/"]
    result = CliRunner().invoke(
        app, ["mix", str(tmp_path / "w.csv"), str(tmp_path / "l.csv"), *target, *options]
    )
    assert isinstance(result.exception, InputError)
    with pytest.raises(InputError, match=said):
        raise result.exception
