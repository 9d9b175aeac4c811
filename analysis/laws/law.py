"""What a scaling law is to the fitter."""

import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from experiments.configuration import InputError

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Law:
    """A scaling law as functions of internal parameters `theta`, in which the fit is well scaled.

    Attributes:
        name: as on the command line.
        variables: which columns it reads, in the order of the columns of `x`: any of n, d, flops.
        parameters: names of the reported parameters.
        log_loss: `(theta [batch, p], x [n, variables]) -> log loss [batch, n]`.
        jacobian: the same arguments -> derivative of `log_loss` by `theta`, `[batch, n, p]`.
        start: `(x [n, variables], loss [n]) -> theta [p]`, a start near the optimum.
        report: `theta [batch, p] -> parameters [batch, p]`.
        source: where the equation is from.
    """

    name: str
    variables: tuple[str, ...]
    parameters: tuple[str, ...]
    log_loss: Callable[[Numbers, Numbers], Numbers]
    jacobian: Callable[[Numbers, Numbers], Numbers]
    start: Callable[[Numbers, Numbers], Numbers]
    report: Callable[[Numbers], Numbers]
    source: str


def bounded_exp(logarithm: Numbers) -> Numbers:
    """exp, kept finite (1e-304 to 1e304): the interval of a parameter that is not identified can be that wide."""
    return np.exp(np.clip(logarithm, -700.0, 700.0))


def names() -> list[str]:
    """Names of the laws there are: the modules of this folder that hold one."""
    modules = (module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)]))
    return sorted(name.replace("_", "-") for name in modules if name != "law")


def find(name: str) -> Law:
    """The law called `name`.

    Raises:
        InputError: there is no such law; the message lists those there are.
    """
    if name not in names():
        guess = get_close_matches(name, names(), n=1)
        hint = f"did you mean `{guess[0]}`? " if guess else ""
        raise InputError(f"`{name}` is not a law; {hint}laws: {', '.join(names())}")
    law: Law = import_module(f"analysis.laws.{name.replace('-', '_')}").LAW
    return law
