"""Batched Levenberg-Marquardt for losses in log space: all resamples of a fit at once, as weights."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis.laws import Law

Numbers = NDArray[np.float64]

MOST_ITERATIONS = 500


@dataclass(frozen=True)
class Solution:
    """Parameters `[batch, p]`, objective `[batch]`, largest gradient entry `[batch]`, converged `[batch]`."""

    theta: Numbers
    objective: Numbers
    gradient: Numbers
    converged: NDArray[np.bool_]


def huber(residual: Numbers, delta: float | None) -> Numbers:
    """Huber's loss of each residual (Hoffmann et al. 2022 take delta 1e-3); half the square for delta
    None."""
    size = np.abs(residual)
    if delta is None:
        return 0.5 * size**2
    return np.where(size <= delta, 0.5 * size**2, delta * (size - 0.5 * delta))


def huber_weight(residual: Numbers, delta: float | None) -> Numbers:
    """psi(r) / r: 1 inside the corner, delta / |r| outside; 1 everywhere for delta None."""
    if delta is None:
        return np.ones_like(residual)
    return np.minimum(1.0, delta / np.maximum(np.abs(residual), 1e-300))


def solve(
    law: Law, theta: Numbers, x: Numbers, loss: Numbers, weight: Numbers, delta: float | None = None
) -> Solution:
    """Minimise the weighted sum of Huber's loss of log residuals, from each start.

    A start has settled when its objective no longer falls relative to itself, never at an absolute tolerance:
    objectives here are 1e-3 to 1e-8, where default tolerances stop early. The normal equations carry the
    Huber weights (iteratively reweighted least squares).

    Args:
        theta: starts `[batch, p]`.
        x: `[n, variables]`; loss: `[n]`; weight: how often a point counts, `[batch, n]`.
        delta: Huber's corner in log loss, or None for least squares.
    """
    theta = theta.copy()
    p = theta.shape[1]
    damping = np.full(len(theta), 1e-3)
    settled = np.zeros(len(theta), dtype=int)
    log_loss = np.log(loss)

    def objective(t: Numbers, w: Numbers) -> Numbers:
        return np.sum(w * huber(law.log_loss(t, x) - log_loss, delta), axis=-1)

    value = objective(theta, weight)
    for _ in range(MOST_ITERATIONS):
        active = np.flatnonzero(settled < 3)
        if not len(active):
            break
        hessian, gradient = _normal_equations(law, theta[active], x, log_loss, weight[active], delta)
        diagonal = np.einsum("bii->bi", hessian)
        ridge = diagonal * damping[active, None] + 1e-12 * diagonal.max(axis=1, keepdims=True) + 1e-300
        step = -np.linalg.solve(hessian + ridge[:, :, None] * np.eye(p), gradient[..., None])[..., 0]
        trial = theta[active] + np.clip(step, -5, 5)
        now, new = value[active], objective(trial, weight[active])
        better = new < now
        theta[active[better]] = trial[better]
        value[active] = np.where(better, new, now)
        still = (better & (now - new <= 1e-13 * now)) | (~better & (damping[active] > 1e8)) | (now < 1e-26)
        settled[active] = np.where(still, settled[active] + 1, 0)
        damping[active] = np.clip(damping[active] * np.where(better, 0.2, 5.0), 1e-12, 1e12)
    hessian, gradient = _normal_equations(law, theta, x, log_loss, weight, delta)
    largest = np.abs(gradient).max(axis=-1)
    scale = np.sqrt(np.einsum("bii->bi", hessian).max(axis=-1) * np.maximum(value, 1e-24))
    return Solution(theta, value, largest, (settled >= 3) & (largest <= 1e-4 * scale + 1e-10))


def _normal_equations(
    law: Law, theta: Numbers, x: Numbers, log_loss: Numbers, weight: Numbers, delta: float | None
) -> tuple[Numbers, Numbers]:
    """Weighted J'J `[batch, p, p]` and the objective's gradient `[batch, p]`."""
    residual = law.log_loss(theta, x) - log_loss
    jacobian = law.jacobian(theta, x)
    weighted = jacobian * (weight * huber_weight(residual, delta))[..., None]
    return (
        np.einsum("bnp,bnq->bpq", weighted, jacobian),
        np.einsum("bnp,bn->bp", weighted, residual),
    )
