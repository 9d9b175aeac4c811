"""Preregistrations: written before the run, changed never unnoticed, scored against the log."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from analysis.cli import app
from analysis.forecast.largest import METRIC, preregister_largest
from analysis.forecast.preregistration import (
    BrokenError,
    Claim,
    calibration,
    code_version,
    content_hash,
    preregistration,
    read_preregistration,
    write_preregistration,
)
from analysis.forecast.record import score_file
from experiments.configuration import InputError
from logs.schema import RunFacts
from logs.store import write_run


def run(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def rung(make_run, name, params, steps=400, at=(0.25, 0.5, 0.75, 1.0), losses=None, facts=None):
    """A finished run of 20 tokens per parameter that ends at 20 * C^-0.1 and falls there as fraction^-0.2."""
    cost, per_step = 6.0 * params, 20.0 * params / steps
    flops = cost * per_step * steps
    step = [round(f * steps) - 1 for f in at]
    loss = losses or [20 * flops**-0.1 * f**-0.2 for f in at]
    known = {"steps_planned": steps, "tokens_planned": int(per_step * steps), "train_flops_per_token": cost}
    return make_run(name, {"step": step, METRIC: loss}, RunFacts(**(known | (facts or {}))))


@pytest.fixture
def rungs(make_run):
    return [rung(make_run, f"own/ladder/{name}", n) for name, n in (("small", 10_000), ("medium", 30_000))]


@pytest.fixture
def content(rungs):
    return preregister_largest(rungs, "own/ladder/large", 120 * 90_000.0**2, 400)


def test_a_power_law_is_continued_and_its_interval_holds_it(content):
    flops = 120 * 90_000.0**2
    assert content["predicted"] == pytest.approx(20 * flops**-0.1, rel=1e-9)
    low, high = content["interval"]
    assert low <= content["predicted"] * (1 + 1e-12) <= high * (1 + 1e-9)
    assert content["law"]["alpha"] == pytest.approx(0.1)
    assert content["claim"]["step"] == 399


def test_a_slope_that_moved_during_the_runs_widens_the_interval(make_run, rungs, content):
    """The same final losses; but early on the two rungs were level with each other."""
    small, medium = ([float(v) for v in run.series(METRIC)["value"]] for run in rungs)
    level = [medium[i] + (small[i] - medium[i]) * share for i, share in enumerate((0.1, 0.4, 0.7))]
    bent = rung(make_run, "own/ladder/small", 10_000, losses=[*level, small[3]])
    other = preregister_largest([bent, rungs[1]], "own/ladder/large", 120 * 90_000.0**2, 400)
    assert other["predicted"] == content["predicted"]
    width = [one["interval"][1] - one["interval"][0] for one in (content, other)]
    assert width[1] > 10 * width[0] + 0.1


def test_three_rungs_give_student_s_interval(make_run, rungs):
    third = rung(make_run, "own/ladder/more", 60_000)
    content = preregister_largest([third, *rungs], "own/ladder/large", 120 * 300_000.0**2, 400)
    assert content["law"]["interval"] == "Student's, 1 degrees of freedom"
    assert content["predicted"] == pytest.approx(20 * (120 * 300_000.0**2) ** -0.1, rel=1e-9)


def test_the_hash_is_that_of_the_canonical_content(content, tmp_path):
    """Recomputed here with nothing of ours: keys sorted, no spaces, without `hash`."""
    path = tmp_path / "claim.json"
    write_preregistration(path, content)
    read = json.loads(path.read_text())
    stated = read.pop("hash")
    text = json.dumps(read, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert stated == hashlib.sha256(text.encode()).hexdigest()
    assert read_preregistration(path).hash == stated


def leaves(value, path=()):
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from leaves(inner, (*path, i))
    else:
        yield path, value


def test_every_single_changed_value_is_found(content, tmp_path):
    paths = [path for path, _ in leaves(content) if path != ("hash",)]
    assert len(paths) > 20
    for path in paths:
        changed = json.loads(json.dumps(content))
        inner = changed
        for key in path[:-1]:
            inner = inner[key]
        old = inner[path[-1]]
        inner[path[-1]] = f"{old} " if isinstance(old, str) else float(np.nextafter(old, np.inf)) if isinstance(
            old, float) else old + 1  # fmt: skip
        (tmp_path / "changed.json").write_text(json.dumps(changed))
        with pytest.raises(BrokenError, match="does not fit its hash"):
            read_preregistration(tmp_path / "changed.json")


@settings(max_examples=50, deadline=None)
@given(
    st.dictionaries(
        st.text(), st.one_of(st.text(), st.integers(), st.floats(allow_nan=False, allow_infinity=False))
    )
)
def test_the_hash_survives_json_and_the_order_of_keys(content):
    again = json.loads(json.dumps(dict(reversed(content.items())), indent=3))
    assert content_hash(again) == content_hash(content) == content_hash(content | {"hash": "x"})


def test_nothing_is_overwritten(content, tmp_path):
    write_preregistration(tmp_path / "claim.json", content)
    before = (tmp_path / "claim.json").read_bytes()
    with pytest.raises(InputError, match="not overwritten"):
        write_preregistration(tmp_path / "claim.json", content)
    assert (tmp_path / "claim.json").read_bytes() == before


def test_the_same_runs_give_the_same_bytes_and_other_data_another_hash(make_run, rungs, content):
    again = preregister_largest(rungs[::-1], "own/ladder/large", 120 * 90_000.0**2, 400)
    assert again == content
    values = [float(v) for v in rungs[0].series(METRIC)["value"]]
    other = rung(make_run, "own/ladder/small", 10_000, losses=[values[0] + 1e-9, *values[1:]])
    changed = preregister_largest([other, rungs[1]], "own/ladder/large", 120 * 90_000.0**2, 400)
    assert changed["data"][1]["sha256"] != content["data"][1]["sha256"]
    assert changed["data"][0] == content["data"][0]
    assert code_version(["across"]).sha256 != code_version(["ladder"]).sha256


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda r, make: r[:1], "at least two rungs"),
        (
            lambda r, make: [r[0], rung(make, "own/ladder/big", 200_000)],
            "is not smaller than own/ladder/large",
        ),
        (
            lambda r, make: [r[0], rung(make, "own/ladder/half", 30_000, at=(0.25, 0.5))],
            "last evaluated at 50 %",
        ),
        (
            lambda r, make: [r[0], rung(make, "own/b", 30_000, facts={"data_version": "x"})],
            "differ in data_version",
        ),
        (lambda r, make: [rung(make, f"own/{i}", 9_000, at=(0.5, 1.0)) for i in range(2)], "same compute"),
        (lambda r, make: [rung(make, "own/a", 9_000, at=(0.5, 1.0)), r[1]], "share 2 evaluations"),
        (
            lambda r, make: [r[0], make("own/x", {"step": [1], "train/loss": [2.0]})],
            "has no `eval/mean/loss`",
        ),
    ],
)
def test_rungs_that_do_not_suit_are_refused(make_run, rungs, change, said):
    given_rungs = change(rungs, make_run)
    with pytest.raises(InputError, match=said):
        preregister_largest(given_rungs, "own/ladder/large", 120 * 90_000.0**2, 400)


@pytest.fixture
def own_store(tmp_path, rungs):
    for one in rungs:
        write_run(one, tmp_path / "runs")
    return tmp_path / "runs"


def preregister_own(store, out):
    return run(
        "preregister", "own/ladder/large", "--runs", "own/ladder", "--flops", 120 * 90_000.0**2,
        "--steps", 400, "--out", out, "--store", store, "--json",
    )  # fmt: skip


def test_from_preregistration_to_score(make_run, own_store, tmp_path):
    out = tmp_path / "claims" / "large.json"
    content = json.loads(preregister_own(own_store, out).stdout)
    with pytest.raises(InputError, match="no run 'own/ladder/large'"):
        run("score", out, "--store", own_store)
    write_run(rung(make_run, "own/ladder/large", 90_000), own_store)
    scored = json.loads(run("score", out, "--store", own_store, "--json").stdout)
    assert scored.keys() >= {"claim", "predicted", "interval", "landed", "error", "inside", "hash"}
    assert scored["hash"] == content["hash"]
    assert scored["landed"] == pytest.approx(scored["predicted"], rel=1e-9)
    assert scored["error"] == scored["landed"] - scored["predicted"]
    assert scored["calibration"]["landed"] == 1
    assert "it landed at" in run("score", out, "--store", own_store).stdout


def test_a_changed_file_ends_with_code_1(make_run, own_store, tmp_path):
    out = tmp_path / "large.json"
    preregister_own(own_store, out)
    write_run(rung(make_run, "own/ladder/large", 90_000), own_store)
    out.write_text(out.read_text().replace('"predicted": ', '"predicted": 1'))
    result = run("score", out, "--store", own_store)
    assert result.exit_code == 1
    assert "does not fit its hash" in result.stderr
    assert not result.stdout


def test_a_run_that_is_not_there_yet_or_skipped_the_step(make_run, own_store, tmp_path):
    out = tmp_path / "claims" / "large.json"
    preregister_own(own_store, out)
    write_run(rung(make_run, "own/ladder/large", 90_000, at=(0.25, 0.5)), own_store)
    open_claim = json.loads(run("score", out, "--store", own_store, "--json").stdout)
    assert open_claim["landed"] is open_claim["error"] is open_claim["inside"] is None
    assert "not landed yet" in open_claim["finding"]
    write_run(rung(make_run, "own/ladder/large", 90_000, at=(0.25, 1.1)), own_store)
    with pytest.raises(InputError, match="after step 399 but not at it"):
        run("score", out, "--store", own_store)


def test_calibration_runs_over_all_of_the_folder(make_run, own_store, tmp_path):
    """Of four: one inside, one far outside, one changed, one whose run is not there."""
    folder = tmp_path / "claims"
    landed = rung(make_run, "own/ladder/large", 90_000)
    write_run(landed, own_store)
    truth = float(landed.series(METRIC)["value"].iloc[-1])

    def claim(name, predicted, run_name="own/ladder/large"):
        said = Claim(run=run_name, metric=METRIC, unit="nats/token", step=399, text="as a test")
        written = preregistration(said, {"name": "line"}, predicted, (predicted - 0.1, predicted + 0.1), [],
                                  code_version(["across"]), [])  # fmt: skip
        write_preregistration(folder / name, written)

    claim("a.json", truth + 0.05)
    claim("b.json", truth + 0.3)
    claim("c.json", truth)
    claim("d.json", truth, "own/none/there")
    (folder / "c.json").write_text((folder / "c.json").read_text().replace("as a test", "as a jest"))
    (folder / "e.json").write_text("[1]")
    scored = score_file(folder / "a.json", own_store)
    assert scored["inside"] is True
    found = scored["calibration"]
    assert (found["landed"], found["inside"], found["share_inside"]) == (2, 1, 0.5)
    assert found["mean_error_in_half_intervals"] == pytest.approx((0.5 + 3.0) / 2)
    assert any("c.json" in warning for warning in scored["warnings"])
    assert any("d.json" in warning for warning in scored["warnings"])
    assert calibration([])["share_inside"] is None


def test_the_live_run_is_preregistered_ahead_and_never_behind(store, tmp_path):
    out = tmp_path / "hero.json"
    content = json.loads(
        run("preregister", "marin-535b", "--method", "curve", "--out", out, "--store", store, "--json").stdout
    )
    assert content["claim"]["step"] == 390_250
    assert [one["run"] for one in content["data"]][-1] == "marin-535b"
    assert all(len(digest) == 64 for one in content["data"] for digest in one["sources"].values())
    open_claim = json.loads(run("score", out, "--store", store, "--json").stdout)
    assert open_claim["landed"] is None
    with pytest.raises(InputError, match="cannot be preregistered"):
        run("preregister", "marin-535b", "--at", 150_000, "--out", tmp_path / "late.json", "--store", store)
    assert not (tmp_path / "late.json").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--flops", "1e12"], "belong to --runs"),
        (["--runs", "own/ladder"], "say how large"),
        (["--runs", "own/ladder", "--flops", "1e12", "--steps", "9", "--at", "3"], "do not go with --runs"),
        (["--runs", "own/none", "--flops", "1e12", "--steps", "9"], "no runs below"),
    ],
)
def test_options_that_contradict_each_other(own_store, arguments, said):
    with pytest.raises(InputError, match=said):
        run("preregister", "own/ladder/large", *arguments, "--store", own_store)


@pytest.mark.parametrize("text", ["", "[]", "3", '{"claim": 1}', "{"])
def test_what_is_no_preregistration_is_told(tmp_path, text):
    path = Path(tmp_path / "file.json")
    path.write_text(text)
    with pytest.raises(InputError, match=r"file\.json"):
        read_preregistration(path)
    with pytest.raises(InputError, match="no such file"):
        read_preregistration(tmp_path / "none.json")


def test_a_forecast_without_an_interval_is_not_preregistered(content):
    claim = Claim(**content["claim"])
    with pytest.raises(InputError, match="no finite interval"):
        preregistration(claim, {}, 3.0, (float("nan"), 4.0), [], code_version([]), [])


def test_an_interval_without_width_or_upside_down_is_refused(content, tmp_path):
    for interval in ([content["predicted"]] * 2, content["interval"][::-1]):
        changed = content | {"interval": interval}
        path = tmp_path / "claim.json"
        path.write_text(json.dumps(changed | {"hash": content_hash(changed)}))
        with pytest.raises(InputError, match="`interval` runs from"):
            read_preregistration(path)
