"""The learning-rate schedule of a run, recovered from its log alone, and the learning rate summed over steps."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.curves import has_metric, points
from analysis.schedule_forms import FORMS, Decay, constant_decay, fit_form, refit, steps_decay
from logs.schema import Run

Numbers = NDArray[np.float64]

TOLERANCE = 2e-3
"""Largest departure from a shape, relative to the peak, that still counts as the shape; above float32
rounding and below any schedule change one would want to hear of. Widened where the log itself is coarser."""

WIDEST_TOLERANCE = 0.02
"""Steps that are logged wrongly make the learning rate look noisy; up to this the shape is still sought."""

RECOGNISED = 0.8
"""A shape that holds for a smaller share of the logged points is not the shape."""

FEWEST_POINTS = 3


@dataclass(frozen=True)
class Recovered:
    """A schedule read off a log.

    Attributes:
        decay: the curve after the warm-up.
        warmup_end: the zero-based step at which the warm-up meets it, None where the log shows no warm-up.
        warmup: slope and intercept of the warm-up line.
        step, lr: the logged points; departs: which of them lie off the schedule.
        recognised: whether the shape holds for `RECOGNISED` of the points after the warm-up.
        assumed: what had to be assumed, in words.
    """

    decay: Decay
    warmup_end: float | None
    warmup: Numbers | None
    step: Numbers
    lr: Numbers
    departs: NDArray[np.bool_]
    recognised: bool
    assumed: tuple[str, ...] = ()

    @property
    def peak(self) -> float:
        """The learning rate at the end of the warm-up; without one, the highest of the fitted curve."""
        if self.warmup_end is None:
            return float(self.decay.at(self.step[:1])[0])
        return float(self.decay.at(np.array([self.warmup_end]))[0])

    @property
    def warmup_steps(self) -> float | None:
        """Length of the warm-up. Trainers that reach 1/W at step 0 are counted as those that reach 0 there."""
        if self.warmup_end is None or self.warmup is None:
            return self.warmup_end
        zero = -self.warmup[1] / self.warmup[0]
        return self.warmup_end - zero if -1.5 < zero < 0 else self.warmup_end

    @property
    def length(self) -> float | None:
        """Steps of the whole schedule, where the log shows its end: it stays at a last level or falls to nothing,
        or is a cosine of which at least 60 % is logged. Else None."""
        last = self.step[-1]
        if not self.recognised or self.decay.form in ("constant", "steps"):
            return None
        if self.decay.form == "linear" and not self.decay.held_end and self.lr[-1] <= 0.01 * self.peak:
            share = self.decay.peak / (self.decay.peak - self.decay.final)
            return float(self.decay.start + share * (self.decay.end - self.decay.start))
        if self.decay.held_end or self.lr[-1] <= 0.01 * self.peak:
            return float(self.decay.end)
        begins = self.decay.start
        bent = FORMS[self.decay.form].ends_by_form and last - begins >= 0.6 * (self.decay.end - begins)
        return float(self.decay.end) if bent else None

    def at(self, step: Numbers) -> Numbers:
        """The learning rate at each step, warm-up included; before the first logged step if no warm-up was seen,
        that of the decay."""
        late = self.decay.at(step)
        if self.warmup_end is None or self.warmup is None:
            return late
        return np.where(step < self.warmup_end, np.maximum(np.polyval(self.warmup, step), 0.0), late)


def recover_schedule(run: Run) -> dict[str, Any]:
    """Warm-up length, peak, shape and final fraction of the learning rate in the log `lr`.

    Warm-up and decay are fitted apart; where they meet is the end of the warm-up, so the answer does not depend
    on the peak's own step having been sampled. Of the shapes that agree with most points within the tolerance,
    the one with the fewest free numbers is taken. Steps are zero-based.

    Returns:
        `{shape, peak_lr, warmup_steps, final_fraction, total_steps, departures, reason}`; unknown values are
        None and `reason` says why. `shape` is linear, cosine, wsd, inverse_sqrt, constant, steps (held at a few
        levels), another of `FORMS` or unrecognised. Beside them `decay_form`, `decay_start` and `decay_end` (of
        wsd), `levels` (of steps), `recovered_steps` (the schedule's length, where the log shows its end),
        `final_step` (where `final_fraction` is read), `last_fraction`
        (of the peak, at the last logged step), `departure_stretches` `[{first_step, last_step, points,
        largest}]` in shares of the peak, `tolerance` (that share which counts as agreement) and `notes`.
    """
    unknown: dict[str, Any] = dict.fromkeys(
        (
            "shape", "decay_form", "decay_start", "decay_end", "peak_lr", "warmup_steps", "final_fraction",
            "last_fraction", "final_step", "total_steps", "recovered_steps", "tolerance", "reason",
        ),
        None,
    )  # fmt: skip
    unknown |= {"departures": [], "departure_stretches": [], "levels": [], "notes": [], "n": 0}
    found, reason = fit_schedule(run)
    if found is None:
        return unknown | {"reason": reason}
    return unknown | _described(found, run.facts.steps_planned)


def _described(found: Recovered, total: int | None) -> dict[str, Any]:
    decay, peak = found.decay, found.peak
    length = found.length
    final_step = total if total is not None else length
    known_end = found.recognised and (length is not None or _goes_on(found, total))
    final = float(found.at(np.array([float(final_step)]))[0]) / peak if final_step and known_end else None
    warmup = found.warmup_steps
    plateau = _has_plateau(found)
    notes = list(found.assumed)
    if found.warmup_end is None and found.recognised and _shape(found) == "linear":
        earliest = decay.peak + decay.start * (decay.peak - decay.final) / (decay.end - decay.start)
        notes.append(f"if there was no warm-up before step {found.step[0]:.0f}, the peak was {earliest:.4g}")
    if decay.form == "constant":
        notes.append("level as far as the log goes: a schedule that decays later looks the same")
    if not found.departs.any() and found.recognised and length is None and total is None:
        notes.append("the log does not show where the schedule ends")
    return {
        "shape": _shape(found),
        "decay_form": decay.form if plateau else None,
        "decay_start": round(decay.start) if plateau else None,
        "decay_end": round(decay.end) if plateau and decay.held_end else None,
        "peak_lr": peak,
        "warmup_steps": None if warmup is None else max(0, round(warmup)),
        "final_fraction": final,
        "last_fraction": float(found.lr[-1] / peak),
        "final_step": round(final_step) if final_step and final is not None else None,
        "total_steps": total,
        "recovered_steps": None if length is None else round(length),
        "levels": [{"first_step": int(first), "lr": level} for first, level in decay.levels],
        "departures": [int(s) for s in found.step[found.departs][:20]],
        "departure_stretches": _stretches(found),
        "tolerance": float(_tolerance(found.step, found.lr, peak).max() / peak),
        "notes": notes,
        "n": len(found.step),
        "reason": None if found.recognised else _unrecognised(found),
    }


def _goes_on(found: Recovered, total: int | None) -> bool:
    """Whether the decay may be drawn on to the planned last step: by a form that says how, or because the log
    nearly reaches it."""
    if found.decay.form in ("linear", "inverse_sqrt", "exponential", "inverse"):
        return True
    return total is not None and found.step[-1] >= 0.95 * (total - 1)


def _shape(found: Recovered) -> str:
    if not found.recognised:
        return "unrecognised"
    return "wsd" if _has_plateau(found) else found.decay.form


def _has_plateau(found: Recovered) -> bool:
    """Whether the decay begins after at least three logged points, and 2 % of the log, at the peak."""
    decay = found.decay
    if decay.form in ("constant", "steps", "inverse_sqrt") or not found.recognised:
        return False
    begins = found.step[0] if found.warmup_end is None else found.warmup_end
    held = (found.step >= begins) & (found.step <= decay.start)
    return held.sum() >= 3 and decay.start - begins > 0.02 * (found.step[-1] - begins)


def _unrecognised(found: Recovered) -> str:
    after = found.step >= (found.warmup_end or found.step[0])
    share = 100 * (1 - found.departs[after].mean())
    return (
        f"after its peak the learning rate follows no known shape: the closest, {found.decay.form}, holds for "
        f"{share:.0f} % of the logged points"
    )


def _stretches(found: Recovered) -> list[dict[str, Any]]:
    """Neighbouring points off the schedule as stretches, the longest twenty, in order."""
    index = np.flatnonzero(found.departs)
    groups = np.split(index, np.flatnonzero(np.diff(index) > 1) + 1) if len(index) else []
    off = np.abs(found.lr - found.at(found.step)) / found.peak
    longest = sorted(sorted(groups, key=len, reverse=True)[:20], key=lambda group: int(group[0]))
    return [
        {
            "first_step": int(found.step[group[0]]),
            "last_step": int(found.step[group[-1]]),
            "points": len(group),
            "largest": float(off[group].max()),
        }
        for group in longest
    ]


def fit_schedule(run: Run) -> tuple[Recovered | None, str | None]:
    """The schedule behind the log `lr` of a run, or None and the reason why there is none to see."""
    if not has_metric(run, "lr"):
        return None, "the log has no learning rate"
    rows = points(run, "lr")
    step, lr = rows["step"].to_numpy("float64"), rows["value"].to_numpy("float64")
    if len(step) < FEWEST_POINTS:
        return (
            None,
            f"the log has {len(step)} learning rate{'s' * (len(step) > 1)}: too few to see a schedule",
        )
    highest = float(lr.max())
    if highest <= 0 or (lr < 0).any():
        return None, "the learning rate in the log is negative or never above zero"
    tolerance = _tolerance(step, lr, highest)
    top = int(np.flatnonzero(lr >= highest - tolerance)[0])
    if len(step) - top < FEWEST_POINTS:
        return (
            None,
            "fewer than two points after the highest learning rate: the warm-up is all that is logged",
        )
    warmup, assumed = _warmup_line(step[:top], lr[:top], tolerance[:top])
    begins = float(step[top]) if warmup is None else float((highest - warmup[1]) / warmup[0])
    decay = _best_decay(step[top:], lr[top:], tolerance[top:], begins, warmup is not None)
    warmup_end: float | None = None
    if warmup is not None:
        warmup_end = _corner(warmup, decay, begins)
        late = step >= max(warmup_end, step[top])  # the highest point may still lie on the warm-up
        decay = refit(decay, step[late], lr[late], tolerance[late], warmup_end)
        warmup_end = _corner(warmup, decay, begins)
    elif step[0] <= 1:
        warmup_end, assumed = 0.0, ()
    found = Recovered(decay, warmup_end, warmup, step, lr, np.zeros(len(step), bool), True, assumed)
    departs = np.abs(lr - found.at(step)) > tolerance
    after = step >= step[top]
    recognised = bool((~departs[after]).mean() >= RECOGNISED)
    return replace(found, departs=departs, recognised=recognised), None


def _best_decay(step: Numbers, lr: Numbers, tolerance: Numbers, begins: float, warm: bool) -> Decay:
    """The simplest of the decays that agree with about as many points as any."""

    def agreeing(decay: Decay) -> int:
        return int((np.abs(lr - decay.at(step)) <= tolerance).sum())

    slack = max(1, round(0.02 * len(step)))
    found: list[Decay] = []
    stepwise = steps_decay(step, lr, tolerance)
    for candidates in (
        [constant_decay(step, lr)],
        fit_form("linear", step, lr, tolerance, begins, warm),
        [stepwise] if stepwise else [],
        *(fit_form(name, step, lr, tolerance, begins, warm) for name in FORMS if name != "linear"),
    ):
        found += candidates
        if any(agreeing(decay) == len(step) and decay.parameters <= 2 for decay in candidates):
            break
    counts = [agreeing(decay) for decay in found]
    good = [decay for decay, n in zip(found, counts, strict=True) if n >= max(counts) - slack]
    fewest = min(decay.parameters for decay in good)

    def misfit(decay: Decay) -> float:
        off = np.minimum(np.abs(lr - decay.at(step)) / tolerance, 10.0)
        return float((off**2).mean())

    return min(
        (decay for decay in good if decay.parameters <= fewest + 1),
        key=lambda d: (round(misfit(d), 3), d.parameters),
    )


def _warmup_line(step: Numbers, lr: Numbers, tolerance: Numbers) -> tuple[Numbers | None, tuple[str, ...]]:
    """Slope and intercept through the rising part (medians of slopes: one odd point does not matter), or None.

    With a single point it is assumed to rise from zero at step 0.
    """
    if len(step) == 0:
        return None, ("the log shows no warm-up",)
    if len(step) == 1:
        if step[0] <= 0 or lr[0] <= 0:
            return None, ("the log shows no warm-up but for its first point",)
        return np.array([lr[0] / step[0], 0.0]), (
            "one point of the warm-up is logged: taken to rise from 0 at step 0",
        )
    kept = np.unique(np.linspace(0, len(step) - 1, min(len(step), 100)).astype(int))
    s, y = step[kept], lr[kept]
    i, j = np.triu_indices(len(s), 1)
    slope = float(np.median((y[j] - y[i]) / (s[j] - s[i])))
    near = np.abs(lr - (slope * step + np.median(y - slope * s))) <= np.maximum(tolerance, 0.1 * lr.max())
    if near.sum() >= 2:
        line = np.polyfit(step[near] - step[0], lr[near], 1) @ np.array([[1.0, -step[0]], [0.0, 1.0]])
        return (line, ()) if line[0] > 0 else (None, ("the learning rate does not rise before its peak",))
    return None, ("what comes before the peak is no straight warm-up",)


def _corner(warmup: Numbers, decay: Decay, begins: float) -> float:
    """The step at which the warm-up line meets the decay: Newton's method on a curve that is nearly flat there."""
    at = begins
    for _ in range(20):
        height = float(decay.at(np.array([at]))[0])
        ahead = float(decay.at(np.array([at + 1.0]))[0])
        gap, slope = warmup[0] * at + warmup[1] - height, warmup[0] - (ahead - height)
        if slope <= 0:
            return begins
        at -= gap / slope
    return float(at)


def _tolerance(step: Numbers, lr: Numbers, peak: float) -> Numbers:
    """What counts as agreement at each point: `TOLERANCE`, the log's own rounding, or four times its noise."""
    return np.maximum(np.maximum(TOLERANCE * peak, _rounding(lr)), _noise(step, lr, peak))


def _rounding(lr: Numbers) -> Numbers:
    """Half of the last digit that is printed: by decimals or by significant digits, whichever is coarser."""
    values = np.unique(lr[lr > 0])[:2000]
    if len(values) < 10:  # a few round numbers say nothing about how a number is printed
        return np.zeros_like(lr)
    texts = [np.format_float_scientific(value) for value in values]
    digits = max((len(text.split("e")[0].replace(".", "").rstrip("0")) for text in texts), default=1)
    if digits > 6:
        return np.zeros_like(lr)
    exponent = np.floor(np.log10(np.where(lr > 0, lr, lr.max())))
    places = max((_decimals(text) for text in texts), default=0)
    return 0.5 * np.maximum(10.0 ** (exponent - digits + 1), 10.0**-places)


def _decimals(text: str) -> int:
    mantissa, exponent = text.split("e")
    return max(0, len(mantissa.split(".")[1].rstrip("0")) - int(exponent))


def _noise(step: Numbers, lr: Numbers, peak: float) -> Numbers:
    """Four standard deviations of the points about the lines through their neighbours, after the peak."""
    top = int(np.argmax(lr))
    s, y = step[top:], lr[top:]
    if len(s) < 8:
        return np.zeros_like(lr)
    share = (s[1:-1] - s[:-2]) / (s[2:] - s[:-2])
    off = y[1:-1] - (y[:-2] + share * (y[2:] - y[:-2]))
    sigma = 1.4826 * float(np.median(np.abs(off))) / np.sqrt(1.5)
    return np.full(len(lr), min(4 * sigma, WIDEST_TOLERANCE * peak))
