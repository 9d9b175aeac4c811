"""Data of the plots of a fit: iso-loss, iso-FLOP, and residuals that show which runs the law fails."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.fit.allocation import allocate
from analysis.fit.estimate import Fit
from analysis.laws.law import bounded_exp
from experiments.configuration import InputError

Numbers = NDArray[np.float64]

FAILED = 4.0
"""A run whose residual is more than so many median deviations (times 1.4826) off is one that the law fails."""


def _of_n_and_d(fit: Fit) -> None:
    if fit.law.variables != ("n", "d") or fit.law.response != "loss":
        raise InputError(f"{fit.law.name} is no law of N and D alone; iso-loss and iso-FLOP curves need one")


def iso_loss(fit: Fit, cells: int = 60) -> dict[str, Any]:
    """The loss over N and D, a third of a decade beyond the runs on each side: `n [cells]`, `d [cells]`,
    `loss [d, n]`, and the compute-optimal path as rows of `flops, n, d`.

    Raises:
        InputError: the law is not one of N and D.
    """
    _of_n_and_d(fit)
    axes = [np.geomspace(fit.points[v].min() / 2, fit.points[v].max() * 2, cells) for v in ("n", "d")]
    n, d = np.meshgrid(*axes)
    loss = (
        bounded_exp(fit.law.log_loss(fit.theta[None], np.stack([n.ravel(), d.ravel()], axis=1))[0])
        + fit.floor
    )
    path = allocate(fit, list(np.geomspace(*_compute(fit), 12)))
    return {
        "n": axes[0].tolist(),
        "d": axes[1].tolist(),
        "loss": loss.reshape(n.shape).tolist(),
        "path": [{"flops": row["flops"], "n": row["n"]["value"], "d": row["d"]["value"]} for row in path],
    }


def iso_flop(fit: Fit, budgets: list[float] | None = None) -> list[dict[str, Any]]:
    """Loss over N at each budget: `flops`, the law's `curve` of `n, loss`, its `optimum`, and the `runs` within a
    fifth of the budget. Budgets default to seven over the runs' compute.

    Raises:
        InputError: the law is not one of N and D.
    """
    _of_n_and_d(fit)
    points, response = fit.points, fit.law.response
    compute = (6 * points["n"] * points["d"]).to_numpy("float64")
    n = np.geomspace(points["n"].min() / 2, points["n"].max() * 2, 80)
    curves = []
    for budget in budgets or np.geomspace(*_compute(fit), 7).tolist():
        loss = (
            bounded_exp(fit.law.log_loss(fit.theta[None], np.stack([n, budget / 6 / n], axis=1))[0])
            + fit.floor
        )
        near = np.abs(np.log(compute / budget)) < np.log(1.2)
        (optimum,) = allocate(fit, [budget])
        curves.append(
            {
                "flops": float(budget),
                "curve": [{"n": float(a), "loss": float(b)} for a, b in zip(n, loss, strict=True)],
                "optimum": {"n": optimum["n"], "loss": optimum["loss"]},
                "runs": points.loc[near, ["name", "n", response]].to_dict("records"),
            }
        )
    return curves


def residuals(fit: Fit) -> list[dict[str, Any]]:
    """Log residual of each point, largest first: `name`, `size`, `predicted`, `residual`, and whether the law `fails`
    it."""
    residual = fit.residual
    typical = 1.4826 * float(np.median(np.abs(residual - np.median(residual))))
    predicted = fit.response * np.exp(-residual) + fit.floor
    size = fit.law.size(fit.points)
    names = fit.points["name"].astype(str).to_numpy()
    return [
        {
            "name": str(names[i]),
            "size": float(size[i]),
            "predicted": float(predicted[i]),
            "residual": float(residual[i]),
            "fails": bool(abs(residual[i]) > FAILED * typical > 0),
        }
        for i in np.argsort(-np.abs(residual), kind="stable")
    ]


def _compute(fit: Fit) -> tuple[float, float]:
    """Smallest and largest 6 N D of the runs."""
    compute = 6 * fit.points["n"] * fit.points["d"]
    return float(compute.min()), float(compute.max())
