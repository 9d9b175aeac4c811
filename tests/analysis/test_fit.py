"""Fits against published answers and known parameters."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.fit import fit_law, ladder_points, table_points
from analysis.laws import find
from analysis.solver import solve
from experiments.configuration import InputError

PUBLISHED = Path("logs/published/marin")
POWER, FLOOR = find("power-law"), find("power-law-floor")


def frame(flops, loss):
    names = [f"run {i}" for i in range(len(flops))]
    return pd.DataFrame({"name": names, "group": names, "flops": flops, "loss": loss})


def published_ladder(fraction: float) -> pd.DataFrame:
    """The four public rungs at one nominal fraction of their runs, as the published forecast takes them."""
    config = pd.read_csv(PUBLISHED / "marin_ladder_config.csv").set_index("rung")
    grid = pd.read_csv(PUBLISHED / "marin_ladder_eval_grid.csv")
    rows = []
    for rung in ("d768", "d1024", "d1536", "d2048"):
        evaluations = grid[grid["rung"] == rung].sort_values("step")
        nominal = (evaluations["progress"] * 20).round() / 20
        loss = evaluations["eval_dropless_paloma_macro_loss"]
        here = np.isclose(nominal, fraction)
        if here.any():
            value = loss[here].iloc[-1]
        else:  # d2048 ends at 80 %: the line through its last five rows, plus .005
            late = nominal >= 0.599
            value = np.polyval(np.polyfit(nominal[late], loss[late], 1), fraction) + 0.005
        rows.append((rung, config.loc[rung, "flops_full_no_lm_head"] * fraction, value))
    return frame([row[1] for row in rows], [row[2] for row in rows])


@pytest.mark.parametrize("percent", range(5, 101, 5))
def test_the_published_forecast_is_reproduced(percent):
    """All twenty rows of A, alpha and prediction, with the published floor of 1.5; 2.038785 at 100 %."""
    published = pd.read_csv(PUBLISHED / "marin_hero_prediction_by_percentile.csv").iloc[percent // 5 - 1]
    result = fit_law(POWER, published_ladder(percent / 100), floor=1.5)
    A, alpha = (result["parameters"][name]["value"] for name in ("A", "alpha"))
    assert pytest.approx(published["A"], rel=1e-9) == A
    assert alpha == pytest.approx(published["alpha"], rel=1e-10)
    predicted = 1.5 + A * published["hero_flops_no_lm_head"] ** -alpha
    assert predicted == pytest.approx(published["predicted_dropless_paloma_macro_loss"], abs=1e-10)
    if percent == 100:
        assert predicted == pytest.approx(2.038785, abs=1e-6)


@settings(max_examples=12, deadline=None)
@given(st.floats(1.0, 60.0), st.floats(0.03, 0.3), st.floats(0.5, 2.0))
def test_parameters_are_recovered_from_exact_points(A, alpha, E):
    flops = np.geomspace(1e12, 1e18, 12)
    plain = fit_law(POWER, frame(flops, A * flops**-alpha))["parameters"]
    assert plain["A"]["value"] == pytest.approx(A, rel=1e-6)
    assert plain["alpha"]["value"] == pytest.approx(alpha, rel=1e-6)
    x = flops[:, None]
    loss = E + A * flops**-alpha
    theta = solve(FLOOR, FLOOR.start(x, loss)[None], x, loss, np.ones((1, 12))).theta
    assert np.exp(FLOOR.log_loss(theta, x)[0]) == pytest.approx(loss, rel=1e-6)


def test_least_squares_agrees_with_numpy_and_with_scipy():
    from scipy.optimize import curve_fit

    rng = np.random.default_rng(3)
    flops = np.geomspace(1e15, 1e21, 20)
    loss = (1.6 + 900 * flops**-0.17) * np.exp(rng.normal(0, 0.004, 20))
    plain = fit_law(POWER, frame(flops, loss))["parameters"]
    slope, intercept = np.polyfit(np.log(flops), np.log(loss), 1)
    assert plain["alpha"]["value"] == pytest.approx(-slope, rel=1e-9)
    assert plain["A"]["value"] == pytest.approx(np.exp(intercept), rel=1e-9)
    peer, _ = curve_fit(
        lambda c, a, alpha, e: np.log(np.exp(e) + np.exp(a - alpha * np.log(c))),
        flops, np.log(loss), p0=[6.0, 0.15, 0.4], ftol=1e-15, xtol=1e-15, gtol=1e-15, maxfev=10_000,
    )  # fmt: skip
    ours = fit_law(FLOOR, frame(flops, loss))["parameters"]
    assert ours["E"]["value"] == pytest.approx(np.exp(peer[2]), rel=1e-5)
    assert ours["alpha"]["value"] == pytest.approx(peer[1], rel=1e-5)


def test_a_diverged_run_is_set_aside_and_listed():
    flops = np.geomspace(1e12, 1e16, 9)
    loss = 20 * flops**-0.06
    loss[4] *= 3
    found = fit_law(POWER, frame(flops, loss))
    assert [row["name"] for row in found["set_aside"]] == ["run 4"]
    assert found["set_aside"][0]["above"] == pytest.approx(3, rel=1e-3)
    assert "set aside as diverged" in found["warnings"][0]
    assert found["parameters"]["A"]["value"] == pytest.approx(20)
    dropped = fit_law(POWER, frame(flops, loss), drop_highest=1)
    assert dropped["n_used"] == 8
    assert dropped["parameters"]["alpha"]["value"] == pytest.approx(0.06, abs=1e-9)


def test_intervals_cover_over_simulated_studies():
    """Student's interval of the exponent with three runs must cover in about 95 % of studies; bootstrap does not."""
    rng = np.random.default_rng(5)
    flops = np.array([1e12, 1e13, 1e14])
    student = bootstrap = 0
    for _ in range(60):
        alpha = fit_law(POWER, frame(flops, 20 * flops**-0.06 * np.exp(rng.normal(0, 0.01, 3))))[
            "parameters"
        ]["alpha"]
        student += alpha["t_interval"][0] <= 0.06 <= alpha["t_interval"][1]
        bootstrap += alpha["interval"][0] <= 0.06 <= alpha["interval"][1]
    assert student / 60 >= 0.86
    assert bootstrap / 60 < 0.85


def test_hold_out_predicts_the_largest_from_the_others():
    flops = np.geomspace(1e12, 1e15, 4)
    loss = 20 * flops**-0.06
    loss[-1] = 2.6
    held = fit_law(POWER, frame(flops, loss))["holdout"]
    assert held["predicted"] == pytest.approx(20 * 1e15**-0.06)
    assert held["actual"] == 2.6
    assert held["extrapolation"] == pytest.approx(10)


def test_three_runs_are_said_to_be_few():
    flops = np.array([1e12, 1e13, 1e14])
    result = fit_law(POWER, frame(flops, [4.0, 3.4, 3.05]))
    assert "1 degree of freedom" in result["warnings"][0]
    assert result["resamples"] == {"n": 24, "exact": True, "degenerate": 3, "linearised": False}


def test_a_floor_is_refused_with_three_runs_and_doubted_on_a_straight_line():
    with pytest.raises(InputError, match="3 parameters"):
        fit_law(FLOOR, frame([1e12, 1e13, 1e14], [4.0, 3.4, 3.0]))
    flops = np.geomspace(1e12, 1e16, 8)
    noise = np.exp(np.random.default_rng(0).normal(0, 0.003, 8))
    straight = fit_law(FLOOR, frame(flops, 20 * flops**-0.06 * noise), resamples=500)
    assert "under-identified" in straight["status"]
    assert not straight["identified"]["E"]


def test_rows_of_one_run_are_resampled_together():
    flops = np.repeat(np.geomspace(1e12, 1e14, 3), 20)
    rng = np.random.default_rng(0)
    per_run = np.repeat(rng.normal(0, 0.02, 3), 20)
    points = frame(flops, 20 * flops**-0.06 * np.exp(per_run + rng.normal(0, 0.001, 60)))
    single = fit_law(POWER, points)["parameters"]["alpha"]["interval"]
    grouped = fit_law(POWER, points.assign(group=np.repeat(["a", "b", "c"], 20)))["parameters"]["alpha"][
        "interval"
    ]
    assert np.ptp(grouped) > 1.3 * np.ptp(single)


def test_bad_points_are_refused_with_their_line():
    table = pd.DataFrame({"C": [1e12, 1e13, -1e14], "L": [4.0, 3.0, 2.0]})
    columns = {"flops": "C", "loss": "L"}
    with pytest.raises(InputError, match=r"t\.csv, line 4: `C` is"):
        table_points(table, columns, POWER, "t.csv")
    with pytest.raises(InputError, match="no column `X`"):
        table_points(table, {"flops": "X", "loss": "L"}, POWER, "t.csv")
    with pytest.raises(InputError, match="not above the floor"):
        fit_law(POWER, frame([1e12, 1e13, 1e14], [4.0, 3.0, 2.0]), floor=2.5)
    with pytest.raises(InputError, match="1 scales"):
        fit_law(POWER, frame([1e12, 1e12, 1e12], [4.0, 3.0, 2.0]))
    with pytest.raises(InputError, match="did you mean `power-law`"):
        find("powerlaw")


def test_compute_follows_from_parameters_and_tokens():
    table = pd.DataFrame({"N": [1e6, 2e6, 4e6], "D": [2e7, 4e7, 8e7], "L": [4.0, 3.0, 2.5]})
    points = table_points(table, {"n": "N", "d": "D", "loss": "L"}, POWER, "t.csv")
    assert points["flops"].tolist() == [6 * 1e6 * 2e7, 6 * 2e6 * 4e7, 6 * 4e6 * 8e7]


def test_ladder_points_take_the_final_evaluation(ladder):
    points, metric = ladder_points(ladder[::-1])
    assert metric == "eval/mean/loss"
    assert points["name"].tolist() == [run.name for run in ladder]
    last = ladder[0].series("eval/mean/loss")["value"].iloc[-1]
    assert points["loss"].iloc[0] == last
    facts = ladder[0].facts
    assert points["flops"].iloc[0] == facts.tokens_planned * facts.train_flops_per_token


def test_ladder_points_refuse_runs_that_cannot_share_a_law(ladder):
    from dataclasses import replace

    other = replace(ladder[1], facts=ladder[1].facts.model_copy(update={"tokenizer": "another"}))
    with pytest.raises(InputError, match="differ in tokenizer"):
        ladder_points([ladder[0], other])
    early = replace(ladder[1], facts=ladder[1].facts.model_copy(update={"steps_planned": 10_000}))
    with pytest.raises(InputError, match="stopped at"):
        ladder_points([ladder[0], early])


def test_results_are_plain_json_and_the_same_each_time():
    points = frame(np.geomspace(1e12, 1e15, 7), [4.0, 3.8, 3.5, 3.4, 3.2, 3.1, 3.0])
    once, again = (json.dumps(fit_law(POWER, points), allow_nan=False) for _ in range(2))
    assert once == again


def test_an_empty_table_and_a_negative_cell_are_named_plainly():
    columns = {"flops": "C", "loss": "L"}
    with pytest.raises(InputError, match=r"t\.csv: no rows below the header"):
        table_points(pd.DataFrame({"C": [], "L": []}), columns, find("power-law"), "t.csv")
    for cell in (-100_000.0, -100_000, float("nan")):
        table = pd.DataFrame({"C": [1e12, cell], "L": [3.0, 2.0]})
        with pytest.raises(InputError, match=r"t\.csv, line 3: `C` is (-100000\.0|nan), not a positive"):
            table_points(table, columns, find("power-law"), "t.csv")
    with pytest.raises(InputError, match="`L` is -2, not a positive"):
        table_points(pd.DataFrame({"C": [1e12], "L": [-2]}), columns, find("power-law"), "t.csv")
