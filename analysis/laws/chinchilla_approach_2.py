"""Best model size of a budget from isoFLOP profiles: a parabola in log N per budget, N*(C) = k C^a through the minima.

Hoffmann et al. 2022 (arXiv 2203.15556), approach 2. Budgets are rounded to one significant figure, as isoFLOP runs hit
theirs only roughly. Where alpha and beta differ, a grid that is wide or off its centre biases the minima: take it
as a check of approach 3.
"""

import numpy as np
import pandas as pd

from analysis.laws.law import AllocationLaw, Numbers


def optima(points: pd.DataFrame, weight: Numbers) -> tuple[Numbers, Numbers]:
    """log C `[budgets]` and the parabolas' minima log N* `[batch, budgets]`, from columns n, flops and loss.

    NaN where a resample has fewer than three sizes, the parabola opens downwards, or its minimum is outside the
    sizes tried.
    """
    log_n, loss, flops = (
        np.log(points["n"].to_numpy()),
        points["loss"].to_numpy("float64"),
        points["flops"].to_numpy(),
    )
    size = 10 ** np.floor(np.log10(flops))
    budget = np.round(flops / size) * size
    centres, minima = [], []
    for value in np.unique(budget):
        here = budget == value
        if len(np.unique(log_n[here])) < 3:
            continue
        centres.append(float(np.log(flops[here]).mean()))
        minima.append(_minimum(log_n[here], loss[here], weight[:, here]))
    if not centres:
        return np.empty(0), np.empty((len(weight), 0))
    return np.array(centres), np.stack(minima, axis=1)


def _minimum(log_n: Numbers, loss: Numbers, weight: Numbers) -> Numbers:
    """Where the weighted least-squares parabola is least, `[batch]`."""
    middle = log_n.mean()
    u = log_n - middle
    design = np.stack([np.ones_like(u), u, u**2], axis=1)
    weighted = weight[:, :, None] * design
    normal = weighted.transpose(0, 2, 1) @ design
    sizes = np.stack([(weight[:, log_n == value] > 0).any(axis=1) for value in np.unique(log_n)]).sum(axis=0)
    enough = sizes >= 3
    normal[~enough] = np.eye(3)
    coefficients = np.linalg.solve(normal, (weighted.transpose(0, 2, 1) @ loss)[..., None])[..., 0]
    bend = coefficients[:, 2]
    least = -coefficients[:, 1] / (2 * np.where(bend > 0, bend, 1.0))
    inside = (least >= u.min()) & (least <= u.max())
    return np.where(enough & (bend > 0) & inside, middle + least, np.nan)


LAW = AllocationLaw(
    name="chinchilla-approach-2",
    variables=("n", "flops"),
    optima=optima,
    source="Hoffmann et al. 2022, arXiv 2203.15556, approach 2",
)
