"""Ablations: variants against a baseline, paired by seed, judged against the noise between seeds."""

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from analysis.curves import points
from experiments.configuration import InputError
from logs.schema import Run

Numbers = NDArray[np.float64]

LEVEL = 0.05
POWER = 0.8
MOST_SEEDS = 99
OVERALL = "mean"
MEASURE = "loss_bpb"


def ablate(runs: dict[str, dict[int, Run]], baseline: str) -> dict[str, Any]:
    """Compare every variant with `baseline` on the final evaluation, overall and per domain.

    Differences are variant minus baseline in bits per byte, so negative is better, between runs of one
    seed: the same initialisation and, where the loader is seeded alike, the same order. Per domain, the
    standard deviation of these differences is pooled over the variants (equal variances assumed), which
    with two seeds each is the only usable estimate; the interval without pooling is given beside it.

    Args:
        runs: variant -> seed -> run. Only seeds that the baseline has too are paired.

    Raises:
        InputError: no baseline, no variant, no shared seed, or no evaluation that all runs share.
    """
    if baseline not in runs:
        raise InputError(
            f"no runs of the baseline `{baseline}`; there are {', '.join(sorted(runs)) or 'none'}"
        )
    variants = [name for name in runs if name != baseline]
    if not variants:
        raise InputError(f"there are only runs of the baseline `{baseline}`; nothing to compare with it")
    seeds = {name: sorted(runs[name].keys() & runs[baseline].keys()) for name in variants}
    if unpaired := [name for name in variants if not seeds[name]]:
        raise InputError(
            f"{', '.join(unpaired)} share no seed with the baseline `{baseline}`; nothing can be paired"
        )
    domains = _domains([run for by_seed in runs.values() for run in by_seed.values()])
    final = {
        (name, seed, domain): _final(run, domain)
        for name, by_seed in runs.items()
        for seed, run in by_seed.items()
        for domain in domains
    }
    differences = {
        (name, domain): np.array([final[name, s, domain] - final[baseline, s, domain] for s in seeds[name]])
        for name in variants
        for domain in domains
    }
    effects, noise = judge(differences)
    levels = {d: [final[baseline, s, d] for s in sorted(runs[baseline])] for d in domains}
    return {
        "baseline": baseline,
        "metric": f"eval/{OVERALL}/{MEASURE}",
        "unit": "bits per byte",
        "domains": [domain for domain in domains if domain != OVERALL],
        "baseline_levels": {d: {"mean": float(np.mean(v)), "per_seed": v} for d, v in levels.items()},
        "seed_noise": {d: {"difference_sd": sd, "degrees_of_freedom": dof} for d, (sd, dof) in noise.items()},
        "mixtures": [
            {
                "mixture": name,
                "seeds": seeds[name],
                "weights": runs[name][seeds[name][0]].facts.mixture,
                "overall": effects[name, OVERALL],
                "domains": {d: effects[name, d] for d in domains if d != OVERALL},
                "curve": _difference_curve(runs[name], runs[baseline], seeds[name]),
            }
            for name in variants
        ],
        "warnings": _warnings(seeds, noise[OVERALL]),
    }


def judge(
    differences: dict[tuple[str, str], Numbers],
) -> tuple[dict[tuple[str, str], dict[str, Any]], dict[str, tuple[float | None, int]]]:
    """Effect and verdict per (variant, domain) from its paired differences, and the seed noise per domain as
    (standard deviation of a paired difference or None, degrees of freedom)."""
    noise = {
        domain: _pooled_noise([d for (_, where), d in differences.items() if where == domain])
        for _, domain in differences
    }
    effects = {key: _effect(d, *noise[key[1]]) for key, d in differences.items()}
    _correct(effects)
    return effects, noise


def _domains(runs: list[Run]) -> list[str]:
    """Evaluation sets in bits per byte that every run logs: overall first."""
    shared = set.intersection(
        *(
            {m.split("/")[1] for m in run.metrics if m.startswith("eval/") and m.endswith(f"/{MEASURE}")}
            for run in runs
        )
    )
    if OVERALL not in shared:
        raise InputError(f"the runs do not all log eval/{OVERALL}/{MEASURE}; evaluate them on the same set")
    return [OVERALL, *sorted(shared - {OVERALL})]


def _final(run: Run, domain: str) -> float:
    """The last logged evaluation; a run that stopped early has none."""
    rows = points(run, f"eval/{domain}/{MEASURE}")
    planned = run.facts.steps_planned
    if planned and rows["done"].iloc[-1] < 0.98 * planned:
        raise InputError(
            f"run {run.name} was last evaluated at step {rows['step'].iloc[-1]} of {planned}; finish it"
        )
    return float(rows["value"].iloc[-1])


def _pooled_noise(groups: list[Numbers]) -> tuple[float | None, int]:
    """Standard deviation of paired differences within variants, and its degrees of freedom."""
    dof = sum(len(group) - 1 for group in groups)
    if dof == 0:
        return None, 0
    return float(np.sqrt(sum(((group - group.mean()) ** 2).sum() for group in groups) / dof)), dof


def _effect(differences: Numbers, sd: float | None, dof: int) -> dict[str, Any]:
    """One variant on one evaluation set; p and verdict are completed by `_correct`."""
    n, mean = len(differences), float(differences.mean())
    effect: dict[str, Any] = {"difference": mean, "per_seed": [float(d) for d in differences], "n": n}
    unpooled = None
    if n > 1:
        half = float(student.ppf(1 - LEVEL / 2, n - 1) * differences.std(ddof=1) / np.sqrt(n))
        unpooled = [mean - half, mean + half]
    if sd is None:
        nothing = ("interval", "p", "p_holm", "effect_size", "minimum_detectable", "seeds_needed")
        return (
            effect
            | dict.fromkeys(nothing, None)
            | {"unpooled_interval": unpooled, "verdict": "needs more seeds"}
        )
    error = sd / np.sqrt(n)
    half = float(student.ppf(1 - LEVEL / 2, dof) * error)
    return effect | {
        "interval": [mean - half, mean + half],
        "unpooled_interval": unpooled,
        "p": float(2 * student.sf(abs(mean) / error, dof)) if error > 0 else float(mean == 0),
        "effect_size": mean / sd if sd > 0 else None,
        "minimum_detectable": float((student.ppf(1 - LEVEL / 2, dof) + student.ppf(POWER, dof)) * error),
        "seeds_needed": _seeds_needed(mean, sd),
    }


def _seeds_needed(mean: float, sd: float) -> int | None:
    """Seeds at which a true difference of `mean` would be found with 80 % power by a paired t test, or None
    when more than `MOST_SEEDS`."""
    enough = np.flatnonzero(_detectable_in_sd() * sd <= abs(mean))
    return int(enough[0]) + 2 if len(enough) else None


@cache
def _detectable_in_sd() -> Numbers:
    """The difference found with 80 % power, in standard deviations, for 2, 3, ... `MOST_SEEDS` pairs."""
    n = np.arange(2, MOST_SEEDS + 1)
    return (student.ppf(1 - LEVEL / 2, n - 1) + student.ppf(POWER, n - 1)) / np.sqrt(n)


def _correct(effects: dict[tuple[str, str], dict[str, Any]]) -> None:
    """Holm's step-down correction (1979) over all variants and sets together, then the verdicts.

    Significant after correction: better or worse. Else, a difference below one standard deviation of the seed
    noise is within noise; a larger one needs more seeds to be told from noise.
    """
    tested = sorted((e for e in effects.values() if e["p"] is not None), key=lambda e: e["p"])
    running = 0.0
    for i, effect in enumerate(tested):
        running = max(running, min(1.0, (len(tested) - i) * effect["p"]))
        effect["p_holm"] = running
        size = effect["effect_size"]
        if running < LEVEL:
            effect["verdict"] = "better" if effect["difference"] < 0 else "worse"
        elif size is not None and abs(size) > 1:
            effect["verdict"] = "needs more seeds"
        else:
            effect["verdict"] = "within noise"


def _difference_curve(
    variant: dict[int, Run], baseline: dict[int, Run], seeds: list[int]
) -> list[dict[str, Any]]:
    """Difference in the overall evaluation at every step that all paired runs evaluated."""
    metric = f"eval/{OVERALL}/{MEASURE}"
    tables = [
        (
            points(variant[s], metric).set_index("step")["value"]
            - points(baseline[s], metric).set_index("step")["value"]
        )
        for s in seeds
    ]
    planned = baseline[seeds[0]].facts.steps_planned
    shared = sorted(set.intersection(*(set(table.dropna().index) for table in tables)))
    return [
        {
            "step": int(step),
            "fraction": (int(step) + 1) / planned if planned else None,
            "per_seed": [float(table[step]) for table in tables],
            "mean": float(np.mean([table[step] for table in tables])),
        }
        for step in shared
    ]


def _warnings(seeds: dict[str, list[int]], noise: tuple[float | None, int]) -> list[str]:
    fewest = min(len(shared) for shared in seeds.values())
    sd, dof = noise
    if sd is None:
        return ["one seed per mixture: the noise between seeds is unknown, so no difference can be judged"]
    if fewest >= 3:
        return []
    return [
        f"{fewest} seeds per mixture: an interval from one mixture's own pairs uses a t factor of "
        f"{student.ppf(0.975, max(1, fewest - 1)):.1f}, the pooled one {student.ppf(0.975, dof):.1f} "
        f"({dof} degrees of freedom); three or more seeds are needed to settle small differences"
    ]
