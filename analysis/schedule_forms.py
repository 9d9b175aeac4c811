"""Forms of learning-rate decay, and their robust fit to logged points.

Each form is a straight line, a cosine or a root once the learning rate is put on the right scale: an
exponential is a line in log(lr), an inverse square root a line in lr^-2. So with start and end of the decay
given, a fit is a linear regression (variable projection), and only these two are searched for.

Cosine: Loshchilov & Hutter 2016 (arXiv 1608.03983). Inverse square root: Vaswani et al. 2017 (arXiv
1706.03762, eq. 3). Plateau and decay (WSD): Hu et al. 2024 (arXiv 2404.06395); its 1-sqrt form: Hägele et al.
2024 (arXiv 2405.18392).
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

Numbers = NDArray[np.float64]

FITTED_POINTS = 400
"""A longer log is fitted on this many of its points, evenly drawn by index, and judged on all of them."""

LONGEST_COSINE = 6.0
"""A cosine is looked for that ends at most this many times as late as the log."""


@dataclass(frozen=True)
class Form:
    """A way down from the peak.

    Attributes:
        to_line: the learning rate on the scale on which the decay is a mix of start and end level.
        from_line: its inverse.
        slope: |d to_line / d lr|, which turns residuals on that scale into residuals of the learning rate.
        remaining: the share of the start level left at progress u in [0, 1]: 1 at 0, 0 at 1.
        ends_by_form: whether the form shows where it ends even if the log stops before.
    """

    name: str
    to_line: Callable[[Numbers], Numbers]
    from_line: Callable[[Numbers], Numbers]
    slope: Callable[[Numbers], Numbers]
    remaining: Callable[[Numbers], Numbers]
    ends_by_form: bool = False


def _same(y: Numbers) -> Numbers:
    return y


def _line(u: Numbers) -> Numbers:
    return 1 - u


def _positive(z: Numbers) -> Numbers:
    return np.maximum(z, 1e-300)


FORMS: dict[str, Form] = {
    form.name: form
    for form in (
        Form("linear", _same, _same, np.ones_like, _line),
        Form("inverse_sqrt", lambda y: y**-2, lambda z: _positive(z) ** -0.5, lambda y: 2 * y**-3, _line),
        Form("cosine", _same, _same, np.ones_like, lambda u: (1 + np.cos(np.pi * u)) / 2, True),
        Form("1-sqrt", _same, _same, np.ones_like, lambda u: 1 - np.sqrt(u)),
        Form("exponential", np.log, np.exp, lambda y: 1 / y, _line),
        Form("inverse", lambda y: 1 / y, lambda z: 1 / _positive(z), lambda y: y**-2, _line),
    )
}
"""In the order in which equally good ones are preferred."""

AFTER_PLATEAU = ("linear", "cosine", "1-sqrt", "exponential", "inverse")
"""Forms that are looked for as the decay of a plateau-and-decay schedule."""


@dataclass(frozen=True)
class Decay:
    """`peak` until step `start`, then by `form` to `final` at step `end`, and on at `final`.

    Attributes:
        form: a key of `FORMS`, or `constant`, or `steps` (see `levels`).
        parameters: how many numbers were chosen to fit, for preferring the simpler of two.
        held_end: whether the log showed where the decay ends; else `end` is only the last logged step and the
            curve goes on by its form.
        levels: for `steps` the pairs (first step, level).
    """

    form: str
    start: float
    end: float
    peak: float
    final: float
    parameters: int
    held_end: bool = False
    levels: tuple[tuple[float, float], ...] = ()

    def at(self, step: Numbers) -> Numbers:
        """The learning rate at each step, after the warm-up."""
        if self.form == "constant":
            return np.full(len(step), self.peak)
        if self.form == "steps":
            firsts = np.array([first for first, _ in self.levels])
            index = np.searchsorted(firsts, step, side="right") - 1
            return np.array([level for _, level in self.levels])[np.maximum(index, 0)]
        form = FORMS[self.form]
        u = np.maximum((step - self.start) / (self.end - self.start), 0.0)
        if self.held_end or form.ends_by_form:
            u = np.minimum(u, 1.0)
        left = form.remaining(u)
        z = left * form.to_line(np.array([self.peak])) + (1 - left) * form.to_line(np.array([self.final]))
        return np.maximum(form.from_line(z), 0.0)


def constant_decay(step: Numbers, lr: Numbers) -> Decay:
    """No decay: the median level."""
    return Decay("constant", float(step[0]), float(step[-1]), float(np.median(lr)), float(np.median(lr)), 1)


def steps_decay(step: Numbers, lr: Numbers, tolerance: Numbers, most: int = 6) -> Decay | None:
    """Levels held for at least three logged points each, 2 to `most` of them, or None."""
    new = np.concatenate([[True], np.abs(np.diff(lr)) > tolerance[1:]])
    firsts = np.flatnonzero(new)
    counts = np.diff(np.append(firsts, len(lr)))
    if not 2 <= len(firsts) <= most or counts.min() < 3:
        return None
    levels = tuple(
        (float(step[i]), float(np.median(lr[i : i + n]))) for i, n in zip(firsts, counts, strict=True)
    )
    if any(abs(a - b) <= tolerance.max() for (_, a), (_, b) in itertools.pairwise(levels)):
        return None
    return Decay(
        "steps", levels[1][0], levels[-1][0], levels[0][1], levels[-1][1], 2 * len(levels), True, levels
    )


@dataclass(frozen=True)
class _Search:
    """Where to begin: start and end of the decay, and which of the two are free."""

    start: float
    end: float
    free_start: bool
    free_end: bool
    held_end: bool


def fit_form(
    name: str, step: Numbers, lr: Numbers, tolerance: Numbers, begins: float, warm: bool
) -> list[Decay]:
    """The best decays of this form that begin at once, and, where the form allows it, after a plateau.

    Args:
        step, lr: logged points from the end of the warm-up on, `[n]`, at least three.
        tolerance: what counts as agreement at each point, in learning rate `[n]`.
        begins: the step at which the warm-up ends.
        warm: whether the log shows the warm-up; if not, where a cosine begins is searched for.
    """
    usable = lr > 0
    if usable.sum() < 3:
        return []
    index = np.flatnonzero(usable)
    kept = index[np.unique(np.linspace(0, len(index) - 1, min(len(index), FITTED_POINTS)).astype(int))]
    s, y, scale = step[kept], lr[kept], tolerance[kept]
    form, found = FORMS[name], []
    for group in _searches(form, s, y, scale, begins, warm):
        starts = sorted(group, key=lambda search: _fit(form, s, y, scale, search)[1])
        if starts:
            found.append(_refined(form, s, y, scale, starts[0]))
    return found


def refit(decay: Decay, step: Numbers, lr: Numbers, tolerance: Numbers, begins: float) -> Decay:
    """The same decay once more, on points that are certainly past the warm-up, which ends at `begins`.

    A decay that begins with the warm-up's end begins at `begins`; a cosine's own start may differ from it by the
    step that trainers count differently, and stays free.
    """
    if decay.form in ("constant", "steps") or len(step) < 4:
        return decay
    form = FORMS[decay.form]
    first = float(step[0])
    plateau = decay.start > first
    kept = np.unique(np.linspace(0, len(step) - 1, min(len(step), FITTED_POINTS)).astype(int))
    kept = kept[lr[kept] > 0]
    free_end = decay.held_end or form.ends_by_form
    search = _Search(
        decay.start if plateau else begins, decay.end, plateau or form.ends_by_form, free_end, decay.held_end
    )
    again = _refined(form, step[kept], lr[kept], tolerance[kept], search)
    return replace(again, parameters=decay.parameters)


def _searches(
    form: Form, s: Numbers, y: Numbers, scale: Numbers, begins: float, warm: bool
) -> list[list[_Search]]:
    """Groups of starting points; the best of each group is refined."""
    last, tail = float(s[-1]), _tail(s, y, scale)
    ends: list[tuple[float, bool, bool]] = [(last, False, False)]
    if tail is not None:
        ends = [(tail, True, True)]
    elif form.ends_by_form:
        span = last - begins
        ends = [(begins + k * span, True, False) for k in (1.0, 1.05, 1.2, 1.5, 2.0, 3.0, 5.0)]
    free = form.ends_by_form and not warm
    groups = [[_Search(begins, end, free, free_end, held) for end, free_end, held in ends]]
    level = np.abs(y - np.median(y[:3])) <= scale
    if form.name in AFTER_PLATEAU and level[:3].all():
        broken = np.flatnonzero(~level)
        plateaus = {float(s[broken[0] - 1]), float(s[np.flatnonzero(level)[-1]])} if len(broken) else set()
        groups.append(
            [
                _Search(start, end, True, free_end, held)
                for start in sorted(plateaus)
                for end, free_end, held in ends
                if start < end
            ]
        )
    return groups


def _tail(s: Numbers, y: Numbers, scale: Numbers) -> float | None:
    """Step from which at least three points stay at the last level, if what comes before does not."""
    away = np.flatnonzero(np.abs(y - y[-1]) > 0.1 * scale)
    if not len(away) or len(y) - 1 - away[-1] < 3:
        return None
    return float(s[away[-1] + 1])


def _fit(
    form: Form, s: Numbers, y: Numbers, scale: Numbers, search: _Search
) -> tuple[tuple[float, float], float]:
    """Levels at start and end for a given start and end of the decay, and the robust cost.

    Iteratively reweighted least squares with Cauchy's weights, whose width shrinks to the tolerance, so that a
    stretch that departs from the form does not bend it.
    """
    left = form.remaining(np.clip((s - search.start) / (search.end - search.start), 0.0, 1.0))
    basis = np.stack([left, 1 - left], axis=1)
    z, to_lr = form.to_line(y), 1 / form.slope(y)
    weight: Numbers = np.ones_like(y)
    residual: Numbers = y
    levels: Numbers = np.zeros(2)
    for width in (30.0, 5.0, 1.0, 1.0):
        w = (weight * to_lr)[:, None]
        levels = np.asarray(np.linalg.lstsq(basis * w, z * w[:, 0], rcond=None)[0], "float64")
        residual = (y - form.from_line(basis @ levels)) / scale
        weight = 1 / np.sqrt(1 + (residual / width) ** 2)
    cost = float(np.log1p(np.minimum(residual**2, 1e12)).mean())
    if not np.isfinite(cost):
        cost = np.inf
    peak, final = form.from_line(levels)
    return (float(peak), float(final)), cost


def _refined(form: Form, s: Numbers, y: Numbers, scale: Numbers, search: _Search) -> Decay:
    """Nelder-Mead over the free ones of start and end."""
    span = float(s[-1] - s[0])
    lowest, latest = min(search.start, float(s[0])), s[0] + LONGEST_COSINE * span

    def placed(x: Numbers) -> _Search:
        values = list(x)
        start = search.start + span * values.pop(0) if search.free_start else search.start
        end = search.end + span * values.pop(0) if search.free_end else search.end
        start = float(np.clip(start, lowest - span if search.free_end else lowest, s[-2]))
        return replace(search, start=start, end=float(np.clip(end, start + 1e-3 * span, latest)))

    size = int(search.free_start) + int(search.free_end)
    if size:
        simplex = np.vstack([np.zeros(size), 0.02 * np.eye(size)])
        options = {"initial_simplex": simplex, "xatol": 1e-7, "fatol": 1e-12, "maxiter": 120}
        found = minimize(
            lambda x: _fit(form, s, y, scale, placed(x))[1],
            np.zeros(size),
            method="Nelder-Mead",
            options=options,
        )
        search = placed(found.x)
    (peak, final), _ = _fit(form, s, y, scale, search)
    plateau = search.free_start and search.start > s[0]
    return Decay(
        form.name, search.start, search.end, peak, max(final, 0.0), 2 + size + plateau, search.held_end
    )
