"""What a scaling law is to the fitter."""

import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from experiments.configuration import InputError

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Law:
    """A scaling law as functions of internal parameters `theta`, in which the fit is well scaled.

    `theta` holds the parameters in their order, those in `positive` as logarithms.

    Attributes:
        name: as on the command line.
        variables: which columns it reads, in the order of the columns of `x`.
        parameters: names of the parameters.
        positive: those that are amounts: fitted as logarithms. The others may have either sign.
        log_loss: `(theta [batch, p], x [n, variables]) -> log response [batch, n]`.
        linearised: the same arguments -> log response `[batch, n]` and its derivative by `theta` `[batch, p, n]`.
        start: `(x [n, variables], response [n]) -> theta [p]` near the optimum, or several, `[starts, p]`.
        source: where the equation is from.
        scale: the columns whose product is how large a run is: by it the largest are held out and the distance
            of an extrapolation is stated.
        response: the column that the law predicts.
        bounds: lowest and highest value of a parameter, as reported.
        features: `points -> x` where the columns alone are not enough; `variables` are then what it reads.
    """

    name: str
    variables: tuple[str, ...]
    parameters: tuple[str, ...]
    positive: tuple[str, ...]
    log_loss: Callable[[Numbers, Numbers], Numbers]
    linearised: Callable[[Numbers, Numbers], tuple[Numbers, Numbers]]
    start: Callable[[Numbers, Numbers], Numbers]
    source: str
    scale: tuple[str, ...]
    response: str = "loss"
    bounds: dict[str, tuple[float, float]] = field(default_factory=dict)
    features: Callable[[pd.DataFrame], Numbers] | None = None

    def x(self, points: pd.DataFrame) -> Numbers:
        """What the law reads of each point, `[n, features]`."""
        if self.features is not None:
            return self.features(points)
        return points[list(self.variables)].to_numpy("float64")

    def size(self, points: pd.DataFrame) -> Numbers:
        """How large each point's run is, `[n]`: the product of the columns in `scale`."""
        return points[list(self.scale)].to_numpy("float64").prod(axis=1)

    def report(self, theta: Numbers) -> Numbers:
        """Parameters as the paper writes them, `[batch, p]`, from theta `[batch, p]`."""
        amount = np.array([name in self.positive for name in self.parameters])
        return np.where(amount, bounded_exp(np.where(amount, theta, 0.0)), theta)

    def limits(self) -> tuple[Numbers, Numbers]:
        """Lowest and highest theta, each `[p]`; infinite where a parameter has no bound."""
        low, high = np.full(len(self.parameters), -np.inf), np.full(len(self.parameters), np.inf)
        for i, name in enumerate(self.parameters):
            if name in self.bounds:
                ends = np.array(self.bounds[name])
                low[i], high[i] = np.log(ends) if name in self.positive else ends
        return low, high


@dataclass(frozen=True)
class AllocationLaw:
    """A law of the best model size for a compute budget, N*(C) = k C^a, fitted to the optima that runs show.

    Attributes:
        name: as on the command line.
        variables: which columns it reads.
        optima: `(points, weight [batch, n]) -> log C [m], log N* [batch, m]`; NaN where a resample shows no
            optimum. The weights say how often each row counts.
        source: where the method is from.
    """

    name: str
    variables: tuple[str, ...]
    optima: Callable[[pd.DataFrame, Numbers], tuple[Numbers, Numbers]]
    source: str


def bounded_exp(logarithm: Numbers) -> Numbers:
    """exp, kept finite (1e-304 to 1e304): the interval of a parameter that is not identified can be that wide."""
    return np.exp(np.clip(logarithm, -700.0, 700.0))


def names() -> list[str]:
    """Names of the laws there are: the modules of this folder that hold one."""
    modules = (m.name for m in pkgutil.iter_modules([str(Path(__file__).parent)]) if not m.ispkg)
    return sorted(name.replace("_", "-") for name in modules if name != "law")


def find(name: str) -> Law:
    """The law called `name` that predicts a response.

    Raises:
        InputError: there is no such law, or it is one of allocation; the message lists those there are.
    """
    law = find_any(name)
    if isinstance(law, AllocationLaw):
        raise InputError(f"`{name}` predicts the best model size of a budget and no loss; take another law")
    return law


def find_any(name: str) -> Law | AllocationLaw:
    """The law called `name`, of either kind.

    Raises:
        InputError: there is no such law; the message lists those there are.
    """
    if name not in names():
        guess = get_close_matches(name, names(), n=1)
        hint = f"did you mean `{guess[0]}`? " if guess else ""
        raise InputError(f"`{name}` is not a law; {hint}laws: {', '.join(names())}")
    law: Law | AllocationLaw = import_module(f"analysis.laws.{name.replace('-', '_')}").LAW
    return law
