"""Bad tables are refused with one clear message, or handled and said so."""

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from analysis.cli import app
from analysis.fit import fit_law, table_points
from analysis.fit.by_counting import fit_by_counting
from analysis.laws import find, find_any
from experiments.configuration import InputError

CHINCHILLA = find("chinchilla-approach-3")


def table(runs: int = 40, seed: int = 0) -> pd.DataFrame:
    """Runs of the Chinchilla law with a little noise, and what counting rules need."""
    rng = np.random.default_rng(seed)
    n, d = 10 ** rng.uniform(7.5, 10, runs), 10 ** rng.uniform(9, 11.5, runs)
    loss = (1.8 + 480 / n**0.345 + 2100 / d**0.366) * np.exp(rng.normal(0, 0.003, runs))
    head = 2e4 * np.sqrt(n / 100)
    return pd.DataFrame({"n": n, "d": d, "loss": loss, "n_total": n, "n_embedding": head, "n_head": head})


def points(frame: pd.DataFrame, law=CHINCHILLA, **columns: str) -> pd.DataFrame:
    return table_points(frame, columns, law, "t.csv")


def test_losses_in_two_units_are_refused():
    mixed = table()
    mixed.loc[::2, "loss"] /= 2.9
    with pytest.raises(InputError, match=r"two groups, 20 runs and 20 that lie a factor 2\.9\d higher"):
        fit_law(CHINCHILLA, points(mixed), delta=1e-3, resamples=100)
    said = table().assign(unit=["nats"] * 39 + ["bpb"])
    with pytest.raises(InputError, match=r"several units \(bpb, nats\)"):
        points(said, unit="unit")


def test_diverged_runs_are_set_aside_and_named():
    diverged = table()
    diverged.loc[[3, 17], "loss"] = 11.76
    found = fit_law(CHINCHILLA, points(diverged), resamples=100)
    assert [row["name"] for row in found["set_aside"]] == ["row 4", "row 18"]
    assert found["n_used"] == 38
    clean = fit_law(CHINCHILLA, points(table()), resamples=100)
    assert clean["set_aside"] == []
    assert found["parameters"]["alpha"]["value"] == pytest.approx(
        clean["parameters"]["alpha"]["value"], abs=0.02
    )


def test_one_model_size_and_one_run_are_refused():
    with pytest.raises(InputError, match="all points have one model size"):
        fit_law(CHINCHILLA, points(table().assign(n=1e8)))
    with pytest.raises(InputError, match="all 40 rows are of one run"):
        fit_law(CHINCHILLA, points(table().assign(run="a"), group="run"))


def test_too_few_points_are_refused():
    with pytest.raises(InputError, match=r"5 parameters .* there are 5 points"):
        fit_law(CHINCHILLA, points(table(5)))


def test_many_steps_of_one_run_are_not_taken_for_many_runs():
    for column in ("run", "step"):
        with pytest.raises(InputError, match=r"many steps of one run are not many runs.*--group"):
            points(table().assign(**{column: np.repeat(range(4), 10)}))
    assert points(table().assign(run=np.repeat(range(4), 10)), group="row")["group"].nunique() == 40
    twice = pd.concat([table(), table().iloc[[5]]], ignore_index=True)
    with pytest.raises(InputError, match=r"line 42: repeats an earlier row"):
        points(twice)


def test_integers_above_2_to_the_63_are_handled_and_wrapped_ones_refused():
    """6 N D of int64 columns is computed in floating point; a product that wrapped around is recognised."""
    whole = table().assign(n=lambda t: t["n"].astype("int64"), d=lambda t: t["d"].astype("int64"))
    assert points(whole)["flops"].to_numpy() == pytest.approx(
        6 * whole["n"].to_numpy("float64") * whole["d"].to_numpy("float64")
    )
    with np.errstate(over="ignore"):
        wrapped = whole.assign(flops=6 * whole["n"].to_numpy() * whole["d"].to_numpy())
    assert (wrapped["flops"] != 6.0 * whole["n"] * whole["d"]).any()
    negative = wrapped[wrapped["flops"] < 0]
    with pytest.raises(InputError, match=r"not a positive number.*above 2\^63"):
        points(negative)
    positive = wrapped[(wrapped["flops"] > 0) & (6.0 * whole["n"] * whole["d"] > 2.0**63)]
    with pytest.raises(InputError, match=r"6 N D less a multiple of 2\^64"):
        points(positive)


def test_counting_rules_move_the_exponents_in_one_call():
    found = fit_by_counting(CHINCHILLA, table(), {}, "t.csv", delta=1e-3, resamples=100)
    assert set(found) == {"total", "total-no-embedding", "total-no-embedding-no-head"}
    alpha = [found[rule]["parameters"]["alpha"]["value"] for rule in found]
    assert alpha[0] > alpha[1] > alpha[2]
    assert found["total"]["allocation"]["a"]["value"] == pytest.approx(0.366 / 0.711, abs=0.05)
    with pytest.raises(InputError, match=r"counting active needs the columns n_active"):
        table_points(table(), {}, CHINCHILLA, "t.csv", counting="active")
    with pytest.raises(InputError, match="line 2: counting total-no-embedding leaves -"):
        table_points(table().assign(n_embedding=1e12), {}, CHINCHILLA, "t.csv", counting="total-no-embedding")


def test_a_design_that_cannot_tell_parameters_apart_says_so():
    """All runs at 20 tokens per parameter, with little reach: E, A and B trade against each other."""
    n = np.geomspace(1e8, 4e8, 12)
    loss = (1.8 + 480 / n**0.345 + 2100 / (20 * n) ** 0.366) * np.exp(
        np.random.default_rng(1).normal(0, 0.003, 12)
    )
    line = pd.DataFrame({"n": n, "d": 20 * n * (1 + 0.01 * np.arange(12) % 3), "loss": loss})
    found = fit_law(CHINCHILLA, points(line), resamples=100)
    assert "under-identified" in found["status"]
    assert not all(found["identified"].values())
    assert "not identified" in found["warnings"][-1]


def invoke(*arguments: str):
    return CliRunner().invoke(app, ["fit", *arguments], catch_exceptions=True)


def test_the_command_prints_intervals_predictions_and_optima_and_draws(tmp_path):
    path = tmp_path / "runs.csv"
    table().to_csv(path, index=False)
    plot = tmp_path / "plot.png"
    result = invoke("chinchilla-approach-3", str(path), "--delta", "1e-3", "--resamples", "100", "--counting", "total",
                    "--predict", "n=7e11,d=1.4e13", "--optimal-for", "1e24", "--plot", str(plot))  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "N counted: total." in result.output
    assert "x beyond the largest run" in result.output
    assert "Best for 1e+24 FLOPs: n " in result.output
    assert plot.read_bytes()[:4] == b"\x89PNG"
    page = tmp_path / "plot.html"
    assert invoke("power-law", str(path), "--resamples", "100", "--plot", str(page)).exit_code == 0
    assert "<html>" in page.read_text(encoding="utf-8")


def test_an_unidentified_parameter_is_not_printed_with_its_digits(tmp_path):
    path = tmp_path / "runs.csv"
    n = np.geomspace(1e8, 2e8, 9)
    loss = 20 * n**-0.1 * np.exp(np.random.default_rng(0).normal(0, 0.003, 9))
    pd.DataFrame({"flops": n, "loss": loss}).to_csv(path, index=False)
    result = invoke("power-law-floor", str(path), "--resamples", "100")
    assert "not identified" in result.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--column", "unique"], "write ROLE=COLUMN"),
        (["--column", "uniq=n"], "nothing that this law reads"),
        (["--predict", "n=1"], "write n=NUMBER,d=NUMBER"),
        (["--counting", "all of them"], "is not a counting rule"),
        (["--plot", "x.pdf"], "ends in .html or .png"),
        (["--drop-highest", "40"], "leaves nothing"),
    ],
)
def test_options_that_make_no_sense_are_named(tmp_path, options, message):
    path = tmp_path / "runs.csv"
    table().to_csv(path, index=False)
    result = invoke("chinchilla-approach-3", str(path), "--resamples", "100", *options)
    assert isinstance(result.exception, InputError)
    assert message in str(result.exception)


def test_allocation_laws_refuse_what_does_not_apply(tmp_path):
    path = tmp_path / "runs.csv"
    table().to_csv(path, index=False)
    result = invoke("chinchilla-approach-2", str(path), "--delta", "1e-3")
    assert "--delta does not apply" in str(result.exception)
    with pytest.raises(InputError, match="predicts the best model size"):
        find("chinchilla-approach-2")
    assert find_any("chinchilla-approach-2").name == "chinchilla-approach-2"
