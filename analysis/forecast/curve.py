"""Forecasts from the run's own past under its learning rate: the rest of a curve from what has landed so far.

A `CurveLaw` is linear in its floor and amplitudes given its exponents, so it is fitted by variable projection:
for each exponents on a grid, and around the best, non-negative least squares of the rest.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize, nnls
from scipy.stats import t as student

from analysis.bootstrap import autocorrelation_time
from analysis.forecast.across import UPPER, Band
from analysis.forecast.ladder import FIRST, Curve, Numbers
from experiments.configuration import InputError
from logs.schema import Schedule

RESOLUTION = 500
"""Points of a run at which its schedule is integrated; a straight schedule needs no more."""


@dataclass(frozen=True)
class CurveLaw:
    """Loss along one run, L = L0 + sum_j c_j g_j with c_j >= 0, as a function of its learning rate.

    Attributes:
        shapes: `(learning rate over its peak [m], fraction [m], exponents) -> g [m, k]`, from the end of the
            warm-up to the end of the run.
        grid: exponents to start from, one tuple per start.
        bounds: of each exponent.
        source: where the equation is from.
    """

    name: str
    shapes: Callable[[Numbers, Numbers, Numbers], Numbers]
    grid: tuple[tuple[float, ...], ...]
    bounds: tuple[tuple[float, float], ...]
    source: str


def tissue_shapes(rate: Numbers, fraction: Numbers, exponents: Numbers) -> Numbers:
    """S1^-alpha and -S2 of Tissue et al. 2024 (arXiv 2408.11029): L = L0 + A S1^-alpha - C S2.

    S1 is the area under the learning rate and S2 that under its momentum of decay, both in units of peak rate
    times run. The published memory of 1,000 steps (lambda = 0.999) is short against runs of 10,000 steps and
    more: there S2 follows the area of the decay itself, the peak less the rate.
    """
    trapezoids = np.diff(fraction) * (rate[1:] + rate[:-1]) / 2
    area = fraction[0] + np.append(0.0, np.cumsum(trapezoids))  # the warm-up counts as if it ran at the peak
    return np.stack([area ** -exponents[0], -(rate[0] - rate)], axis=-1)


TISSUE = CurveLaw(
    "tissue",
    tissue_shapes,
    tuple((float(alpha),) for alpha in np.geomspace(0.05, 2.0, 12)),
    ((0.02, 3.0),),
    "Tissue et al. 2024, arXiv 2408.11029, in the limit of a memory short against the run",
)


def rate_at(schedule: Schedule, fraction: Numbers) -> Numbers:
    """Learning rate over its peak at fractions of the run behind the warm-up; straight or constant schedules.

    Raises:
        InputError: a schedule of another shape.
    """
    if schedule.shape == "constant":
        return np.ones_like(fraction)
    if schedule.shape != "linear":
        raise InputError(
            f"the schedule is {schedule.shape}; a curve is continued under a linear or constant schedule only"
        )
    warm = schedule.warmup_steps / schedule.total_steps
    return 1 - (1 - schedule.final_fraction) * np.clip((fraction - warm) / (1 - warm), 0, 1)


def law_shapes(law: CurveLaw, curve: Curve, at: Numbers, exponents: Numbers) -> Numbers:
    """`law`'s shapes `[n, k]` at the fractions `at` of a run.

    Raises:
        InputError: the run does not state its schedule.
    """
    if curve.schedule is None:
        raise InputError(
            f"run {curve.name} does not state its learning-rate schedule; it cannot be continued"
        )
    warm = max(curve.schedule.warmup_steps, 1) / curve.schedule.total_steps
    fine = np.linspace(warm, 1.0, RESOLUTION)
    shapes = law.shapes(rate_at(curve.schedule, fine), fine, exponents)
    return np.stack([np.interp(at, fine, column) for column in shapes.T], axis=-1)


def landed(curve: Curve) -> Curve:
    """The evaluations a curve law is fitted to: from 5 % of the run on, where the first descent is over.

    Raises:
        InputError: fewer than 5.
    """
    known = curve.since(FIRST)
    if len(known.loss) < 5:
        raise InputError(
            f"run {curve.name} has {len(known.loss)} evaluations from 5 % of the run on; its curve needs at least 5"
        )
    return known


def _project(basis: Numbers, loss: Numbers) -> tuple[Numbers, float]:
    """Non-negative coefficients of `basis` `[n, k]` with the least squared relative error, and that error."""
    coefficients, norm = nnls(basis / loss[:, None], np.ones(len(loss)))
    return coefficients, float(norm**2)


def own_curve(target: Curve, at: Numbers, law: CurveLaw = TISSUE) -> Band:
    """The run's landed evaluations continued under its learning rate by `law`, nothing else known."""
    known = landed(target)

    def basis(exponents: Numbers, fractions: Numbers) -> Numbers:
        return np.column_stack([np.ones(len(fractions)), law_shapes(law, target, fractions, exponents)])

    exponents = _best(law, lambda e: _project(basis(e, known.fraction), known.loss)[1])
    coefficients, _ = _project(basis(exponents, known.fraction), known.loss)

    def curve(theta: Numbers, fractions: Numbers) -> Numbers:
        return basis(theta[len(coefficients) :], fractions) @ theta[: len(coefficients)]

    theta = np.concatenate([coefficients, exponents])
    return _linearised(curve, theta, known, at, (f"{law.name}: {law.source}",))


def shared_curve(target: Curve, rungs: list[Curve], at: Numbers, law: CurveLaw = TISSUE) -> Band:
    """The run's landed evaluations continued by `law`, its exponents and how its terms share out taken from the
    rungs, which have been through their whole schedules; floor and amplitude are the run's own.

    The interval adds to that of floor and amplitude what the forecasts by each rung's own shape differ.
    """
    known, whole = landed(target), [landed(rung) for rung in rungs]
    free = len(law.bounds)
    terms = law_shapes(law, target, at, np.array(law.grid[0])).shape[1]

    def shape(theta: Numbers, curve: Curve, fractions: Numbers) -> Numbers:
        mixed = law_shapes(law, curve, fractions, theta[:free]) @ np.append(1.0, np.exp(theta[free:]))
        return np.column_stack([np.ones(len(fractions)), mixed])

    def misfit(theta: Numbers, among: list[Curve]) -> float:
        return sum(_project(shape(theta, rung, rung.fraction), rung.loss)[1] for rung in among)

    def forecast(among: list[Curve]) -> tuple[Numbers, Numbers, Numbers]:
        theta = _best(law, lambda t: misfit(t, among), extra=terms - 1)
        coefficients, _ = _project(shape(theta, target, known.fraction), known.loss)
        return theta, coefficients, shape(theta, target, at) @ coefficients

    theta, coefficients, _ = forecast(whole)
    alone = np.stack([forecast([rung])[2] for rung in whole])
    band = _linearised(
        lambda c, fractions: shape(theta, target, fractions) @ c,
        coefficients,
        known,
        at,
        (f"{law.name} with the shape of {len(rungs)} rungs: {law.source}",),
    )
    n = len(rungs)
    apart = student.ppf(UPPER, n - 1) * alone.std(axis=0, ddof=1) * np.sqrt(1 + 1 / n)
    half = np.hypot(band.high - band.predicted, apart)
    return Band(band.predicted, band.predicted - half, band.predicted + half, band.notes)


def _best(law: CurveLaw, misfit: Callable[[Numbers], float], extra: int = 0) -> Numbers:
    """Exponents (and `extra` logarithms of ratios) of the least misfit: the best of a grid, then Nelder-Mead."""
    ratios = [-6.0, -4.0, -2.0, 0.0] if extra else [0.0]
    starts = [np.array([*start, *([ratio] * extra)]) for start in law.grid for ratio in ratios]
    start = min(starts, key=misfit)
    bounds = [*law.bounds, *([(-12.0, 4.0)] * extra)]
    found = minimize(
        misfit, start, method="Nelder-Mead", bounds=bounds, options={"xatol": 1e-4, "fatol": 1e-14}
    )
    return np.asarray(found.x)


def _linearised(
    curve: Callable[[Numbers, Numbers], Numbers],
    theta: Numbers,
    known: Curve,
    at: Numbers,
    notes: tuple[str, ...],
) -> Band:
    """`curve(theta, at)` with Student's interval from the residuals at `known`, thinned by their correlation."""
    residual = curve(theta, known.fraction) - known.loss
    time = autocorrelation_time(residual)
    dof = max(1, int(len(residual) / time) - len(theta))
    variance = float(residual @ residual) / max(1, len(residual) - len(theta))
    here, there = (_jacobian(curve, theta, fractions) for fractions in (known.fraction, at))
    scale = np.maximum(np.abs(here).max(axis=0), 1e-12)
    covariance = np.linalg.pinv((here / scale).T @ (here / scale)) * variance * time
    spread = np.einsum("np,pq,nq->n", there / scale, covariance, there / scale)
    half = student.ppf(UPPER, dof) * np.sqrt(variance + np.maximum(spread, 0))
    predicted = curve(theta, at)
    return Band(predicted, predicted - half, predicted + half, notes)


def _jacobian(curve: Callable[[Numbers, Numbers], Numbers], theta: Numbers, at: Numbers) -> Numbers:
    """Central differences of `curve` by theta `[n, p]`."""
    columns = []
    for i, value in enumerate(theta):
        step = np.zeros_like(theta)
        step[i] = 1e-5 * max(1.0, abs(value))
        columns.append((curve(theta + step, at) - curve(theta - step, at)) / (2 * step[i]))
    return np.stack(columns, axis=-1)
