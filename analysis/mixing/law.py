"""What a mixing law is to those who fit it, score it and look for its best mixture."""

import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module

import numpy as np
from numpy.typing import NDArray

from experiments.configuration import InputError

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Fitted:
    """A law with its parameters.

    Attributes:
        parameters: by name, those of one domain as `name[i]`; empty where there are no interpretable ones.
        predict: `weights [n, domains] -> loss [n]`.
        gradient: `weights [domains] -> d loss / d weights [domains]`; None where the law has none.
        convex: whether `predict` is convex in the weights, so that the best mixture is certain.
    """

    parameters: dict[str, float]
    predict: Callable[[Numbers], Numbers]
    gradient: Callable[[Numbers], Numbers] | None
    convex: bool


@dataclass(frozen=True)
class MixingLaw:
    """A mixing law.

    Attributes:
        fit: `(weights [n, domains], loss [n]) -> Fitted`.
        least_runs: `domains -> number of runs` below which the law has as many parameters as points.
        source: where the equation is from.
    """

    fit: Callable[[Numbers, Numbers], Fitted]
    least_runs: Callable[[int], int]
    source: str


def names() -> list[str]:
    """Names of the laws there are: the modules of `analysis.mixing.laws`."""
    from analysis.mixing import laws

    return sorted(module.name for module in pkgutil.iter_modules(laws.__path__))


def find(name: str) -> MixingLaw:
    """The law called `name`.

    Raises:
        InputError: there is no such law; the message lists those there are.
    """
    if name not in names():
        guess = get_close_matches(name, names(), n=1)
        hint = f"did you mean `{guess[0]}`? " if guess else ""
        raise InputError(f"`{name}` is no mixing law; {hint}laws: {', '.join(names())}")
    law: MixingLaw = import_module(f"analysis.mixing.laws.{name}").LAW
    return law


def fit(name: str, weights: Numbers, loss: Numbers) -> Fitted:
    """Fit the law `name` to `weights [n, domains]` and `loss [n]`.

    Raises:
        InputError: no such law, fewer runs than it has parameters, or runs that differ in nothing.
    """
    law, (runs, domains) = find(name), weights.shape
    if runs < law.least_runs(domains):
        raise InputError(
            f"{runs} runs are too few for the {name} law over {domains} domains: at least {law.least_runs(domains)}"
        )
    if np.ptp(weights, axis=0).max() == 0 or np.ptp(loss) == 0:
        what = "loss" if np.ptp(loss) == 0 else "mixture"
        raise InputError(f"all {runs} runs have the same {what}: nothing says what a mixture changes")
    return law.fit(weights, loss)
