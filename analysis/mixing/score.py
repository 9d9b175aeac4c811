"""How well a fitted mixing law orders and predicts runs it has not seen."""

from typing import Any

import numpy as np
from scipy.stats import spearmanr

from analysis.mixing.law import Fitted, Numbers, find


def score(fitted: Fitted, weights: Numbers, loss: Numbers) -> dict[str, Any]:
    """Rank correlation and mean absolute error of the law over runs `weights [n, domains]`, `loss [n]`.

    The error means something only where the runs have the size that the law was fitted at; the order carries
    over to other sizes (RegMix). Keys: runs, spearman (None where either is constant), mean_absolute_error.
    """
    predicted = fitted.predict(weights)
    known = len(loss) > 1 and np.ptp(predicted) > 0 and np.ptp(loss) > 0
    return {
        "runs": len(loss),
        "spearman": float(spearmanr(predicted, loss).statistic) if known else None,
        "mean_absolute_error": float(np.abs(predicted - loss).mean()),
    }


def intervals(
    name: str,
    weights: Numbers,
    loss: Numbers,
    at: Numbers,
    resamples: int,
    level: float = 0.95,
    seed: int = 0,
) -> Numbers:
    """`[m, 2]` prediction intervals at mixtures `at [m, domains]`: the law refitted to resampled runs, plus a residual.

    Residuals are drawn from the runs that a resample left out, so that they are errors of prediction.
    """
    law, rng, n = find(name), np.random.default_rng(seed), len(loss)
    drawn = []
    for _ in range(resamples):
        chosen = rng.integers(0, n, n)
        left = np.setdiff1d(np.arange(n), chosen)
        fitted = law.fit(weights[chosen], loss[chosen])
        errors = loss[left] - fitted.predict(weights[left]) if len(left) else np.zeros(1)
        drawn.append(fitted.predict(at) + rng.choice(errors, len(at)))
    return np.quantile(np.array(drawn), [(1 - level) / 2, (1 + level) / 2], axis=0).T
