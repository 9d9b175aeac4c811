"""The bootstrap of a fit over runs: thousands of refits in batches, or linearised where the table is large."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis.bootstrap import EXACT_UP_TO, resample_counts
from analysis.laws import Law
from analysis.solver import STATISTICAL, huber_weight, solve

Numbers = NDArray[np.float64]

CELLS_AT_ONCE = 30_000
"""Resamples times numbers read per resample solved in one batch: what a core's own cache holds."""

MOST_CELLS = 40_000_000
"""Above so many resamples times numbers read, estimates are linearised in the resampling weights: one Newton step from
the estimate, which for so many points is as good as a refit and costs two matrix products."""

COUNTS_AT_ONCE = 4_000_000


@dataclass(frozen=True)
class Resampled:
    """Parameters of the resamples `[resamples, p]`; of the estimate without each run, linearised `[runs, p]`; whether
    all resamples were enumerated; how many held too few scales and were left out; whether they were linearised."""

    theta: Numbers
    left_out: Numbers
    exact: bool
    degenerate: int
    linearised: bool


def resample(
    law: Law,
    theta: Numbers,
    x: Numbers,
    response: Numbers,
    group: NDArray[np.intp],
    scale: NDArray[np.intp],
    delta: float | None,
    resamples: int,
) -> Resampled:
    """Refit resamples of the runs from the estimate, in bounded memory.

    Args:
        theta: the estimate `[p]`; x: `[n, features]`; response: `[n]`.
        group: the run of each point; scale: which points are at the same scale, both from 0, `[n]`.
    """
    runs = int(group.max()) + 1
    exact = runs**runs <= EXACT_UP_TO
    pull, bend = _influence(law, theta, x, response, group, runs, delta)
    left_out = theta + np.linalg.lstsq(bend.sum(axis=0), pull.T, rcond=None)[0].T
    linearised = not exact and resamples * x.size > MOST_CELLS
    batch = COUNTS_AT_ONCE // runs if linearised else CELLS_AT_ONCE // max(1, x.size)
    member = _members(group, scale, runs)
    parts, degenerate = [], 0
    for counts, times in resample_counts(runs, resamples, max(1, min(batch, 500))):
        usable = ((counts > 0) @ member > 0).sum(axis=1) >= len(theta)
        degenerate += int(times[~usable].sum())
        counts, times = counts[usable], times[usable]
        if not len(counts):
            continue
        step = _newton(counts, pull, bend)
        found = theta + np.clip(step, -1, 1)
        if not linearised:
            found = solve(law, found, x, response, counts[:, group], delta, STATISTICAL).theta
        low, high = law.limits()
        parts.append(np.repeat(np.clip(found, low, high), times, axis=0))
    return Resampled(np.concatenate(parts), left_out, exact, degenerate, linearised)


def _influence(
    law: Law,
    theta: Numbers,
    x: Numbers,
    response: Numbers,
    group: NDArray[np.intp],
    runs: int,
    delta: float | None,
) -> tuple[Numbers, Numbers]:
    """Each run's share of the gradient `[runs, p]` and of the curvature `[runs, p, p]` at the estimate.

    The curvature is Newton's, of the points inside Huber's corner; where those are few, that of reweighting.
    """
    predicted, jacobian = law.linearised(theta[None], x)
    residual, rows = predicted[0] - np.log(response), jacobian[0]
    weight = huber_weight(residual, delta)
    p = len(theta)
    inside = np.where(weight == 1, 1.0, 0.0)
    curved = inside if inside.sum() >= 20 * p else weight
    pull, bend = np.empty((runs, p)), np.empty((runs, p, p))
    for i in range(p):
        pull[:, i] = np.bincount(group, rows[i] * weight * residual, minlength=runs)
        for j in range(p):
            bend[:, i, j] = np.bincount(group, rows[i] * rows[j] * curved, minlength=runs)
    return pull, bend


def _newton(counts: Numbers, pull: Numbers, bend: Numbers) -> Numbers:
    """One Newton step for each row of counts `[batch, runs]`, `[batch, p]`."""
    p = pull.shape[1]
    hessian = (counts @ bend.reshape(len(bend), p * p)).reshape(-1, p, p)
    ridge = 1e-12 * np.einsum("bii->bi", hessian).max(axis=1) + 1e-300
    return -np.linalg.solve(hessian + ridge[:, None, None] * np.eye(p), (counts @ pull)[..., None])[..., 0]


def _members(group: NDArray[np.intp], scale: NDArray[np.intp], runs: int) -> Numbers:
    """Which runs are at which scales `[runs, scales]`; one scale per run where there are so many that no resample
    can lack variety."""
    scales = int(scale.max()) + 1
    if runs * scales > COUNTS_AT_ONCE // 4:
        return np.ones((runs, 64))
    member = np.zeros((runs, scales))
    member[group, scale] = 1
    return member
