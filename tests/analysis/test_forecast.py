"""The public forecast reproduced to the digit, its errors with the right sign, and the methods that follow it."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from analysis.cli import app
from analysis.forecast.across import estimate_floor, fit_line, predict_with_floor
from analysis.forecast.curve import own_curve, shared_curve
from analysis.forecast.document import ask, forecast_document, read_known
from analysis.forecast.ladder import FRACTIONS, Curve, read_curve, read_ladder
from analysis.forecast.methods import METHODS, find_method
from analysis.forecast.scoring import score_document, score_sweep, sweep_points
from experiments.configuration import InputError
from logs.schema import RunFacts, Schedule

PUBLISHED = "logs/published/marin/marin_hero_prediction_by_percentile.csv"
SCHEDULE = Schedule(shape="linear", peak_lr=0.01, warmup_steps=100, total_steps=10_000, final_fraction=0.05)


@pytest.fixture(scope="module")
def known(store):
    return read_known(ask("marin-535b"), store)


@pytest.fixture(scope="module")
def document(known):
    return forecast_document(ask("marin-535b"), known, find_method("public"))


def run(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_all_twenty_published_predictions(document):
    """marin_hero_prediction_by_percentile.csv, recomputed from Marin's own plot_scaling_ladder.py."""
    published = pd.read_csv(PUBLISHED)
    nominal = {round(p["fraction"], 6): p for p in document["points"] if p["landed"] is None}
    for _, row in published.iterrows():
        point = nominal[round(row["fraction"], 6)]
        assert point["predicted"] == pytest.approx(row["predicted_dropless_paloma_macro_loss"], abs=1e-9)
        assert point["step"] + 1 == row["hero_step"]
    for fraction, value in ((1.0, 2.038785), (0.05, 2.392093), (0.1, 2.326143)):
        assert nominal[fraction]["predicted"] == pytest.approx(value, abs=1e-6)
    assert len(nominal) == 20


@pytest.mark.parametrize(
    ("step", "predicted", "landed"),
    [(59_999, 2.2849, 2.2442), (149_999, 2.1943, 2.1961), (197_999, 2.1690, 2.1609)],
)
def test_landed_evaluations_against_the_forecast(document, known, step, predicted, landed):
    point = next(p for p in document["points"] if p["step"] == step)
    assert point["predicted"] == pytest.approx(predicted, abs=5e-5)
    assert point["landed"] == pytest.approx(landed, abs=5e-5)
    assert point["error"] == pytest.approx(landed - predicted, abs=1e-4)
    assert "landed minus predicted" in document["error_means"]
    at = forecast_document(ask("marin-535b"), known, find_method("public"), step + 1)["points"]
    assert at[0]["landed"] == point["landed"]  # 60k is the step that finishes 60,000


def test_the_published_interpolated_predictions_agree(document, store):
    """The column that a third party interpolated between the twenty fractions, in marin_hero_eval.csv."""
    evaluations = pd.read_csv("logs/published/marin/marin_hero_eval.csv")
    rows = evaluations[evaluations["metric"] == "eval_dropless/paloma/macro_loss"]
    theirs = rows.dropna(subset="ladder_prediction_interp").set_index("step")["ladder_prediction_interp"]
    ours = {p["step"]: p["predicted"] for p in document["points"]}
    assert len(theirs) > 50
    for step, value in theirs.items():
        assert ours[step] == pytest.approx(value, abs=5e-5)


def test_nothing_is_forecast_before_five_percent_or_beyond_the_end(document, known):
    assert min(p["fraction"] for p in document["points"]) >= 0.05
    public = find_method("public")
    for step, said in ((19_000, "before 5 %"), (390_252, "beyond the end")):
        with pytest.raises(InputError, match=said):
            forecast_document(ask("marin-535b"), known, public, step)
    with pytest.raises(InputError, match="has seen"):
        forecast_document(ask("marin-535b"), known, find_method("curve"), 100_000)


def test_json_has_the_agreed_keys_and_no_point_without_a_number(store):
    found = json.loads(run("forecast", "marin-535b", "--method", "floor", "--json", "--store", store).stdout)
    assert found.keys() >= {"run", "points", "method", "warnings"}
    assert found["points"][0].keys() >= {"fraction", "step", "predicted", "interval", "landed", "error"}
    assert "337x in compute beyond" in found["warnings"][0]
    assert any("planned at step 195,125" in warning for warning in found["warnings"])
    one = json.loads(run("forecast", "marin-535b", "--at", 200_000, "--json", "--store", store).stdout)
    assert len(one["points"]) == 1
    assert "2.0388" in run("forecast", "marin-535b", "--store", store).stdout


@settings(max_examples=40, deadline=None)
@given(st.floats(0.0, 1.6), st.floats(20.0, 90.0), st.floats(0.05, 0.15))
def test_a_known_line_and_a_known_floor_are_recovered(floor, amount, alpha):
    flops = np.geomspace(1e18, 1e22, 6)
    loss = floor + amount * flops**-alpha
    predicted, low, high = fit_line(flops, loss, floor).predict(1e24)
    assert predicted == pytest.approx(floor + amount * 1e24**-alpha, rel=1e-9)
    assert low <= predicted * (1 + 1e-12)
    assert high >= predicted * (1 - 1e-12)
    assert estimate_floor(flops[None], loss[None]) == pytest.approx(floor, abs=2e-3)


def test_intervals_cover_at_their_nominal_rate():
    """2,000 simulated ladders of four rungs with noise of 0.3 % above the floor, forecast 300 times beyond."""
    rng, flops = np.random.default_rng(0), np.geomspace(3e19, 8e21, 4)
    truth, at = 1.5 + 85 * 2.6e24**-0.09, 2.6e24
    inside = 0
    for _ in range(2_000):
        noise = np.exp(rng.normal(0, 0.003, 5))
        landed = 1.5 + (truth - 1.5) * noise[4]
        _, low, high = fit_line(flops, 1.5 + 85 * flops**-0.09 * noise[:4], 1.5).predict(at)
        inside += low <= landed <= high
    assert 0.935 <= inside / 2_000 <= 0.965


def test_an_interval_under_an_estimated_floor_is_wider_and_absent_with_three_rungs():
    flops = np.geomspace(3e19, 8e21, 4)
    loss = 1.5 + 85 * flops**-0.09 * np.exp([0.002, -0.003, 0.001, 0.002])
    _, low, high = fit_line(flops, loss, 1.5).predict(1e24)
    _, wide_low, wide_high = predict_with_floor(flops, loss, estimate_floor(flops[None], loss[None]), 1e24)
    assert wide_high - wide_low > high - low
    assert np.isnan(predict_with_floor(flops[:3], loss[:3], 1.5, 1e24)[1])


def simulated(name, flops, floor=1.5, amount=0.2, decay=0.3, alpha=0.4, noise=0.0, until=1.0, evaluations=40):
    """A run of known Tissue shape: L0 + A (S1^-alpha + c (rate - 1)), seen to `until`."""
    fraction = np.arange(1, evaluations + 1) / evaluations
    rate = 1 - 0.95 * np.clip((fraction - 0.01) / 0.99, 0, 1)
    area = 0.01 + (fraction - 0.01) * (1 + rate) / 2
    loss = floor + amount * (area**-alpha - decay * (1 - rate))
    loss += np.random.default_rng(len(name)).normal(0, noise, evaluations) if noise else 0
    return Curve(name, fraction, loss, flops, 10_000, SCHEDULE).until(until)


def test_a_curve_of_known_shape_is_continued():
    whole, seen = simulated("run", 1e24), simulated("run", 1e24, until=0.5)
    assert own_curve(seen, whole.fraction).predicted[-20:] == pytest.approx(whole.loss[-20:], abs=2e-3)
    rungs = [simulated(f"rung {c:g}", c, amount=a) for c, a in ((1e20, 0.8), (1e21, 0.6), (1e22, 0.4))]
    shared = shared_curve(simulated("run", 1e24, until=0.3, noise=1e-4), rungs, whole.fraction)
    assert shared.predicted == pytest.approx(whole.loss, abs=2e-3)
    assert (shared.low <= shared.predicted).all()


def test_a_forecast_uses_nothing_from_behind_until(known):
    """With the future changed, the forecast from before it is the same."""
    step, question = 100_000, ask("marin-535b")
    late = known.target.fraction > (step + 1) / known.target.steps
    other = replace(known, target=replace(known.target, loss=known.target.loss + late * 1.0))
    for name in ("anchored", "curve", "curve-ladder"):
        one, two = (forecast_document(question, k, METHODS[name], None, step) for k in (known, other))
        assert [p["predicted"] for p in one["points"]] == [p["predicted"] for p in two["points"]], name
        assert one["points"][0]["fraction"] > step / known.target.steps


def test_the_mix_correction_is_the_study_s_gain(known):
    """At the study's own distance from its switch (75 % of a run on the new mix) its whole gain is applied."""
    moved = replace(known, mix_changed=0.25)
    before, after = (
        find_method(m).forecast(moved, np.array([0.2, 1.0])).predicted for m in ("public", "mix")
    )
    assert after[0] == before[0]
    expected = (2.5431699752807617 - 1.5) / (2.5637738704681396 - 1.5)
    assert (after[1] - 1.5) / (before[1] - 1.5) == pytest.approx(expected, rel=1e-12)
    with pytest.raises(InputError, match="no change of the data mix"):
        find_method("mix").forecast(replace(known, mix_changed=None), np.array([1.0]))


def test_the_sweep_s_published_forecasts_are_reproduced():
    """marin_v16_leave_future_out.csv: what the team forecast from budgets up to each, floor 1.6, in their digits."""
    table = pd.read_csv("logs/published/marin/marin_v16_leave_future_out.csv")
    points = np.array(sweep_points())
    for last, column in ((1e20, "pred_fit_1e18_1e20"), (3e20, "pred_fit_1e18_3e20")):
        small = points[points[:, 0] <= last * 1.001]
        line = fit_line(small[:, 0], small[:, 1], 1.6)
        for _, row in table.iterrows():
            assert line.predict(float(row["budget_flops"]))[0] == pytest.approx(row[column], abs=4e-3)
    assert {score.method for score in score_sweep()} == {"public", "floor"}


def test_every_method_is_scored_and_the_best_is_named(known):
    document = score_document(known)
    hero = "marin-535b, its own past"
    assert set(document["winners"][hero]["mean_abs"]) == set(METHODS)
    for test, result in document["winners"].items():
        assert result["mean_abs"][result["winner"]] == min(result["mean_abs"].values()), test
    public = [s for s in document["scores"] if (s["test"], s["method"]) == (hero, "public")]
    late = known.target.fraction > 0.75 * known.target.fraction[-1]
    error = (
        known.target.loss[late] - find_method("public").forecast(known, known.target.fraction[late]).predicted
    )
    assert public[-1]["mean_abs"] == pytest.approx(np.abs(error).mean(), rel=1e-12)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["marin-535"], "did you mean marin-535b"),
        (["nothing", "--rungs", "marin-d768", "--metric", "m", "--floor", "1"], "no run 'nothing'"),
        (["bloom-176b"], "no ladder of 'bloom-176b' is known"),
        (["own/ladder/large", "--rungs", "own/ladder/small"], "--metric"),
        (["marin-535b", "--rungs", "marin-d768", "--rungs", "marin-d1024"], "need at least 3"),
        (["marin-535b", "--metric", "eval/none/loss"], "does not log `eval/none/loss`"),
        (["marin-535b", "--method", "best"], "no such method"),
        (["marin-535b", "--floor", "3"], "must lie below every loss"),
        (["marin-535b", "--at", "100"], "before 5 %"),
        (["marin-535b", "--rungs", "marin-d768", "--rungs", "marin-d768", "--rungs", "marin-d1024"], "same compute"),
    ],
)  # fmt: skip
def test_a_mistake_is_told(store, arguments, said):
    with pytest.raises(InputError, match=said):
        run("forecast", *arguments, "--store", store)


def test_a_public_run_that_is_not_stored_says_how_to_get_it(tmp_path):
    with pytest.raises(InputError, match=r"a public run that is not here yet.*maquette logs"):
        run("forecast", "marin-535b", "--store", tmp_path)


def test_rungs_that_do_not_overlap_are_refused(make_run, known, store):
    facts = RunFacts(steps_planned=1_000, tokens_per_step=10, train_flops_per_token=1e9)
    late = make_run("own/late", {"step": [1, 2, 3], "m": [3.0, 2.9, 2.8]}, facts)
    curve = read_curve(late, "m")
    with pytest.raises(InputError, match="no overlap"):
        read_ladder([late, replace(late, facts=facts.model_copy(update={"tokens_per_step": 20})),
                     replace(late, facts=facts.model_copy(update={"tokens_per_step": 30}))],
                    "m", replace(curve, flops=1e30))  # fmt: skip
    with pytest.raises(InputError, match="planned steps"):
        read_curve(make_run("own/bare", {"step": [1, 2], "m": [3.0, 2.9]}), "m")
    assert FRACTIONS[0] == 0.05
