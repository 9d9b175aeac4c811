"""Ablations: paired differences, seed noise, and verdicts with known answers."""

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
    assert effect["interval"] == pytest.approx([interval.low, interval.high])
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
    """Twelve comparisons of pure noise per study: a false verdict in at most about 5 % of studies."""
    rng, wrong = np.random.default_rng(1), 0
    domains = ["mean", "code", "docs", "books", "math", "multilingual"]
    for _ in range(200):
        effects, _ = judge({(variant, d): rng.normal(0, 0.01, 2) for variant in "bc" for d in domains})
        wrong += any(effect["verdict"] in ("better", "worse") for effect in effects.values())
    assert wrong <= 20


def test_a_known_effect_is_found_and_the_curve_is_whole(ablation):
    by_variant = {}
    for run in ablation:
        variant, seed = run.name.removeprefix("own/ablation/").split("/seed-")
        by_variant.setdefault(variant, {})[int(seed)] = run
    result = ablate(by_variant, "balanced")
    heavy = next(m for m in result["mixtures"] if m["mixture"] == "code-heavy")
    assert heavy["domains"]["code"]["difference"] == pytest.approx(-0.08, abs=0.02)
    evaluated = len(by_variant["balanced"][0].series("eval/mean/loss_bpb"))
    assert len(heavy["curve"]) == evaluated
    assert heavy["curve"][-1]["mean"] == pytest.approx(heavy["overall"]["difference"])
    assert "2 seeds" in result["warnings"][0]
    assert "12.7" in result["warnings"][0]


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
