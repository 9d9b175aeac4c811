"""Gradient-boosted trees on the shares, RegMix's second regressor (Liu et al. 2024, arXiv 2407.01492).

As in the published code: 1,000 rounds at learning rate 0.01, other settings as the library has them.
"""

from typing import Any

import numpy as np

from analysis.mixing.law import Fitted, MixingLaw, Numbers
from experiments.configuration import InputError

SETTINGS: dict[str, Any] = {
    "objective": "regression",
    "learning_rate": 0.01,
    "seed": 42,
    "deterministic": True,
    "force_row_wise": True,
    "num_threads": 1,
    "verbosity": -1,
}
ROUNDS = 1000


def fit(weights: Numbers, loss: Numbers) -> Fitted:
    """Fit the trees.

    Raises:
        InputError: the package lightgbm is not installed.
    """
    try:
        import lightgbm
    except ImportError:
        raise InputError("the lightgbm law needs a package: pip install 'maquette-lm[lightgbm]'") from None
    trees = lightgbm.train(SETTINGS, lightgbm.Dataset(weights, loss), num_boost_round=ROUNDS)
    return Fitted(
        parameters={}, predict=lambda r: np.asarray(trees.predict(r), float), gradient=None, convex=False
    )


LAW = MixingLaw(fit=fit, least_runs=lambda _: 40, source="RegMix, arXiv 2407.01492, section 3")
