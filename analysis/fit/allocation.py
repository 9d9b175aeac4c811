"""How to spend a compute budget: the best model size and number of tokens, with intervals."""

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.bootstrap import EXACT_UP_TO, percentile_interval, resample_counts
from analysis.fit.estimate import RESAMPLES, WIDE, Fit
from analysis.laws import AllocationLaw, Law
from analysis.laws.law import bounded_exp
from experiments.configuration import InputError

Numbers = NDArray[np.float64]

REACH = 6.0
"""Resamples look for their optimum this far in log N around the estimate's, a factor of 400."""


def allocate(fit: Fit, flops: list[float], fixed: dict[str, float] | None = None) -> list[dict[str, Any]]:
    """The best N and D = C / (6 N) for each budget by a law of N and D, and the loss there, each with an interval.

    Args:
        flops: budgets C.
        fixed: the law's other variables, e.g. the unique tokens of `data-constrained`.

    Returns:
        For each budget `{flops, n, d, loss: {value, interval}, tokens_per_parameter, extrapolation}`; an interval is
        None where more than one resample in forty has no optimum within reach.

    Raises:
        InputError: the law is not one of N and D, or one of its other variables is not fixed.
    """
    law = fit.law
    others = [v for v in law.variables if v not in ("n", "d")]
    if not {"n", "d"} <= set(law.variables) or law.response != "loss":
        raise InputError(
            f"{law.name} says nothing about N and D; take a law of both, e.g. chinchilla-approach-3"
        )
    unknown = sorted(set(others) ^ set(fixed or {}))
    if unknown:
        raise InputError(
            f"{law.name} needs a value for {', '.join(others) or 'nothing else'}: check {unknown[0]}"
        )
    largest = float((6 * fit.points["n"] * fit.points["d"]).max())
    result = []
    for budget in flops:
        centre = _optimum(
            law, fit.theta[None], budget, fixed or {}, np.log(budget / 6) / 2, np.log(budget / 6) / 2 - 2
        )
        spread = _optimum(law, fit.resampled.theta, budget, fixed or {}, float(centre[0, 0]), REACH)
        values = {
            "n": (np.exp(centre[:, 0]), np.exp(spread[:, 0])),
            "d": (budget / 6 / np.exp(centre[:, 0]), budget / 6 / np.exp(spread[:, 0])),
            "loss": (bounded_exp(centre[:, 1]) + fit.floor, bounded_exp(spread[:, 1]) + fit.floor),
        }
        entry: dict[str, Any] = {"flops": float(budget)}
        for name, (value, samples) in values.items():
            known = samples[np.isfinite(spread[:, 0])]
            trusted = len(known) >= 0.975 * len(samples)
            entry[name] = {
                "value": float(value[0]),
                "interval": [float(end) for end in percentile_interval(known)] if trusted else None,
            }
        entry["tokens_per_parameter"] = entry["d"]["value"] / entry["n"]["value"]
        entry["extrapolation"] = distance(budget / largest)
        result.append(entry)
    return result


def allocation_exponents(fit: Fit) -> dict[str, Any]:
    """a and b = 1 - a of N* ~ C^a and D* ~ C^b at the largest fitted compute, with bootstrap intervals."""
    law, largest = fit.law, float((6 * fit.points["n"] * fit.points["d"]).max())
    slopes = []
    for theta in (fit.theta[None], fit.resampled.theta):
        ends = []
        for budget in (largest / 2, largest * 2):
            middle = float(np.log(budget / 6) / 2)
            ends.append(_optimum(law, theta, budget, {}, middle, 2 * REACH)[:, 0])
        slopes.append((ends[1] - ends[0]) / np.log(4))
    value, known = float(slopes[0][0]), slopes[1][np.isfinite(slopes[1])]
    low, high = percentile_interval(known) if len(known) else (np.nan, np.nan)
    return {
        "a": {"value": value, "interval": [float(low), float(high)]},
        "b": {"value": 1 - value, "interval": [float(1 - high), float(1 - low)]},
    }


def distance(times: float) -> str:
    """How far a prediction at `times` the largest fitted run reaches, in words."""
    if times <= 1:
        return "within the fitted runs"
    return f"{times:.2g}x beyond the largest run" if times < 10 else f"{times:.0f}x beyond the largest run"


def _optimum(
    law: Law, theta: Numbers, budget: float, fixed: dict[str, float], centre: float, reach: float
) -> Numbers:
    """log N with the least loss at 6 N D = budget and log loss there, `[batch, 2]`; NaN where it is at the edge.

    A grid of log N, then the parabola through the least and its neighbours.
    """
    log_n = centre + np.linspace(-reach, reach, 801)
    at = {"n": np.exp(log_n), "d": np.exp(np.log(budget / 6) - log_n)}
    x = np.stack([at.get(v, np.full(len(log_n), fixed.get(v, np.nan))) for v in law.variables], axis=1)
    found = []
    for part in np.array_split(theta, -(-len(theta) // 500)):
        loss = law.log_loss(part, x)
        least = loss.argmin(axis=1)
        row, inner = np.arange(len(part)), np.clip(least, 1, len(log_n) - 2)
        left, middle, right = (loss[row, inner + step] for step in (-1, 0, 1))
        bend = left - 2 * middle + right
        shift = np.clip((left - right) / (2 * np.maximum(bend, 1e-300)), -1, 1)
        best = log_n[inner] + shift * (log_n[1] - log_n[0])
        lowest = middle - (left - right) * shift / 4
        edge = least != inner
        found.append(np.stack([np.where(edge, np.nan, best), np.where(edge, np.nan, lowest)], axis=1))
    return np.concatenate(found)


def fit_allocation(law: AllocationLaw, points: pd.DataFrame, resamples: int = RESAMPLES) -> dict[str, Any]:
    """N*(C) = k C^a through the optima that the runs show, with the bootstrap over runs redone from the runs on.

    Returns:
        The keys of `fit_law` that make sense here, `optima`, and parameters k, a and b = 1 - a (D* = C / (6 N*)).

    Raises:
        InputError: fewer than three different optima show.
    """
    codes = pd.factorize(points["group"])[0]
    runs = int(codes.max()) + 1
    log_c, log_n = law.optima(points, np.ones((1, len(points))))
    seen = np.isfinite(log_n[0])
    if (found := len(np.unique(log_n[0, seen]))) < 3:
        raise InputError(
            f"{law.name}: the runs show {found} best model sizes, and a line needs three; give runs of more sizes, on "
            "both sides of the optimum at each budget"
        )
    theta = _lines(log_c, log_n)[0]
    parts, degenerate = [], 0
    for counts, times in resample_counts(runs, resamples, max(1, 400_000 // len(points))):
        lines = _lines(log_c, law.optima(points, counts[:, codes])[1])
        known = np.isfinite(lines).all(axis=1)
        degenerate += int(times[~known].sum())
        parts.append(np.repeat(lines[known], times[known], axis=0))
    spread = np.concatenate(parts)
    residual = log_n[0, seen] - (theta[0] + theta[1] * log_c[seen])
    samples = np.stack([bounded_exp(spread[:, 0]), spread[:, 1], 1 - spread[:, 1]], axis=1)
    value = [float(bounded_exp(theta[0])), float(theta[1]), float(1 - theta[1])]
    low, high = percentile_interval(samples)
    identified = _identified(theta, spread, float(log_c[seen].mean()))
    return {
        "law": law.name,
        "n_points": len(points),
        "n_used": len(points),
        "n_runs": runs,
        "parameters": {
            name: {"value": value[i], "interval": [float(low[i]), float(high[i])]}
            for i, name in enumerate("kab")
        },
        "objective": float(residual @ residual) / 2,
        "status": "converged" if all(identified.values()) else "converged, under-identified",
        "identified": identified,
        "holdout": _held_out(log_c[seen], log_n[0, seen]),
        "resamples": {"n": len(spread), "exact": runs**runs <= EXACT_UP_TO, "degenerate": degenerate},
        "optima": [
            {
                "flops": float(np.exp(c)),
                "n": float(np.exp(n)),
                "predicted": float(np.exp(theta[0] + theta[1] * c)),
            }
            for c, n in zip(log_c[seen], log_n[0, seen], strict=True)
        ],
        "source": law.source,
        "warnings": _doubts(log_c, seen, identified),
    }


def _identified(theta: Numbers, spread: Numbers, middle: float) -> dict[str, bool]:
    """k where the line's height at the middle budget is known (k itself is its height at one FLOP), a and b where
    their intervals exclude zero."""
    height, slope = np.ptp(
        percentile_interval(np.stack([spread @ [1.0, middle], spread[:, 1]], axis=1)), axis=0
    )
    return {
        "k": bool(height < WIDE),
        "a": bool(slope < 2 * abs(theta[1])),
        "b": bool(slope < 2 * abs(1 - theta[1])),
    }


def _lines(log_c: Numbers, log_n: Numbers) -> Numbers:
    """(log k, a) `[batch, 2]` of the least-squares line through each row's optima; NaN with fewer than two."""
    seen = np.isfinite(log_n)
    count = seen.sum(axis=1)
    y = np.where(seen, log_n, 0.0)
    few = np.maximum(count, 1)
    mean_x, mean_y = (seen * log_c).sum(axis=1) / few, y.sum(axis=1) / few
    off = np.where(seen, log_c - mean_x[:, None], 0.0)
    spread = (off**2).sum(axis=1)
    slope = np.where((count >= 2) & (spread > 0), (off * y).sum(axis=1) / np.maximum(spread, 1e-300), np.nan)
    return np.stack([mean_y - slope * mean_x, slope], axis=1)


def _held_out(log_c: Numbers, log_n: Numbers) -> dict[str, Any]:
    """Fit the smaller budgets, predict the best size at the largest."""
    largest = log_c == log_c.max()
    if len(np.unique(log_c[~largest])) < 2:
        return {"reason": "without the largest budget there are fewer than two"}
    log_k, a = _lines(log_c[~largest], log_n[None, ~largest])[0]
    predicted, actual = float(np.exp(log_k + a * log_c.max())), float(np.exp(log_n[largest].mean()))
    return {
        "held_out": [f"{np.exp(log_c.max()):.3g} FLOPs"],
        "predicted": predicted,
        "actual": actual,
        "error": predicted - actual,
        "relative_error": (predicted - actual) / actual,
        "fitted_on": int((~largest).sum()),
        "extrapolation": float(np.exp(log_c.max() - log_c[~largest].max())),
        "reason": None,
    }


def _doubts(log_c: Numbers, seen: NDArray[np.bool_], identified: dict[str, bool]) -> list[str]:
    warnings = []
    if not seen.all():
        lost = ", ".join(f"{np.exp(c):.3g}" for c in log_c[~seen][:5])
        warnings.append(
            f"no optimum inside the sizes tried at {int((~seen).sum())} of {len(seen)} budgets ({lost})"
        )
    loose = [name for name, known in identified.items() if not known]
    if loose:
        warnings.append(f"{', '.join(loose)} not identified by these points: other values fit about as well")
    return warnings
