"""The mixture with the lowest predicted loss under limits on each share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

from analysis.mixing.law import Fitted, Numbers
from experiments.configuration import InputError

SIMULATED = 100_000
AVERAGED = 100
"""Without a gradient: the mean of the best 100 of 100,000 random mixtures, as RegMix proposes its own."""


@dataclass(frozen=True)
class Limits:
    """Lowest and highest share of each domain, `[domains]` each: from epoch caps, minimum shares, or 0 and 1."""

    lowest: Numbers
    highest: Numbers


def limits(
    domains: Sequence[str],
    lowest: Mapping[str, float] | None = None,
    highest: Mapping[str, float] | None = None,
) -> Limits:
    """Limits from shares by name; a domain not named may take any share.

    Raises:
        InputError: an unknown domain, a share outside 0 to 1, or limits that no mixture can keep.
    """
    found = {"lowest": np.zeros(len(domains)), "highest": np.ones(len(domains))}
    for option, given in (("lowest", lowest or {}), ("highest", highest or {})):
        for name, share in given.items():
            if name not in domains:
                raise InputError(f"{option} share of {name}: no such domain; domains: {', '.join(domains)}")
            if not 0 <= share <= 1:
                raise InputError(f"{option} share of {name} is {share}; it must be from 0 to 1")
            found[option][domains.index(name)] = share
    low, high = found["lowest"], found["highest"]
    if (low > high).any():
        raise InputError(f"{domains[int(np.argmax(low > high))]}: its lowest share is above its highest")
    if low.sum() > 1 + 1e-12 or high.sum() < 1 - 1e-12:
        raise InputError(f"no mixture: lowest shares sum to {low.sum():.4g}, highest to {high.sum():.4g}")
    return Limits(low, high)


def epoch_caps(tokens: Mapping[str, float], budget: float, epochs: float) -> dict[str, float]:
    """Highest share of each domain of so many `tokens` if none may be seen more than `epochs` times in a run of
    `budget` tokens."""
    return {name: min(1.0, epochs * count / budget) for name, count in tokens.items()}


def best_mixture(fitted: Fitted, within: Limits, seed: int = 0) -> Numbers:
    """`[domains]` shares of the lowest predicted loss.

    With a gradient by sequential quadratic programming, from the middle and from eight random mixtures: the
    optimum where the law is convex. Without one, the mean of the best of many random mixtures.
    """
    rng = np.random.default_rng(seed)
    middle = _project(np.full(len(within.lowest), 1 / len(within.lowest)), within)
    if fitted.gradient is None:
        random = _project(rng.dirichlet(np.ones(len(middle)), SIMULATED), within)
        order = np.argsort(fitted.predict(random), kind="stable")[:AVERAGED]
        return random[order].mean(axis=0)
    gradient = fitted.gradient
    starts = [middle, *_project(rng.dirichlet(np.ones(len(middle)), 8), within)]
    found = [
        minimize(
            lambda r: float(fitted.predict(r[None])[0]),
            begin,
            jac=gradient,
            method="SLSQP",
            bounds=list(zip(within.lowest, within.highest, strict=True)),
            constraints={"type": "eq", "fun": lambda r: r.sum() - 1, "jac": np.ones_like},
            options={"ftol": 1e-12, "maxiter": 500},
        ).x
        for begin in starts
    ]
    kept = [_project(r, within) for r in found]
    return min(kept, key=lambda r: float(fitted.predict(r[None])[0]))


def _project(shares: Numbers, within: Limits) -> Numbers:
    """The nearest mixtures within the limits, `[..., domains]`: shares shifted alike and clipped, the shift by
    bisection."""
    low, high = np.full((*shares.shape[:-1], 1), -1.0), np.full((*shares.shape[:-1], 1), 1.0)
    for _ in range(60):
        shift = (low + high) / 2
        short = np.clip(shares + shift, within.lowest, within.highest).sum(axis=-1, keepdims=True) < 1
        low, high = np.where(short, shift, low), np.where(short, high, shift)
    return np.clip(shares + high, within.lowest, within.highest)
