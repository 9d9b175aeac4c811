"""Predictions of a fitted law, with intervals that hold what is uncertain in parameters and in single runs."""

from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import t as student

from analysis.bootstrap import percentile_interval
from analysis.fit.allocation import distance
from analysis.fit.estimate import Fit
from analysis.laws.law import bounded_exp


def predict(fit: Fit, at: pd.DataFrame, seed: int = 0) -> list[dict[str, Any]]:
    """What the law says of the runs in `at`, and where such a run will land.

    Args:
        at: the law's variables, one row per run; curve laws also read `group`, and need a curve from its start.

    Returns:
        Per row the variables, `predicted`, `interval` (bootstrap of the parameters, and a residual of the fitted
        runs, inflated for the degrees of freedom, added to each), `t_interval` (Student's, the same two parts),
        `extrapolation` (size over the largest fitted) and `distance`, that in words.
    """
    law, rng = fit.law, np.random.default_rng(seed)
    x = law.x(at)
    centre, rows = (array[0] for array in law.linearised(fit.theta[None], x))
    inflated = fit.residual * np.sqrt(len(fit.residual) / max(1, len(fit.residual) - len(fit.theta)))
    draws = rng.choice(inflated, size=(len(fit.resampled.theta), len(at)))
    low, high = percentile_interval(law.log_loss(fit.resampled.theta, x) + draws)
    spread = float(np.mean(inflated**2))
    variance = np.maximum(np.einsum("pn,pq,qn->n", rows, fit.covariance, rows), 0) + spread
    half = student.ppf(0.975, fit.dof) * np.sqrt(variance)
    times = law.size(at) / law.size(fit.points).max()
    values = bounded_exp(np.stack([centre, low, high, centre - half, centre + half])) + fit.floor
    return [
        {
            **{variable: float(at[variable].iloc[i]) for variable in law.variables},
            "predicted": float(row[0]),
            "interval": [float(row[1]), float(row[2])],
            "t_interval": [float(row[3]), float(row[4])],
            "extrapolation": float(times[i]),
            "distance": distance(float(times[i])),
        }
        for i, row in enumerate(values.T)
    ]
