"""Loss linear in the shares: L(r) = sum_j b_j r_j. RegMix's first regressor (Liu et al. 2024, arXiv 2407.01492).

The shares sum to 1, so that an intercept is already in the b_j: b_j is the loss foreseen for domain j alone.
"""

import numpy as np

from analysis.mixing.law import Fitted, MixingLaw, Numbers


def fit(weights: Numbers, loss: Numbers) -> Fitted:
    """Least squares; the shortest b where the shares do not determine it."""
    b: Numbers = np.linalg.lstsq(weights, loss, rcond=None)[0].astype(np.float64)
    return Fitted(
        parameters={f"b[{j}]": float(value) for j, value in enumerate(b)},
        predict=lambda r: r @ b,
        gradient=lambda _: b,
        convex=True,
    )


LAW = MixingLaw(fit=fit, least_runs=lambda domains: domains + 1, source="RegMix, arXiv 2407.01492, section 3")
