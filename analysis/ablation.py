"""Ablations: variants against a baseline, paired by seed, judged against the noise between seeds."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import numpy as np
import pandas as pd

from analysis.curves import points
from analysis.paired import (
    LEVEL,
    POWER,
    Noise,
    bootstrap_interval,
    detectable,
    holm,
    noise_interval,
    p_value,
    residual_noise,
    seeds_needed,
    t_interval,
)
from experiments.configuration import InputError
from logs.schema import Run, RunFacts

OVERALL = "mean"
MEASURE = "loss_bpb"
SHOWN = {OVERALL: "overall"}
"""What the evaluation of all sets together is called beside the names of the sets."""

FINISHED = 0.98
"""A run whose last evaluation lies before this share of its planned steps is not finished."""

NOT_VARIED = {"title", "experiment", "seed"}
"""Facts that differ between any two runs and say nothing about what was changed."""

Study = dict[str, dict[int, Run]]
Levels = dict[str, dict[int, float]]


@dataclass(frozen=True)
class LeftOut:
    """A run that is not judged, and why."""

    run: str
    reason: str


def ablate(runs: Study, baseline: str) -> dict[str, Any]:
    """Compare every variant with `baseline` on the final evaluation, overall and per domain, and over training.

    Differences are variant minus baseline in bits per byte, so negative is better, between runs of one seed: the same
    initialisation and, where the loader is seeded alike, the same order. The noise between seeds is estimated from all
    runs together (`analysis.paired`), which with two seeds each is the only usable estimate; what a variant's own pairs
    say alone stands beside it, as does a bootstrap over them.

    Args:
        runs: variant -> seed -> run. Only seeds that the baseline has too are paired.

    Raises:
        InputError: no baseline, no variant, no shared seed, no evaluation that all runs share, evaluations on
            different text, or a run that is not finished.
    """
    if baseline not in runs:
        raise InputError(
            f"no runs of the baseline `{baseline}`; there are {', '.join(sorted(runs)) or 'none'}"
        )
    if len(runs) == 1:
        raise InputError(f"there are only runs of the baseline `{baseline}`; nothing to compare with it")
    domains, missing = _domains(runs)
    kept, left_out = _finished(runs, domains)
    seeds = _paired_seeds(kept, baseline, left_out)
    levels = {d: {v: _levels(kept[v], d) for v in kept} for d in domains}
    effects, noise = judge(levels, baseline)
    curves = {d: _difference_curves(kept, baseline, d) for d in domains}
    return {
        "baseline": baseline,
        "metric": _metric(OVERALL),
        "unit": "bits per byte",
        "domains": [domain for domain in domains if domain != OVERALL],
        "baseline_levels": {
            d: _level(list(by_variant[baseline].values())) for d, by_variant in levels.items()
        },
        "seed_noise": {d: _noise_row(noise[d]) for d in domains},
        "correction": {
            "method": "Holm (1979)",
            "level": LEVEL,
            "power": POWER,
            "comparisons": sum(effect["p"] is not None for effect in effects.values()),
        },
        "mixtures": [
            {
                "mixture": name,
                "seeds": shared,
                "weights": kept[name][shared[0]].facts.mixture,
                "changed": _changed(kept[name], kept[baseline], shared),
                "overall": effects[name, OVERALL],
                "domains": {d: effects[name, d] for d in domains if d != OVERALL},
                "curves": {SHOWN.get(d, d): curves[d][name] for d in domains},
                "apart_from_step": {SHOWN.get(d, d): _apart_from(curves[d][name]) for d in domains},
            }
            for name, shared in seeds.items()
        ],
        "left_out": [{"run": run.run, "reason": run.reason} for run in left_out],
        "warnings": [
            *missing,
            *(f"{run.run} is left out: {run.reason}" for run in left_out),
            *_warnings(kept, baseline, seeds, effects, noise[OVERALL]),
        ],
    }


def _level(per_seed: list[float]) -> dict[str, Any]:
    return {"mean": float(np.mean(per_seed)), "per_seed": per_seed}


def _noise_row(noise: Noise) -> dict[str, Any]:
    return {
        "difference_sd": noise.sd,
        "interval": noise_interval(noise),
        "degrees_of_freedom": noise.degrees_of_freedom,
    }


def judge(
    levels: dict[str, Levels], baseline: str
) -> tuple[dict[tuple[str, str], dict[str, Any]], dict[str, Noise]]:
    """Effect and verdict per (variant, domain), and the seed noise of a difference per domain.

    Args:
        levels: domain -> variant -> seed -> final level; every variant shares a seed with the baseline.
    """
    noise = {domain: _noise(by_variant) for domain, by_variant in levels.items()}
    differences = {
        (variant, domain): np.array([level - by_variant[baseline][seed] for seed, level in runs.items()
                                     if seed in by_variant[baseline]])
        for domain, by_variant in levels.items()
        for variant, runs in by_variant.items()
        if variant != baseline
    }  # fmt: skip
    effects = {key: _effect(d, noise[key[1]]) for key, d in differences.items()}
    tested = [effect for effect in effects.values() if effect["p"] is not None]
    for effect, p in zip(tested, holm([effect["p"] for effect in tested]), strict=True):
        effect["p_holm"] = p
    for (_, domain), effect in effects.items():
        _decide(effect, noise[domain], len(levels[domain]) - 1, LEVEL / max(1, len(tested)))
    return effects, noise


def _noise(by_variant: Levels) -> Noise:
    """Noise of a difference; unknown where no degree of freedom is left or where seeds change nothing at all."""
    variants, seeds, levels = _layout(by_variant)
    sd, dof = residual_noise(variants, seeds, levels[:, None])
    no_effect = bool(sd[0] == 0 and any(len(set(runs.values())) < len(runs) for runs in by_variant.values()))
    return Noise(None, 0) if dof == 0 or no_effect else Noise(float(sd[0]), dof)


def _layout(by_variant: dict[str, dict[int, Any]]) -> tuple[Any, Any, Any]:
    """Number of the variant, seed and value of every run."""
    cells = [(i, s, value) for i, runs in enumerate(by_variant.values()) for s, value in runs.items()]
    variants, seeds, values = zip(*cells, strict=True)
    return np.array(variants), np.array(seeds), np.array(values)


def _effect(differences: Any, noise: Noise) -> dict[str, Any]:
    """One variant on one evaluation set, still without what depends on the other tests."""
    n, mean = len(differences), float(differences.mean())
    own = t_interval(mean, float(differences.std(ddof=1)), n, n - 1) if n > 1 else None
    effect: dict[str, Any] = {
        "difference": mean,
        "per_seed": [float(d) for d in differences],
        "n": n,
        "interval": None,
        "unpooled_interval": own,
        "bootstrap_interval": bootstrap_interval(differences),
        "p": None,
        "p_holm": None,
        "effect_size": None,
        "minimum_detectable": None,
        "seeds_needed": None,
    }
    sd, dof = noise
    if sd is None:
        return effect
    return effect | {
        "interval": t_interval(mean, sd, n, dof),
        "p": p_value(mean, sd, n, dof),
        "effect_size": mean / sd if sd > 0 else None,
    }


def _decide(effect: dict[str, Any], noise: Noise, variants: int, level: float) -> None:
    """Add the verdict, and what these seeds could have found at `level`, the strictest that Holm's procedure asks for.

    Significant after correction: better or worse. Else, a difference below one standard deviation of the seed noise
    is within noise: another seed would often turn it round. A larger one needs more seeds to be told from noise.
    """
    sd, dof = noise
    if sd is None:
        same = all(difference == 0 for difference in effect["per_seed"])
        effect["verdict"] = "within noise" if same and effect["n"] > 1 else "needs more seeds"
        return
    effect["minimum_detectable"] = detectable(dof, level) * sd / float(np.sqrt(effect["n"]))
    effect["seeds_needed"] = seeds_needed(effect["difference"], sd, variants, level)
    if effect["p_holm"] < LEVEL:
        effect["verdict"] = "better" if effect["difference"] < 0 else "worse"
    elif effect["effect_size"] is None or abs(effect["effect_size"]) <= 1:
        effect["verdict"] = "within noise"
    else:
        more = max(1, (effect["seeds_needed"] or 0) - effect["n"])
        effect["verdict"] = f"needs {more} more seed{'s' * (more > 1)}"


def _all(runs: Study) -> list[Run]:
    return [run for by_seed in runs.values() for run in by_seed.values()]


def _domains(runs: Study) -> tuple[list[str], list[str]]:
    """Evaluation sets in bits per byte that every run logs, overall first; and a warning per set that some lack."""
    logged = {
        run.name: {
            m.split("/")[1] for m in run.metrics if m.startswith("eval/") and m.endswith(f"/{MEASURE}")
        }
        for run in _all(runs)
    }
    shared = set.intersection(*logged.values())
    if OVERALL not in shared:
        raise InputError(f"the runs do not all log eval/{OVERALL}/{MEASURE}; evaluate them on the same set")
    if len(texts := {run.facts.evaluation_set for run in _all(runs)} - {None}) > 1:
        raise InputError(
            f"the runs are evaluated on different text ({'; '.join(sorted(map(str, texts)))}); "
            "their bits per byte cannot be subtracted: evaluate them on the same set"
        )
    partial = sorted(set.union(*logged.values()) - shared)
    missing = [
        f"{domain} is not compared: {', '.join(name for name in logged if domain not in logged[name])} lack it"
        for domain in partial
    ]
    return [OVERALL, *sorted(shared - {OVERALL})], missing


def _finished(runs: Study, domains: Iterable[str]) -> tuple[Study, list[LeftOut]]:
    """The runs without those whose last evaluation is not a finite number.

    Raises:
        InputError: a run's evaluations end before its schedule does.
    """
    kept: Study = {}
    left_out = []
    for variant, by_seed in runs.items():
        for seed, run in by_seed.items():
            broken = [d for d in domains if not _ends_finite(run, _metric(d))]
            if broken:
                left_out.append(
                    LeftOut(run.name, f"its last evaluation on {', '.join(broken)} is not a number")
                )
                continue
            rows = points(run, _metric(OVERALL))
            planned = run.facts.steps_planned
            if planned and rows["done"].iloc[-1] < FINISHED * planned:
                raise InputError(
                    f"run {run.name} was last evaluated at step {rows['step'].iloc[-1]} of {planned}; finish it"
                )
            kept.setdefault(variant, {})[seed] = run
    return kept, left_out


def _ends_finite(run: Run, metric: str) -> bool:
    values = run.series(metric)["value"]
    return bool(len(values) and np.isfinite(values.iloc[-1]))


def _paired_seeds(kept: Study, baseline: str, left_out: list[LeftOut]) -> dict[str, list[int]]:
    """The seeds that each variant shares with the baseline; seeds without a partner are added to `left_out`."""
    reasons = "".join(f"; {run.run}: {run.reason}" for run in left_out)
    if baseline not in kept:
        raise InputError(f"no run of the baseline `{baseline}` can be judged{reasons}")
    seeds = {
        name: sorted(by_seed.keys() & kept[baseline].keys())
        for name, by_seed in kept.items()
        if name != baseline
    }
    if unpaired := [name for name, shared in seeds.items() if not shared]:
        raise InputError(
            f"{', '.join(unpaired)} share no seed with the baseline `{baseline}`; nothing can be paired{reasons}"
        )
    if not seeds:
        raise InputError(f"no run of a variant can be judged{reasons}")
    for name, shared in seeds.items():
        left_out += [
            LeftOut(kept[name][seed].name, f"{baseline} has no run with seed {seed}")
            for seed in sorted(kept[name].keys() - set(shared))
        ]
    return seeds


def _metric(domain: str) -> str:
    return f"eval/{domain}/{MEASURE}"


def _levels(by_seed: dict[int, Run], domain: str) -> dict[int, float]:
    return {
        seed: float(points(run, _metric(domain))["value"].iloc[-1]) for seed, run in sorted(by_seed.items())
    }


def _difference_curves(runs: Study, baseline: str, domain: str) -> dict[str, list[dict[str, Any]]]:
    """Per variant the difference at every step that all runs evaluated, with a pointwise 95 % t interval.

    The noise is estimated anew at each step: differences are noisier early. Empty where no step is shared.
    """
    series = {
        v: {s: points(run, _metric(domain)).set_index("step")["value"] for s, run in by_seed.items()}
        for v, by_seed in runs.items()
    }
    table = pd.concat(
        {(v, s): values for v, by_seed in series.items() for s, values in by_seed.items()}, axis=1
    ).dropna()
    variants, seeds, columns = _layout(
        {v: {s: table[v, s] for s in by_seed} for v, by_seed in series.items()}
    )
    sd, dof = residual_noise(variants, seeds, columns)
    planned = next(iter(runs[baseline].values())).facts.steps_planned
    curves = {}
    for name in runs.keys() - {baseline}:
        shared = sorted(runs[name].keys() & runs[baseline].keys())
        each = np.array([table[name, s] - table[baseline, s] for s in shared])
        curves[name] = [
            {
                "step": int(step),
                "fraction": (int(step) + 1) / planned if planned else None,
                "per_seed": [float(d) for d in each[:, i]],
                "mean": float(each[:, i].mean()),
                "interval": t_interval(float(each[:, i].mean()), float(sd[i]), len(shared), dof)
                if dof > 0 and sd[i] > 0
                else None,
            }
            for i, step in enumerate(table.index)
        ]
    return curves


def _apart_from(curve: list[dict[str, Any]]) -> int | None:
    """The first step from which on every interval lies on the same side of zero as the last one, or None."""

    def side(point: dict[str, Any]) -> int:
        low, high = point["interval"] or (0.0, 0.0)
        return (low > 0) - (high < 0)

    last = side(curve[-1]) if curve else 0
    apart = list(takewhile(lambda point: side(point) == last, reversed(curve))) if last else []
    return apart[-1]["step"] if apart else None


def _changed(variant: dict[int, Run], baseline: dict[int, Run], seeds: list[int]) -> list[str]:
    """The known facts in which any pair differs: what the ablation changes."""
    pairs = [(variant[seed].facts, baseline[seed].facts) for seed in seeds]
    return [
        fact
        for fact in RunFacts.model_fields
        if fact not in NOT_VARIED and any(getattr(a, fact) != getattr(b, fact) for a, b in pairs)
    ]


def _warnings(
    runs: Study, baseline: str, seeds: dict[str, list[int]], effects: dict[Any, dict[str, Any]], noise: Noise
) -> list[str]:
    found = []
    for name, shared in seeds.items():
        if all(difference == 0 for difference in effects[name, OVERALL]["per_seed"]):
            found.append(
                f"{name} ends exactly where {baseline} does: a copy, or a change that does not take effect"
            )
        stated = {
            (seed, facts.seed)
            for seed in shared
            for facts in (runs[name][seed].facts, runs[baseline][seed].facts)
        }
        if any(logged is not None and logged != seed for seed, logged in stated):
            found.append(f"{name}: the seeds in the names are not those that the runs were trained with")
    if max(map(len, seeds.values())) == 1:
        one = "one seed per variant: the noise between seeds is unknown, so no difference can be judged"
        return [*found, one]
    if noise.sd is None:
        same = "runs of different seeds end alike: the seed does not take effect, so the noise is unknown"
        return [*found, same]
    fewest = min(map(len, seeds.values()))
    if fewest < 3:
        found.append(
            f"{fewest} seed{'s' * (fewest > 1)} for some variants: all runs together leave "
            f"{noise.degrees_of_freedom} degrees of freedom for the noise between seeds, so intervals are wide and the "
            "bootstrap's too narrow; three or more seeds are needed to settle small differences"
        )
    return found
