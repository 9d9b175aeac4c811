"""Forecasts across the rungs of a ladder: at each 5 % of the run, refitted across rungs at the same fraction.

A fit at the end of the runs says nothing about a run at half its budget: it has not decayed its learning rate.
So a run is compared with its ladder at the same fraction (Marin's plot_scaling_ladder.py@74f91ba8).
"""

from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student

from analysis.forecast.ladder import FRACTIONS, Curve, Numbers, ladder_losses

UPPER = 0.975
"""Upper quantile of a two-sided 95 % interval."""


@dataclass(frozen=True)
class Band:
    """A forecast at some fractions `[n]`: `predicted`, and `low` to `high` at 95 %, NaN where no interval can be
    given. `notes` are sentences for the user."""

    predicted: Numbers
    low: Numbers
    high: Numbers
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Line:
    """log(L - floor) = intercept - alpha log C through n points: the estimate, and what its interval needs."""

    floor: float
    intercept: float
    alpha: float
    deviation: float
    dof: int
    centre: float
    spread: float
    n: int

    def predict(self, flops: float) -> tuple[float, float, float]:
        """Loss at `flops` with Student's 95 % interval from parameter and residual uncertainty."""
        x = np.log(flops)
        middle = self.intercept - self.alpha * x
        if self.dof < 1:
            return self.floor + float(np.exp(middle)), np.nan, np.nan
        error = self.deviation * np.sqrt(1 + 1 / self.n + (x - self.centre) ** 2 / self.spread)
        half = float(student.ppf(UPPER, self.dof)) * error
        return tuple(self.floor + float(np.exp(middle + side * half)) for side in (0, -1, 1))  # type: ignore[return-value]


def fit_line(flops: Numbers, loss: Numbers, floor: float) -> Line:
    """Least squares of log(loss - floor) on log FLOPs, `[n]` each; Kaplan et al. 2020, eq. 1.3, above a floor."""
    x, z = np.log(flops), np.log(loss - floor)
    slope, intercept = np.polyfit(x, z, 1)
    residual, dof = z - intercept - slope * x, len(x) - 2
    deviation = float(np.sqrt(residual @ residual / dof)) if dof else np.nan
    spread = float(np.sum((x - x.mean()) ** 2))
    return Line(floor, float(intercept), float(-slope), deviation, dof, float(x.mean()), spread, len(x))


def pinned_floor(target: Curve, rungs: list[Curve], at: Numbers, floor: float) -> Band:
    """Marin's public forecast with intervals: one line per 5 %, a pinned floor, linear between the fractions."""
    losses, notes = ladder_losses(rungs)
    rows = []
    for fraction, loss in zip(FRACTIONS, losses, strict=True):
        flops = np.array([rung.flops for rung in rungs]) * fraction
        rows.append(fit_line(flops, loss, floor).predict(target.flops * fraction))
    return between(np.array(rows), at, tuple(notes))


def between(rows: Numbers, at: Numbers, notes: tuple[str, ...] = ()) -> Band:
    """A band given at every 5 % (`[20, 3]`: predicted, low, high), at the fractions `at`."""
    predicted, low, high = (np.interp(at, FRACTIONS, column) for column in rows.T)
    return Band(predicted, low, high, notes)


def floor_error(flops: Numbers, losses: Numbers, floor: float) -> float:
    """Sum of squares in log loss around one line per row of `losses` `[rows, n]`, for one floor common to all.

    Residuals of log(L - floor) are brought to log L by their derivative (L - floor) / L: in log(L - floor) itself
    a low floor would always win.
    """
    total = 0.0
    x = np.log(flops)
    for row_x, loss in zip(x, losses, strict=True):
        share = (loss - floor) / loss
        z = np.log(loss - floor)
        basis = np.stack([np.ones_like(row_x), row_x], axis=1) * share[:, None]
        coefficients, *_ = np.linalg.lstsq(basis, z * share, rcond=None)
        total += float(np.sum((basis @ coefficients - z * share) ** 2))
    return total


def estimate_floor(flops: Numbers, losses: Numbers) -> float:
    """The floor between 0 and the lowest loss under which the rows of `losses` `[rows, n]` are straightest."""
    from scipy.optimize import minimize_scalar

    candidates = losses.min() * np.linspace(0.0, 0.99, 100)
    best = int(np.argmin([floor_error(flops, losses, floor) for floor in candidates]))
    low, high = candidates[max(0, best - 1)], candidates[min(len(candidates) - 1, best + 1)]
    found = minimize_scalar(
        lambda floor: floor_error(flops, losses, floor), bounds=(low, high), method="bounded"
    )
    ends = [float(found.x), float(candidates[best])]
    return min(ends, key=lambda floor: floor_error(flops, losses, floor))


def estimated_floor(target: Curve, rungs: list[Curve], at: Numbers) -> Band:
    """One floor for all fractions, estimated from the rungs; its uncertainty is part of the interval.

    The interval is Student's with the degrees of freedom of one fraction (rungs less three parameters): the
    evaluations of one run at twenty fractions are not twenty runs.
    """
    losses, notes = ladder_losses(rungs)
    flops = FRACTIONS[:, None] * np.array([rung.flops for rung in rungs])
    floor = estimate_floor(flops, losses)
    rows = np.array(
        [
            predict_with_floor(row_flops, loss, floor, target.flops * fraction)
            for fraction, row_flops, loss in zip(FRACTIONS, flops, losses, strict=True)
        ]
    )
    notes.append(f"the floor is estimated at {floor:.3f} nats per token from {len(rungs)} rungs")
    if floor < 0.01 * losses.min():
        notes.append("the estimated floor sits on its bound of zero: these rungs do not identify it")
    return between(rows, at, tuple(notes))


def predict_with_floor(flops: Numbers, loss: Numbers, floor: float, at: float) -> tuple[float, float, float]:
    """Loss at `at` FLOPs from points `[n]` under an estimated floor; interval linearised in (log A, alpha, E)."""
    line = fit_line(flops, loss, floor)
    middle, dof = line.predict(at)[0], len(loss) - 3
    if dof < 1:
        return middle, np.nan, np.nan

    def row(x: Numbers) -> Numbers:
        """Derivative of the loss by log A, alpha and E `[n, 3]`."""
        reducible = np.exp(line.intercept - line.alpha * np.log(x))
        return np.stack([reducible, -reducible * np.log(x), np.ones_like(x)], axis=-1)

    residual = loss - floor - np.exp(line.intercept - line.alpha * np.log(flops))
    variance = float(residual @ residual) / dof
    here, there = row(flops), row(np.array([at]))[0]
    scale = np.abs(here).max(axis=0)
    covariance = np.linalg.pinv((here / scale).T @ (here / scale)) * variance
    half = float(student.ppf(UPPER, dof) * np.sqrt(variance + (there / scale) @ covariance @ (there / scale)))
    return middle, max(0.0, middle - half), middle + half
