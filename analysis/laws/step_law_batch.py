"""Best batch size from tokens: B(D) = c * D^beta, in tokens.

Li et al. 2025, "Step Law" (arXiv 2503.04715, eq. 1: 0.58 D^0.571). Each point is the best batch size of a sweep.
"""

import numpy as np

from analysis.laws.forms import sum_of_powers
from analysis.laws.law import Law, Numbers


def terms(x: Numbers) -> Numbers:
    """c * D^beta as `[1, n, (log c, beta)]`."""
    return sum_of_powers.columns(len(x), 2, _0=1, _1=np.log(x[:, 0]))[None]


def start(x: Numbers, batch: Numbers) -> Numbers:
    """Least squares in logarithms, `[2]`."""
    return np.linalg.lstsq(terms(x)[0], np.log(batch), rcond=None)[0]


LAW = Law(
    name="step-law-batch",
    variables=("d",),
    parameters=("c", "beta"),
    positive=("c",),
    log_loss=sum_of_powers.log_loss(terms),
    linearised=sum_of_powers.linearised(terms),
    start=start,
    source="Li et al. 2025, arXiv 2503.04715, eq. 1",
    scale=("d",),
    response="batch",
)
