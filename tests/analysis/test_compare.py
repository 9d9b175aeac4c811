"""Own curves over a public one: known shapes, known shifts, and what must be refused."""

import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from analysis.compare import compare, with_recovered_length
from analysis.curves import axis_values, points
from analysis.landmarks import grad_norm_landmarks
from analysis.ledger import ASPECTS, ledger
from analysis.shape import Reference, common_reference, matched, shape_distance
from experiments.configuration import InputError
from logs.schema import RunFacts
from logs.store import read_run
from maquette import command_line

STEPS = 400


def curve(make_run, name, value, **facts):
    """A run with a loss given at every step, 1000 tokens each."""
    known = {"steps_planned": len(value), "tokens_per_step": 1000, "params_active": 100} | facts
    return make_run(name, {"step": range(len(value)), "train/loss": value}, RunFacts(**known))


def falling(steps=STEPS):
    return 2.0 + 3.0 * (np.arange(steps) + 1.0) ** -0.5


def test_landmarks_of_the_published_gradient_norm(marin):
    """The published table: first peak 1.53 at step 100, minimum .19 near 10k, .75 at the end, still not falling."""
    landmarks = grad_norm_landmarks(marin)
    assert landmarks["first_peak"]["step"] == pytest.approx(100, abs=15)
    assert landmarks["first_peak"]["value"] == pytest.approx(1.53, abs=0.02)
    assert 9_000 < landmarks["minimum"]["step"] < 18_000
    assert landmarks["minimum"]["value"] == pytest.approx(0.19, abs=0.01)
    assert landmarks["late_level"]["value"] == pytest.approx(0.75, abs=0.03)


def test_a_scaled_copy_has_the_same_shape(make_run):
    public, own = curve(make_run, "public", falling()), curve(make_run, "own", 1.7 * falling())
    result = compare([own], public)["pairs"][0]
    assert result["shape_distance"] == pytest.approx(0, abs=1e-12)


def test_the_distance_is_the_known_log_ratio(make_run):
    """Own equals public to the power 1.5, so d = .5 (log public - its mean over the last 5 %)."""
    base = falling()
    public, own = curve(make_run, "public", base), curve(make_run, "own", base**1.5)
    reference = common_reference([own, public], "train/loss", "fraction")
    result = shape_distance(own, public, "train/loss", "fraction", reference)
    fraction = (np.arange(STEPS) + 1) / STEPS
    used = np.log(base[fraction >= 0.04])
    d = 0.5 * (used - np.log(base[fraction >= 0.95 - 1e-12]).mean())
    assert result["distance"] == pytest.approx(
        np.sqrt((d**2).mean() - (np.diff(d) ** 2).mean() / 2), rel=1e-9
    )
    assert result["mean_log_ratio"] > 0


def test_the_interval_holds_the_distance_without_noise(make_run):
    base, rng = falling(1000), np.random.default_rng(0)
    public = curve(make_run, "public", base)

    def distance(loss):
        own = curve(make_run, "own", loss)
        reference = common_reference([own, public], "train/loss", "fraction")
        return shape_distance(own, public, "train/loss", "fraction", reference)

    truth, inside = distance(base**1.5)["distance"], 0
    for _ in range(20):
        lo, hi = distance(base**1.5 * np.exp(rng.normal(0, 0.004, 1000)))["interval"]
        inside += lo <= truth <= hi
    assert inside >= 17


def test_only_the_reference_is_interpolated(make_run):
    public = make_run(
        "public", {"step": [0, 99, 199], "train/loss": [4.0, 3.0, 2.0]}, RunFacts(steps_planned=200)
    )
    noisy = 3 + 0.1 * np.random.default_rng(0).normal(size=STEPS)
    own = curve(make_run, "own", noisy)
    x, mine, theirs = matched(own, public, "train/loss", "fraction")
    assert set(mine) <= set(noisy)
    assert (x >= 1 / 200).all()
    assert np.interp(0.5, x, theirs) == pytest.approx(3.0)


def test_a_half_done_public_run_is_compared_over_its_half(make_run):
    public = curve(make_run, "public", falling(200), steps_planned=400)
    own = curve(make_run, "own", falling(400))
    document = compare([own], public)
    assert document["reference_window"] == pytest.approx([0.475, 0.5])
    assert document["pairs"][0]["shape"]["fraction"]["window"][1] == pytest.approx(0.5)


def test_token_shift_and_compute_ratio_where_levels_may_be_compared(make_run):
    """Own learns exactly half as fast per token, at twice the FLOPs per token: shift 2, compute ratio 1/4."""
    same = {"data": "d", "data_version": "1", "tokenizer": "t", "z_loss_in_loss": False}
    step = np.arange(2000)
    public = curve(make_run, "public", 2 + 3 * (step + 1.0) ** -0.5, train_flops_per_token=10.0, **same)
    own = curve(make_run, "own", 2 + 3 * ((step + 1.0) / 2) ** -0.5, train_flops_per_token=20.0, **same)
    pair = compare([own], public)["pairs"][0]
    assert pair["token_shift"]["ratio"] == pytest.approx(2.0, rel=1e-3)
    assert pair["compute_ratio"]["ratio"] == pytest.approx(0.25, rel=1e-3)


def test_no_token_shift_between_different_texts(ladder, marin):
    pair = compare(ladder[:1], marin)["pairs"][0]
    assert pair["token_shift"] is None
    assert pair["compute_ratio"] is None
    assert "training data" in pair["reasons"]["token_shift"]
    assert "tokenizer" in pair["reasons"]["token_shift"]


def test_curves_that_do_not_overlap_are_said_not_to(make_run):
    early = make_run(
        "early", {"step": range(50), "train/loss": np.linspace(4, 3, 50)}, RunFacts(steps_planned=1000)
    )
    late = make_run(
        "late", {"step": range(500, 900), "train/loss": np.linspace(2, 1, 400)}, RunFacts(steps_planned=1000)
    )
    pair = compare([early], late)["pairs"][0]
    assert pair["shape_distance"] is None
    assert "do not overlap" in pair["reasons"]["shape_distance"]


def test_one_point_and_constant_curves_are_marked(make_run):
    public = curve(make_run, "public", falling())
    one = make_run("one", {"step": [100], "train/loss": [2.5]}, RunFacts(steps_planned=400))
    pair = compare([one], public)["pairs"][0]
    assert pair["shape_distance"] is None
    assert "only" in pair["reasons"]["shape_distance"]
    flat = compare([curve(make_run, "flat", np.full(STEPS, 3.0))], public)["pairs"][0]
    assert "never changes" in flat["reasons"]["shape_distance"]
    assert flat["grad_norm_landmarks"]["own"]["reason"]


def test_unknown_schedule_length_is_a_reason_and_not_a_guess(make_run):
    public = curve(make_run, "public", falling())
    bare = make_run("bare", {"step": range(STEPS), "train/loss": falling()})
    pair = compare([bare], public)["pairs"][0]
    assert pair["shape_distance"] is None
    assert "steps planned" in pair["reasons"]["shape_distance"]


def test_runs_without_a_common_loss_are_refused(make_run):
    with pytest.raises(InputError, match="no loss in common"):
        compare(
            [make_run("own", {"step": [0], "grad_norm": [1.0]})],
            make_run("p", {"step": [0], "train/loss": [1.0]}),
        )


def test_a_run_is_not_compared_with_itself(make_run):
    own, public = curve(make_run, "own", falling()), curve(make_run, "public", falling())
    with pytest.raises(InputError, match="public is given both own and public"):
        compare([own, public], public)
    with pytest.raises(InputError, match="own is given twice"):
        compare([own, own], public)


def test_the_ledger_tells_same_different_and_unknown_apart(ladder, marin):
    rows = {row["aspect"]: row for row in ledger(ladder[0], marin)}
    assert set(rows) == {aspect.name for aspect in ASPECTS}
    assert rows["schedule shape"]["consequence"] == "comparable"
    assert rows["tokenizer"]["consequence"] == "shape only"
    assert rows["evaluation set"]["consequence"] == "not comparable"
    assert rows["data version"]["same"] is None
    assert rows["data version"]["consequence"] == "shape only"
    assert rows["history"]["own"] == "full"
    assert rows["history"]["public"].startswith("sampled")
    assert rows["schedule covered by the log"]["public"] == pytest.approx(0.51, abs=0.005)
    assert all(row["consequence"] == "comparable" for row in ledger(ladder[0], ladder[0]) if row["same"])


def test_the_public_ladder_is_laid_over_the_public_run(marin, store):
    """The rungs share evaluation, tokenizer and vocabulary with the large run, so levels may be compared: it passes
    the last loss of d2048 (at 80 %) between its evaluations at steps 5999 (2.4787) and 8999 (2.3948)."""
    rung = read_run("marin-d2048", store)
    last = rung.series("eval/paloma_macro/loss")["value"].iloc[-1]
    pair = compare([rung], marin)["pairs"][0]
    share = (2.478672504425049 - last) / (2.478672504425049 - 2.3948450088500977)
    assert 0 < share < 1
    expected = (6_000 + 3_000 * share) * 46_137_344
    assert pair["token_shift"]["metric"] == "eval/paloma_macro/loss"
    assert pair["token_shift"]["public_tokens"] == pytest.approx(expected, rel=1e-9)
    assert pair["compute_ratio"]["ratio"] > 1


def test_no_shift_is_read_where_the_public_curve_is_too_coarse(marin, store):
    """d768 ends at 3.015; the large run falls from 11.79 to 2.73 between its first two evaluations."""
    pair = compare([read_run("marin-d768", store)], marin)["pairs"][0]
    assert pair["token_shift"] is None
    assert "too steeply" in pair["reasons"]["token_shift"]


def test_reference_is_the_last_stretch_that_all_have(make_run):
    runs = [curve(make_run, "a", falling(100)), curve(make_run, "b", falling(50), steps_planned=100)]
    assert common_reference(runs, "train/loss", "fraction") == Reference(
        pytest.approx(0.475), pytest.approx(0.5)
    )


def test_where_levels_mean_the_same_the_loss_itself_is_laid_over(make_run):
    same = {
        "data": "d", "data_version": "1", "mixture": {"d": 1.0}, "tokenizer": "t", "vocab_size": 9, "seq_len": 8,
        "z_loss_in_loss": False,
    }  # fmt: skip
    public, own = (
        curve(make_run, "public", falling(), **same),
        curve(make_run, "own", falling() + 0.25, **same),
    )
    document = compare([own], public)
    view = document["pairs"][0]["view"]
    assert (document["x"], document["y"]) == ("tokens", "loss")
    assert (view["consequence"], view["unit"], view["n"]) == ("comparable", "nats/token", STEPS)
    assert view["gap"]["value"] == pytest.approx(0.25, abs=1e-12)
    assert view["gap"]["interval"] == pytest.approx([0.25, 0.25], abs=1e-6)


def test_where_they_do_not_the_overlay_opens_in_the_normal_form_with_the_reason(ladder, marin):
    document = compare(ladder[:1], marin)
    assert (document["x"], document["y"]) == ("fraction", "relative")
    asked = compare(ladder[:1], marin, y="loss")["pairs"][0]["view"]
    assert asked["consequence"] == "not comparable"
    assert "tokenizer differs (byte-level BPE, 1024 | marin-community/marin-tokenizer)" in asked["caption"]
    assert "Not known to agree: data version" in asked["caption"]
    assert asked["n"] > 0


@pytest.mark.parametrize(
    ("x", "y"),
    [
        ("fraction", "lr"),
        ("tokens", "loss"),
        ("step", "grad_norm"),
        ("flops", "reducible"),
        ("tokens_per_parameter", "relative"),
        ("integrated_lr", "relative"),
        ("integrated_lr", "bpb"),
        ("flops", "eval/mean/loss"),
    ],
)
def test_every_axis_and_every_measure(ladder, x, y):
    view = compare(ladder[:1], ladder[1], x=x, y=y)["pairs"][0]["view"]
    assert view["reason"] is None
    assert view["n"] > 0
    assert view["caption"]


def test_the_integrated_learning_rate_of_the_public_run_is_that_of_its_schedule(make_run, marin):
    """Half the warm-up's triangle and the line to 5 %, to the last public learning rate."""
    rows = points(marin, "lr")
    step, peak, warmup, total = float(rows["step"].iloc[-1]), 0.003290470163, 3902, 390_251
    down = step - warmup
    expected = peak * (warmup / 2 + down - 0.95 * down**2 / (2 * (total - warmup)))
    summed = axis_values(marin, rows, "integrated_lr")
    assert summed is not None
    assert summed[-1] == pytest.approx(expected, rel=1e-3)


def test_an_axis_or_measure_that_is_none_lists_the_choices(ladder, marin):
    with pytest.raises(InputError, match=r"--x time: not a choice; choices: fraction, tokens"):
        compare(ladder[:1], marin, x="time")
    with pytest.raises(InputError, match=r"--y speed: .* or a metric that all runs log: train/loss"):
        compare(ladder[:1], marin, y="speed")


def test_a_view_that_cannot_be_drawn_says_why(make_run, marin):
    bare = make_run("bare", {"step": range(STEPS), "train/loss": falling()})
    document = compare([bare], marin, x="tokens")
    view = document["pairs"][0]["view"]
    assert "tokens, or tokens per step" in view["reason"]
    assert view["caption"].startswith("Not drawn:")
    above = compare([bare], marin, x="step", y="reducible", irreducible=9.0)["pairs"][0]["view"]
    assert "--irreducible 9 is not below the lowest train/loss of bare" in above["reason"]


def test_different_units_are_marked_and_not_subtracted(make_run):
    own = make_run(
        "own", {"step": range(9), "custom": np.linspace(3, 2, 9), "train/loss": np.linspace(3, 2, 9)}
    )
    public = replace(own, name="public", units={"custom": "s", "train/loss": "nats/token"})
    view = compare([own], public, y="custom")["pairs"][0]["view"]
    assert view["gap"] is None
    assert "units differ: own in unknown, public in s" in view["caption"]


def test_the_length_of_a_schedule_is_read_off_the_learning_rate(make_run):
    step = np.arange(500)
    lr = 0.5 * (1 + np.cos(np.pi * step / 500))
    run = make_run("cosine", {"step": step, "train/loss": falling(500), "lr": lr})
    known = with_recovered_length(run)
    assert known.facts.steps_planned == 500
    assert "recovered from the logged learning rate" in known.inferred[-1]
    level = make_run("level", {"step": step, "train/loss": falling(500), "lr": np.ones(500)})
    assert with_recovered_length(level) is level


def test_an_evaluation_gap_is_not_read_between_far_points(marin, store):
    """d768 ends where the large run has logged its evaluation only at steps 0 (11.79) and 2999 (2.73)."""
    view = compare([read_run("marin-d768", store)], marin)["pairs"][0]["view"]
    assert view["y"] == "loss"
    assert view["gap"] is None


def test_the_command_takes_paths_and_says_what_matters_first(tmp_path, store, monkeypatch):
    step = np.arange(300)
    for name, scale in (("mine", 1.1), ("theirs", 1.0)):
        rows = [f"{s},{scale * v},{0.1 * (1 - s / 300)}" for s, v in zip(step, falling(300), strict=True)]
        (tmp_path / f"{name}.csv").write_text("step,loss,lr\n" + "\n".join(rows) + "\n", encoding="utf-8")
    paths = [str(tmp_path / "mine.csv"), "--public", str(tmp_path / "theirs.csv"), "--store", str(store)]
    monkeypatch.setenv("COLUMNS", "200")
    shown = CliRunner().invoke(command_line(), ["compare", *paths])
    assert shown.exit_code == 0, shown.output
    assert shown.output.startswith("mine over theirs\n  Loss / its value at the reference over fraction")
    assert "schedule of 300 steps, recovered from the logged learning rate" in shown.output
    document = json.loads(CliRunner().invoke(command_line(), ["compare", *paths, "--json"]).stdout)
    assert document["pairs"][0]["shape_distance"] == pytest.approx(0, abs=1e-9)
    assert document["pairs"][0]["schedule"]["own"]["shape"] == "linear"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["own/ladder", "--public", "own/ablation"], "holds 6 runs"),
        (["nowhere.csv"], "nowhere.csv"),
        (["own/ladder/small", "--public", "opt-175b"], "a public run that is not here yet"),
        (["own/ladder/small", "--x", "time"], "choices: fraction"),
    ],
)
def test_wrong_input_is_one_clear_error(store, args, words):
    with pytest.raises(InputError, match=words):
        CliRunner().invoke(command_line(), ["compare", *args, "--store", str(store)], catch_exceptions=False)


@pytest.mark.parametrize(
    ("floor", "y", "said"),
    [
        (float("nan"), "reducible", "not a loss"),
        (float("-inf"), "reducible", "not a loss"),
        (-1.0, "reducible", "not a loss"),
        (1.0, None, "--y reducible only"),
    ],
)
def test_an_irreducible_term_that_is_none_or_is_not_used_is_refused(make_run, floor, y, said):
    own, public = (curve(make_run, name, falling()) for name in ("own", "public"))
    with pytest.raises(InputError, match=said):
        compare([own], public, x="step", y=y, irreducible=floor)
