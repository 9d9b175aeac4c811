"""Best model size of a budget from whole training curves: at each compute the run with the lowest loss.

Hoffmann et al. 2022 (arXiv 2203.15556), approach 1: the lower envelope of all curves over a grid of FLOPs gives
N*(C) = k C^a. The curves' learning rates should have decayed to where they are read; a curve read in mid-run
stands above what its size could have reached.
"""

import numpy as np
import pandas as pd

from analysis.laws.law import AllocationLaw, Numbers
from experiments.configuration import InputError

GRID = 200
"""FLOPs between the smallest and the largest that two runs share, evenly spaced in log C."""


def optima(points: pd.DataFrame, weight: Numbers) -> tuple[Numbers, Numbers]:
    """log C `[grid]` and log N* `[batch, grid]` of the run that is lowest there, from columns n, flops, loss, group.

    NaN where a resample has fewer than two runs that reach this compute, as one alone competes with nothing, and where
    the lowest is of the smallest or largest size of all: beyond it might be better.

    Raises:
        InputError: runs of one row each, or no compute that two runs share.
    """
    log_c, log_n, curves, rows = _curves(points)
    present = weight[:, rows] > 0
    finite = np.isfinite(curves)
    best = np.full((len(weight), len(log_c)), np.nan)
    inner = (log_n > log_n.min()) & (log_n < log_n.max())
    for j in range(len(log_c)):
        here = np.flatnonzero(finite[:, j])
        loss = np.where(present[:, here], curves[here, j], np.inf)
        if not len(here):
            continue
        winner = here[loss.argmin(axis=1)]
        shown = (present[:, here].sum(axis=1) >= 2) & inner[winner]
        best[:, j] = np.where(shown, log_n[winner], np.nan)
    return log_c, best


def _curves(points: pd.DataFrame) -> tuple[Numbers, Numbers, Numbers, list[int]]:
    """The grid log C, each run's log N, losses `[runs, grid]` (NaN where a run does not reach), and a row of each."""
    runs = [run.sort_values("flops") for _, run in points.reset_index(drop=True).groupby("group", sort=False)]
    if max(len(run) for run in runs) < 2:
        raise InputError(
            "chinchilla-approach-1 reads whole curves, many rows per run: name the run's column with --group"
        )
    first, last = (np.sort([run["flops"].iloc[i] for run in runs]) for i in (0, -1))
    low, high = first[1], last[-2]
    if not low < high:
        raise InputError(
            "chinchilla-approach-1: no compute is reached by two runs; their curves must overlap"
        )
    log_c = np.linspace(np.log(low), np.log(high), GRID)
    losses = np.stack(
        [np.interp(log_c, np.log(run["flops"]), run["loss"], left=np.nan, right=np.nan) for run in runs]
    )
    return log_c, np.log([run["n"].iloc[0] for run in runs]), losses, [int(run.index[0]) for run in runs]


LAW = AllocationLaw(
    name="chinchilla-approach-1",
    variables=("n", "flops"),
    optima=optima,
    source="Hoffmann et al. 2022, arXiv 2203.15556, approach 1",
)
