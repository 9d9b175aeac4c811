"""Ablations: paired differences, seed noise, and verdicts with known answers."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from analysis.ablation import ablate, judge
from experiments.configuration import InputError
from logs.schema import RunFacts


def runs_with(make_run, finals):
    """variant -> seed -> run whose final evaluations are as given: `finals[variant][seed] = {domain: bpb}`."""
    result = {}
    for variant, seeds in finals.items():
        for seed, domains in seeds.items():
            columns = {"step": [0, 9]}
            for domain, value in domains.items():
                columns[f"eval/{domain}/loss_bpb"] = [value + 1.0, value]
            name = f"own/ablation/{variant}/seed-{seed}"
            result.setdefault(variant, {})[seed] = make_run(name, columns, RunFacts(steps_planned=10))
    return result


def test_paired_differences_and_t_interval_by_hand(make_run):
    base = {0: {"mean": 2.00}, 1: {"mean": 2.10}, 2: {"mean": 2.04}}
    other = {0: {"mean": 1.95}, 1: {"mean": 2.06}, 2: {"mean": 2.01}}
    effect = ablate(runs_with(make_run, {"a": base, "b": other}), "a")["mixtures"][0]["overall"]
    paired = stats.ttest_rel([1.95, 2.06, 2.01], [2.00, 2.10, 2.04])
    assert effect["difference"] == pytest.approx(-0.04)
    assert effect["p"] == pytest.approx(paired.pvalue)
    interval = paired.confidence_interval(0.95)
    assert effect["interval"] == pytest.approx((interval.low, interval.high))
    assert effect["interval"] == pytest.approx(effect["unpooled_interval"])
    assert effect["verdict"] == "better"


def test_pairing_removes_what_a_seed_does_to_both(make_run):
    base = {s: {"mean": 2.0 + 0.5 * s} for s in range(3)}
    other = {s: {"mean": 1.9 + 0.5 * s + 0.001 * (s - 1)} for s in range(3)}
    assert (
        ablate(runs_with(make_run, {"a": base, "b": other}), "a")["mixtures"][0]["overall"]["verdict"]
        == "better"
    )


def test_holm_agrees_with_the_definition(make_run):
    rng = np.random.default_rng(0)
    names = ["mean", "code", "math"]
    base = {s: {d: 2 + rng.normal(0, 0.01) for d in names} for s in range(4)}
    other = {s: {d: 1.98 + rng.normal(0, 0.01) for d in names} for s in range(4)}
    mixture = ablate(runs_with(make_run, {"a": base, "b": other}), "a")["mixtures"][0]
    effects = [mixture["overall"], mixture["domains"]["code"], mixture["domains"]["math"]]
    raw = np.array([e["p"] for e in effects])
    order = np.argsort(raw)
    expected = np.empty(3)
    expected[order] = np.minimum(1, np.maximum.accumulate(raw[order] * np.array([3, 2, 1])))
    assert [e["p_holm"] for e in effects] == pytest.approx(expected)


def test_no_difference_is_rarely_called_one():
    """Twelve comparisons of pure noise per study, two seeds, a shared baseline: a false verdict in at most about 5 % of
    studies."""
    rng, wrong = np.random.default_rng(1), 0
    domains = ["mean", "code", "docs", "books", "math", "multilingual"]
    for _ in range(100):
        seeds = rng.normal(0, 0.1, 2)
        levels = {d: {v: {s: seeds[s] + rng.normal(0, 0.01) for s in (0, 1)} for v in "abc"} for d in domains}
        effects, _ = judge(levels, "a")
        wrong += any(effect["verdict"] in ("better", "worse") for effect in effects.values())
    assert wrong <= 11


def test_a_known_effect_is_found_and_the_curve_is_whole(ablation):
    by_variant = {}
    for run in ablation:
        variant, seed = run.name.removeprefix("own/ablation/").split("/seed-")
        by_variant.setdefault(variant, {})[int(seed)] = run
    result = ablate(by_variant, "balanced")
    heavy = next(m for m in result["mixtures"] if m["mixture"] == "code-heavy")
    assert heavy["domains"]["code"]["difference"] == pytest.approx(-0.08, abs=0.02)
    evaluated = len(by_variant["balanced"][0].series("eval/mean/loss_bpb"))
    assert heavy["curves"].keys() == {"overall", *result["domains"]}
    for name, curve in heavy["curves"].items():
        effect = heavy["overall"] if name == "overall" else heavy["domains"][name]
        assert len(curve) == evaluated
        assert curve[-1]["mean"] == pytest.approx(effect["difference"])
        assert curve[-1]["interval"] == pytest.approx(effect["interval"])
    assert heavy["apart_from_step"]["code"] == heavy["curves"]["code"][0]["step"]
    assert heavy["changed"] == []
    assert "2 seeds" in result["warnings"][0]
    assert "2 degrees of freedom" in result["warnings"][0]


def test_one_seed_cannot_be_judged(make_run):
    finals = {"a": {0: {"mean": 2.0}}, "b": {0: {"mean": 1.0}}}
    result = ablate(runs_with(make_run, finals), "a")
    assert result["mixtures"][0]["overall"]["verdict"] == "needs more seeds"
    assert result["mixtures"][0]["overall"]["interval"] is None
    assert "one seed" in result["warnings"][0]


def test_what_cannot_be_paired_is_refused(make_run):
    finals = {"a": {0: {"mean": 2.0}}, "b": {1: {"mean": 1.0}}}
    runs = runs_with(make_run, finals)
    with pytest.raises(InputError, match="share no seed"):
        ablate(runs, "a")
    with pytest.raises(InputError, match="no runs of the baseline `c`; there are a, b"):
        ablate(runs, "c")
    with pytest.raises(InputError, match="nothing to compare"):
        ablate({"a": runs["a"]}, "a")


def test_an_unfinished_run_has_no_final_loss(make_run):
    runs = runs_with(make_run, {"a": {0: {"mean": 2.0}}, "b": {0: {"mean": 1.0}}})
    short = make_run(
        "own/ablation/b/seed-0",
        {"step": [0, 4], "eval/mean/loss_bpb": [3.0, 2.0]},
        RunFacts(steps_planned=10),
    )
    runs["b"][0] = short
    with pytest.raises(InputError, match="finish it"):
        ablate(runs, "a")


def test_unequal_seeds_are_paired_where_they_can_be_and_said(make_run):
    base = {s: {"mean": 2.0 + 0.1 * s} for s in (0, 1, 2)}
    other = {1: {"mean": 2.05}, 2: {"mean": 2.16}, 7: {"mean": 9.0}}
    result = ablate(runs_with(make_run, {"a": base, "b": other}), "a")
    assert result["mixtures"][0]["seeds"] == [1, 2]
    assert result["mixtures"][0]["overall"]["difference"] == pytest.approx(-0.045)
    assert result["left_out"] == [{"run": "own/ablation/b/seed-7", "reason": "a has no run with seed 7"}]
    assert any("own/ablation/b/seed-7 is left out" in warning for warning in result["warnings"])


def test_a_variant_with_one_seed_is_judged_by_the_noise_of_the_others(make_run):
    rng = np.random.default_rng(0)
    finals = {v: {s: {"mean": 2 + rng.normal(0, 0.01)} for s in range(4)} for v in ("a", "b")}
    result = ablate(runs_with(make_run, finals | {"c": {0: {"mean": 1.0}}}), "a")
    far = next(m for m in result["mixtures"] if m["mixture"] == "c")["overall"]
    assert far["n"] == 1
    assert far["unpooled_interval"] is None
    assert far["bootstrap_interval"] is None
    assert far["verdict"] == "better"


def test_a_set_that_some_runs_lack_is_named(make_run):
    finals = {
        "a": {0: {"mean": 2.0, "code": 1.0}, 1: {"mean": 2.1, "code": 1.1}},
        "b": {0: {"mean": 2.0, "code": 1.0}, 1: {"mean": 2.0}},
    }
    result = ablate(runs_with(make_run, finals), "a")
    assert result["domains"] == []
    assert result["warnings"][0] == "code is not compared: own/ablation/b/seed-1 lack it"


def test_identical_runs_are_within_noise_and_named_as_copies(make_run):
    base = {s: {"mean": 2.0 + 0.1 * s} for s in range(3)}
    result = ablate(runs_with(make_run, {"a": base, "b": base}), "a")
    effect = result["mixtures"][0]["overall"]
    assert (effect["difference"], effect["verdict"]) == (0.0, "within noise")
    assert effect["interval"] == (0.0, 0.0)
    assert "does not take effect" in result["warnings"][0]


def test_seeds_without_effect_leave_the_noise_unknown(make_run):
    finals = {"a": {0: {"mean": 2.0}, 1: {"mean": 2.0}}, "b": {0: {"mean": 1.9}, 1: {"mean": 1.9}}}
    result = ablate(runs_with(make_run, finals), "a")
    assert result["mixtures"][0]["overall"]["verdict"] == "needs more seeds"
    assert "the seed does not take effect" in result["warnings"][-1]


def test_a_run_that_ends_in_nan_is_left_out_and_said(make_run):
    finals = {
        "a": {s: {"mean": 2.0 + 0.1 * s} for s in range(3)},
        "b": {0: {"mean": 1.9}, 1: {"mean": 2.02}, 2: {"mean": float("inf")}},
    }
    result = ablate(runs_with(make_run, finals), "a")
    assert result["mixtures"][0]["seeds"] == [0, 1]
    assert "seed-2 is left out: its last evaluation on mean is not a number" in result["warnings"][0]
    finals["b"] = {s: {"mean": float("inf")} for s in range(3)}
    with pytest.raises(InputError, match=r"no run of a variant can be judged.*not a number"):
        ablate(runs_with(make_run, finals), "a")


def test_a_close_call_says_how_many_seeds_it_needs(make_run):
    base = {0: {"mean": 2.00}, 1: {"mean": 2.00}, 2: {"mean": 2.00}}
    other = {0: {"mean": 1.99}, 1: {"mean": 1.97}, 2: {"mean": 1.99}}
    effect = ablate(runs_with(make_run, {"a": base, "b": other}), "a")["mixtures"][0]["overall"]
    assert effect["p"] == pytest.approx(stats.ttest_rel([1.99, 1.97, 1.99], [2.0, 2.0, 2.0]).pvalue)
    assert effect["verdict"] == f"needs {effect['seeds_needed'] - 3} more seeds"
    assert effect["seeds_needed"] == 6


def test_evaluations_on_different_text_are_not_subtracted(make_run):
    runs = runs_with(make_run, {"a": {0: {"mean": 2.0}}, "b": {0: {"mean": 1.0}}})
    for variant, text in (("a", "held-out"), ("b", "Paloma")):
        run = runs[variant][0]
        runs[variant][0] = replace(run, facts=run.facts.model_copy(update={"evaluation_set": text}))
    with pytest.raises(InputError, match=r"different text.*Paloma.*held-out"):
        ablate(runs, "a")


def test_what_was_changed_is_read_from_the_facts(make_run):
    runs = runs_with(make_run, {"a": {0: {"mean": 2.0}}, "b": {0: {"mean": 1.0}}})
    facts = runs["b"][0].facts.model_copy(update={"optimizer": "AdamW", "seed": 5})
    runs["b"][0] = replace(runs["b"][0], facts=facts)
    result = ablate(runs, "a")
    assert result["mixtures"][0]["changed"] == ["optimizer"]
    assert "seeds in the names" in result["warnings"][0]


def test_a_curve_is_paired_step_by_step(make_run):
    """A step that one run did not evaluate is left out, and the difference counts as apart only while it stays so."""
    rng = np.random.default_rng(0)
    runs = {}
    for variant, shift in (("a", 0.0), ("b", -0.5)):
        for seed in range(3):
            value = np.array([4.0, 3.0, 2.5, 2.0]) + 0.1 * seed + rng.normal(0, 0.001, 4)
            value[2:] += shift
            if variant == "b" and seed == 1:
                value[1] = np.nan
            columns = {"step": [0, 3, 6, 9], "eval/mean/loss_bpb": value}
            run = make_run(f"own/ablation/{variant}/seed-{seed}", columns, RunFacts(steps_planned=10))
            runs.setdefault(variant, {})[seed] = run
    mixture = ablate(runs, "a")["mixtures"][0]
    assert [point["step"] for point in mixture["curves"]["overall"]] == [0, 6, 9]
    assert mixture["apart_from_step"] == {"overall": 6}
