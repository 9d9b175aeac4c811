"""Fitting a scaling law to runs: estimate, intervals over runs, hold-out by scale, and what is not known."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import t as student

from analysis.bootstrap import bca_interval, percentile_interval
from analysis.fit.points import check_points, set_aside_diverged
from analysis.fit.resampled import Resampled, resample
from analysis.laws import Law
from analysis.laws.law import bounded_exp
from analysis.solver import Solution, solve

Numbers = NDArray[np.float64]

RESAMPLES = 4_000

FEW_RUNS = 5
WIDE = 2.0
"""An amount whose interval spans more than this factor's exponent (e^2 = 7.4) is not identified."""

FLAT = 1e-6
"""A parameter that moves no point's log response by more than this per unit does nothing: its term has vanished."""

MOST_FOR_START = 2_000
"""Points that the search for a start looks at; more change nothing and would cost memory."""

SCREENED = 12
"""Starts that are followed to their end, after their objectives have been compared."""

LARGEST_SHARE = 10
"""One in so many runs, and at least one, is held out as the largest."""


@dataclass(frozen=True)
class Fit:
    """A fitted law with all that intervals and predictions are made of.

    Attributes:
        points: the points used; `x [n, features]` and `response [n]` (above the floor) are of these.
        group: the run of each point, counted from 0, `[n]`.
        theta: the estimate, `[p]`.
        solution: how the solver ended, from the best start.
        resampled: the estimates of the resamples.
        covariance: of theta from the residuals, `[p, p]`; dof: its degrees of freedom.
        set_aside: points that were found diverged and not used.
        holdout: as in the result of `fit_law`.
    """

    law: Law
    points: pd.DataFrame
    x: Numbers
    response: Numbers
    group: NDArray[np.intp]
    floor: float
    delta: float | None
    theta: Numbers
    solution: Solution
    resampled: Resampled
    covariance: Numbers
    dof: int
    n_points: int
    set_aside: list[dict[str, Any]]
    holdout: dict[str, Any]

    @property
    def error(self) -> Numbers:
        """Standard errors of theta from the residuals, `[p]`."""
        return np.sqrt(np.maximum(np.diag(self.covariance), 0))

    @property
    def residual(self) -> Numbers:
        """Log response over the law's, `[n]`."""
        return np.log(self.response) - self.law.log_loss(self.theta[None], self.x)[0]


def fit_law(
    law: Law,
    points: pd.DataFrame,
    floor: float = 0.0,
    delta: float | None = None,
    drop_highest: int = 0,
    resamples: int = RESAMPLES,
) -> dict[str, Any]:
    """Fit `law` to `points` in log space and say how far the answer can be trusted.

    Args:
        points: columns `name`, the law's response (`loss`), `group` and its variables (`flops`, ...), one row per
            point. Rows of one group (a run) are resampled together.
        floor: irreducible loss taken as known; subtracted from the loss before the logarithm.
        delta: Huber's corner in log loss; None for least squares.
        drop_highest: how many of the highest losses to set aside first.
        resamples: how many resamples of the runs, where not all are enumerated.

    Returns:
        The keys of `maquette fit --json`, and `points`, `band` (the fitted curve with two intervals),
        `resamples`, `floor` and `source`. `interval` is the percentile bootstrap over groups, `bca_interval` its
        bias-corrected and accelerated form, `t_interval` Student's from the residuals.

    Raises:
        InputError: no more points than parameters, one single scale, losses in two units, or a loss at or below
            the floor.
    """
    return describe(estimate(law, points, floor, delta, drop_highest, resamples))


def estimate(
    law: Law,
    points: pd.DataFrame,
    floor: float = 0.0,
    delta: float | None = None,
    drop_highest: int = 0,
    resamples: int = RESAMPLES,
) -> Fit:
    """The fit itself, for predictions and optima; arguments and errors as of `fit_law`."""
    order = points[law.response].sort_values(kind="stable").index[: len(points) - drop_highest]
    kept = points.loc[order].sort_index()
    check_points(law, kept, floor)
    used, aside = set_aside_diverged(law, kept, floor, best_end)
    if aside:
        check_points(law, used, floor)
    x, response = law.x(used), used[law.response].to_numpy("float64") - floor
    solution = best_end(law, x, response, delta)
    theta = solution.theta[0]
    group = _groups(law, used)
    covariance, dof = _covariance(law, theta, x, response, group)
    return Fit(
        law=law,
        points=used,
        x=x,
        response=response,
        group=group,
        floor=floor,
        delta=delta,
        theta=theta,
        solution=solution,
        resampled=resample(law, theta, x, response, group, _scales(law, used), delta, resamples),
        covariance=covariance,
        dof=dof,
        n_points=len(points),
        set_aside=aside,
        holdout=hold_out(law, used, floor, delta),
    )


def describe(fit: Fit) -> dict[str, Any]:
    """What `fit_law` returns of a fit."""
    law, spread = fit.law, fit.resampled.theta
    value = law.report(fit.theta[None])[0]
    samples = law.report(spread)
    low, high = percentile_interval(samples)
    bca_low, bca_high = bca_interval(samples, value, law.report(fit.resampled.left_out))
    half = fit.error * student.ppf(0.975, fit.dof)
    t_low, t_high = law.report((fit.theta - half)[None])[0], law.report((fit.theta + half)[None])[0]
    identified = _identified(fit, half)
    status = ("" if fit.solution.converged[0] else "not ") + "converged"
    runs = int(fit.group.max()) + 1
    return {
        "law": law.name,
        "n_points": fit.n_points,
        "n_used": len(fit.points),
        "n_runs": runs,
        "parameters": {
            name: {
                "value": float(value[i]),
                "interval": [float(low[i]), float(high[i])],
                "bca_interval": [float(bca_low[i]), float(bca_high[i])],
                "t_interval": sorted([float(t_low[i]), float(t_high[i])]),
            }
            for i, name in enumerate(law.parameters)
        },
        "objective": float(fit.solution.objective[0]),
        "gradient": float(fit.solution.gradient[0]),
        "status": status if all(identified.values()) else f"{status}, under-identified",
        "identified": identified,
        "on_bound": [n for n, on in zip(law.parameters, fit.solution.at_bound[0], strict=True) if on],
        "holdout": fit.holdout,
        "floor": fit.floor,
        "delta": fit.delta,
        "degrees_of_freedom": fit.dof,
        "resamples": {
            "n": len(spread),
            "exact": fit.resampled.exact,
            "degenerate": fit.resampled.degenerate,
            "linearised": fit.resampled.linearised,
        },
        "points": _predictions(fit),
        "band": _band(fit) if law.variables == ("flops",) else [],
        "set_aside": fit.set_aside,
        "source": law.source,
        "warnings": _warnings(fit, runs, identified),
    }


def best_end(law: Law, x: Numbers, response: Numbers, delta: float | None) -> Solution:
    """The best end of the law's starts, as a batch of one."""
    every = slice(None, None, -(-len(x) // MOST_FOR_START))
    starts = np.atleast_2d(law.start(x[every], response[every]))
    if len(starts) > SCREENED:
        rough = np.abs(law.log_loss(starts, x[every]) - np.log(response[every])).sum(axis=1)
        starts = starts[np.argsort(np.where(np.isfinite(rough), rough, np.inf), kind="stable")[:SCREENED]]
    ends = solve(law, starts, x, response, np.ones((len(starts), len(x))), delta)
    best = slice(int(ends.objective.argmin()), int(ends.objective.argmin()) + 1)
    return Solution(
        ends.theta[best], ends.objective[best], ends.gradient[best], ends.converged[best], ends.at_bound[best]
    )


def _groups(law: Law, used: pd.DataFrame) -> NDArray[np.intp]:
    """The run of each point, from 0; where a curve law has one single run, ten stretches of it."""
    codes: NDArray[np.intp] = pd.factorize(used["group"])[0].astype(np.intp)
    if law.features is None or codes.max() > 0:
        return codes
    order = used["step"].rank(method="first").to_numpy("int64") - 1
    return (order * 10 // len(used)).astype(np.intp)


def _scales(law: Law, used: pd.DataFrame) -> NDArray[np.intp]:
    """Which points are at the same scale, counted from 0, `[n]`."""
    return used.groupby(list(law.variables), sort=False).ngroup().to_numpy("int64").astype(np.intp)


def _covariance(
    law: Law, theta: Numbers, x: Numbers, response: Numbers, group: NDArray[np.intp]
) -> tuple[Numbers, int]:
    """Covariance of theta from the residuals (linearised), and the degrees of freedom.

    Rows of one run share its luck, so with several rows per run it is the sandwich over runs (Liang and Zeger 1986).
    """
    predicted, jacobian = law.linearised(theta[None], x)
    residual, rows = predicted[0] - np.log(response), jacobian[0].T
    runs = int(group.max()) + 1
    bread = np.linalg.pinv(rows.T @ rows)
    if runs == len(x):
        dof = len(x) - len(theta)
        return bread * float(residual @ residual) / dof, dof
    scores = np.stack([np.bincount(group, column * residual, minlength=runs) for column in rows.T], axis=1)
    return bread @ (scores.T @ scores) @ bread * runs / (runs - 1), max(1, runs - len(theta))


def _identified(fit: Fit, half: Numbers) -> dict[str, bool]:
    """A parameter is identified when it moves the law, is on no bound, and the wider of its two intervals is short: it
    excludes zero, or for amounts (fitted as logarithms) it spans less than e^`WIDE`."""
    slopes = np.abs(fit.law.linearised(fit.theta[None], fit.x)[1][0]).max(axis=1)
    low, high = percentile_interval(fit.resampled.theta)
    middle = np.median(fit.resampled.theta, axis=0)
    result = {}
    for i, name in enumerate(fit.law.parameters):
        width = max(float(high[i] - low[i]), 2 * float(half[i]))
        short = width < WIDE if name in fit.law.positive else width < 2 * abs(float(middle[i]))
        result[name] = short and bool(slopes[i] > FLAT) and not bool(fit.solution.at_bound[0, i])
    return result


def hold_out(law: Law, used: pd.DataFrame, floor: float, delta: float | None) -> dict[str, Any]:
    """Fit the smaller runs, predict the largest: the error that a forecast of this kind had here.

    Held out is the largest tenth of the runs by `law.size`, at least one, with all that are as large.
    `extrapolation` is the size of the largest over that of the largest fitted. Of a curve law whose runs are all as
    long, the last run of the table is held out.
    """
    size = pd.Series(law.size(used), index=used.index).groupby(used["group"]).transform("max")
    per_run = np.sort(size.groupby(used["group"]).first().to_numpy())
    count = max(1, len(per_run) // LARGEST_SHARE)
    largest = (size >= per_run[-count] * (1 - 1e-9)).to_numpy()
    if largest.all() and law.features is not None and len(per_run) > 1:
        largest = (used["group"] == used["group"].iloc[-1]).to_numpy()
    small, held = used[~largest], used[largest]
    scales = small[list(law.variables)].drop_duplicates()
    if len(scales) < len(law.parameters) or (len(small) and (scales.nunique() < 2).any()):
        return {"reason": "without the largest scale there are fewer scales than parameters"}
    x, response = law.x(used), used[law.response].to_numpy("float64")
    theta = best_end(law, x[~largest], response[~largest] - floor, delta).theta
    predicted = bounded_exp(law.log_loss(theta, x[largest])[0]) + floor
    actual = response[largest]
    error = float(predicted.mean() - actual.mean())
    return {
        "held_out": list(dict.fromkeys(str(name) for name in held["name"])),
        "predicted": float(predicted.mean()),
        "actual": float(actual.mean()),
        "error": error,
        "relative_error": error / float(actual.mean()),
        "mean_absolute_error": float(np.abs(predicted - actual).mean()),
        "fitted_on": len(small),
        "extrapolation": float(size[largest].max() / size[~largest].max()),
        "reason": None,
    }


def _predictions(fit: Fit) -> list[dict[str, Any]]:
    law, response = fit.law, fit.law.response
    predicted = bounded_exp(law.log_loss(fit.theta[None], fit.x)[0]) + fit.floor
    columns = [*law.variables, response]
    rows = fit.points[columns].to_numpy("float64").tolist()
    return [
        {"name": str(name), **dict(zip(columns, row, strict=True)), "predicted": float(fitted)}
        for name, row, fitted in zip(fit.points["name"], rows, predicted, strict=True)
    ]


def _band(fit: Fit) -> list[dict[str, Any]]:
    """The fitted curve from half the smallest to twice the largest scale, with the bootstrap interval of the
    curve (`interval`) and Student's (`t_interval`, linearised in theta)."""
    law = fit.law
    at = np.geomspace(fit.x.min() / 2, fit.x.max() * 2, 60)[:, None]
    centre, rows = (array[0] for array in law.linearised(fit.theta[None], at))
    low, high = percentile_interval(law.log_loss(fit.resampled.theta, at))
    variance = np.einsum("pn,pq,qn->n", rows, fit.covariance, rows)
    half = student.ppf(0.975, fit.dof) * np.sqrt(np.maximum(variance, 0))
    curves = bounded_exp(np.stack([centre, low, high, centre - half, centre + half])) + fit.floor
    return [
        {
            law.variables[0]: float(c),
            "loss": row[0],
            "interval": [row[1], row[2]],
            "t_interval": [row[3], row[4]],
        }
        for c, row in zip(at[:, 0], curves.T.tolist(), strict=True)
    ]


def _warnings(fit: Fit, runs: int, identified: dict[str, bool]) -> list[str]:
    warnings = []
    if runs < FEW_RUNS:
        warnings.append(
            f"{runs} runs and {len(fit.theta)} parameters leave {fit.dof} degree{'s' if fit.dof > 1 else ''} "
            "of freedom: the bootstrap interval is too narrow with so few runs and Student's interval is "
            "the honest one; do not extrapolate far"
        )
    if fit.points["group"].nunique() < runs:
        warnings.append(
            "all rows are of one run: the intervals resample stretches of its curve and say nothing about others"
        )
    if fit.set_aside:
        names = ", ".join(str(row["name"]) for row in fit.set_aside)
        warnings.append(f"set aside as diverged, far above what all others follow: {names}")
    loose = [name for name, known in identified.items() if not known]
    if loose:
        warnings.append(f"{', '.join(loose)} not identified by these points: other values fit about as well")
    return warnings
