"""Own runs over a public run at matched progress: what agrees in shape, and what may not be compared."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.bootstrap import block_interval
from analysis.curves import AXES, has_metric
from analysis.landmarks import grad_norm_landmarks
from analysis.ledger import COMPARABLE, ledger
from analysis.level_shift import level_shift, progress_shift
from analysis.measures import (
    MEASURES,
    Measured,
    check_choices,
    check_irreducible,
    consequence,
    measured,
    normal_form,
)
from analysis.schedule import fit_schedule, recover_schedule
from analysis.shape import (
    FEWEST_POINTS,
    REFERENCE_SHARE,
    Reference,
    common_reference,
    in_a_coarse_gap,
    same_but_for_the_seed,
    seed_interval,
    shape_distance,
    trend_and_noise,
)
from experiments.configuration import InputError
from logs.schema import Run, Segment

Numbers = NDArray[np.float64]

LOSS = "train/loss"


def compare(
    own: list[Run],
    public: Run,
    x: str | None = None,
    y: str | None = None,
    irreducible: float | None = None,
) -> dict[str, Any]:
    """Compare each of `own` with `public`: what `maquette compare --json` prints.

    Args:
        x: an axis, a key of `AXES`; None: that of the first pair's normal form.
        y: a measure, a key of `MEASURES`, or a metric that all runs log; None as for `x`.
        irreducible: what to subtract for `reducible`; None: fitted to each curve.

    Raises:
        InputError: no run is given, one is given twice, the runs have no loss in common, `x` or `y` is not a
            choice, or `irreducible` is not from 0 up or not for `reducible`.
    """
    if not own:
        raise InputError("give at least one own run to compare")
    seen = {public.name}
    for run in own:
        if run.name in seen:
            twice = "both own and public" if run.name == public.name else "twice"
            raise InputError(f"{run.name} is given {twice}; a comparison needs different runs")
        seen.add(run.name)
    own, public = [of_its_lineage(run) for run in own], of_its_lineage(public)
    check_choices(x, y, [*own, public])
    check_irreducible(irreducible, y)
    metric = shared_loss([*own, public])
    reference = common_reference([*own, public], metric, "fraction")
    public_schedule, public_landmarks = recover_schedule(public), grad_norm_landmarks(public)
    pairs = []
    for run in own:
        pair = compare_pair(run, public, metric, reference, public_schedule, public_landmarks)
        form = normal_form(run, public, metric, pair["ledger"])
        view = view_of(run, public, x or form[0], y or form[1], metric, pair["ledger"], irreducible)
        pairs.append(pair | {"normal_form": {"x": form[0], "y": form[1]}, "view": view})
    return {
        "public": public.name,
        "metric": metric,
        "x": x or pairs[0]["normal_form"]["x"],
        "y": y or pairs[0]["normal_form"]["y"],
        "irreducible": irreducible,
        "reference_fraction": reference.at if reference else None,
        "reference_window": [reference.lo, reference.hi] if reference else None,
        "pairs": pairs,
        "seeds": [seeds_together(group, pairs) for group in same_but_for_the_seed(own)],
        "report": None,
    }


def of_its_lineage(run: Run) -> Run:
    """The run with one row per step and one segment, so that each metric is read without splicing anew."""
    if run.table.empty:
        return run
    rows = run.lineage()
    whole = Segment(id=run.name, first_step=int(rows["step"].iloc[0]), last_step=int(rows["step"].iloc[-1]))
    return replace(run, table=rows, segments=(whole,))


def with_recovered_length(run: Run) -> Run:
    """The run, where nobody stated how long its schedule is, with the length that its learning rate shows; said in
    `inferred`."""
    if run.facts.steps_planned is not None:
        return run
    found, _ = fit_schedule(run)
    length = found.length if found else None
    if length is None:
        return run
    steps = round(length) - (run.facts.steps_from or 0)
    said = f"schedule of {steps:,} steps, recovered from the logged learning rate"
    facts = run.facts.model_copy(update={"steps_planned": steps})
    return replace(run, facts=facts, inferred=(*run.inferred, said))


def shared_loss(runs: list[Run]) -> str:
    """The loss that all runs log: `train/loss`, else a shared evaluation loss.

    Raises:
        InputError: there is none.
    """
    for metric in [
        LOSS,
        *sorted(m for m in runs[0].metrics if m.startswith("eval/") and m.endswith("/loss")),
    ]:
        if all(has_metric(run, metric) for run in runs):
            return metric
    logged = "; ".join(f"{run.name} logs {', '.join(run.metrics)}" for run in runs)
    raise InputError(f"the runs have no loss in common: {logged}")


def compare_pair(
    own: Run,
    public: Run,
    metric: str,
    reference: Reference | None,
    public_schedule: dict[str, Any],
    public_landmarks: dict[str, Any],
) -> dict[str, Any]:
    """One pair; `reasons` says in words why a value is null."""
    schedule = recover_schedule(own)
    rows = ledger(own, public, schedule, public_schedule)
    fraction = shape_distance(own, public, metric, "fraction", reference)
    per_parameter_reference = common_reference([own, public], metric, "tokens_per_parameter")
    per_parameter = shape_distance(own, public, metric, "tokens_per_parameter", per_parameter_reference)
    shift, compute, reason = level_shift(own, public, rows)
    return {
        "own": own.name,
        "public": public.name,
        "shape_distance": fraction["distance"],
        "interval": fraction["interval"],
        "interval_from": fraction["interval_from"],
        "shape": {"fraction": fraction, "tokens_per_parameter": per_parameter},
        "progress_shift": progress_shift(own, public, metric, "fraction", reference),
        "token_shift": shift,
        "compute_ratio": compute,
        "reasons": {
            "shape_distance": fraction["reason"],
            "token_shift": reason[0],
            "compute_ratio": reason[1],
        },
        "grad_norm_landmarks": {"own": grad_norm_landmarks(own), "public": public_landmarks},
        "schedule": {"own": schedule, "public": public_schedule},
        "ledger": rows,
        "inferred": {"own": list(own.inferred), "public": list(public.inferred)},
    }


def seeds_together(group: list[Run], pairs: list[dict[str, Any]]) -> dict[str, Any]:
    """Runs that differ in their seed only: mean shape distance, its spread, and Student's interval of the mean.

    Returns:
        `{runs, seeds, n, shape_distance, spread, interval, interval_from, reason}`.
    """
    names = [run.name for run in group]
    values = [pair["shape_distance"] for pair in pairs if pair["own"] in names]
    found: dict[str, Any] = {"runs": names, "seeds": [run.facts.seed for run in group], "n": len(names)}
    if any(value is None for value in values):
        empty = dict.fromkeys(("shape_distance", "spread", "interval", "interval_from"))
        return found | empty | {"reason": "not every seed has a shape distance"}
    mean, spread, (low, high) = seed_interval(values)
    return found | {
        "shape_distance": mean,
        "spread": spread,
        "interval": [max(0.0, low), high],
        "interval_from": "seeds",
        "reason": None,
    }


def view_of(
    own: Run, public: Run, x: str, y: str, metric: str, rows: list[dict[str, Any]], floor: float | None = None
) -> dict[str, Any]:
    """The pair as `y` over `x`: what it is worth, a caption that says why, and the gap at the end.

    Returns:
        `{x, y, label, unit, metrics: {own, public}, consequence, caption, decided_by, notes, overlap, n, gap,
        reason}`. `gap` is that of `final_gap`, None where units differ and for `relative`, which is 1 at the end
        by construction. `reason` says why nothing can be drawn.
    """
    label = MEASURES[y].label if y in MEASURES else y
    empty: dict[str, Any] = {
        "x": x, "y": y, "label": label, "unit": None, "metrics": None, "consequence": None, "caption": "",
        "decided_by": [], "notes": [], "overlap": None, "n": 0, "gap": None, "reason": None,
    }  # fmt: skip
    reference = common_reference([own, public], metric, x)
    try:
        mine, theirs = (
            measured(run, other, x, y, metric, reference, floor)
            for run, other in ((own, public), (public, own))
        )
        lo, hi = overlap(mine, theirs, x)
    except InputError as error:
        return empty | {"reason": str(error), "caption": f"Not drawn: {error}."}
    worth, deciding = consequence(y, mine.metric, rows)
    notes = [f"{m.run.name}: {m.note}" for m in (mine, theirs) if m.note]
    if mine.unit != theirs.unit:
        worth = "not comparable" if worth == COMPARABLE else worth
        notes.append(f"units differ: {own.name} in {mine.unit}, {public.name} in {theirs.unit}")
    if np.ptp(mine.y[np.isfinite(mine.y)]) == 0 or np.ptp(theirs.y[np.isfinite(theirs.y)]) == 0:
        notes.append("one of the curves never changes: check its log")
    inside = (mine.x >= lo) & (mine.x <= hi * (1 + 1e-9)) & np.isfinite(mine.y)
    return empty | {
        "unit": mine.unit if mine.unit == theirs.unit else None,
        "metrics": {"own": mine.metric, "public": theirs.metric},
        "consequence": worth,
        "decided_by": [row["aspect"] for row in deciding],
        "caption": caption(f"{label} over {AXES[x].label}", worth, deciding, notes),
        "notes": notes,
        "overlap": [lo, hi],
        "n": int(inside.sum()),
        "gap": None if y == "relative" or mine.unit != theirs.unit else final_gap(mine, theirs, lo, hi),
    }


def overlap(own: Measured, public: Measured, axis: str) -> tuple[float, float]:
    """The stretch of x that both curves cover.

    Raises:
        InputError: there is none.
    """
    lo, hi = max(own.x[0], public.x[0]), min(own.x[-1], public.x[-1])
    if not ((own.x >= lo) & (own.x <= hi * (1 + 1e-9))).any():
        raise InputError(
            f"{own.run.name} covers {own.x[0]:.3g} to {own.x[-1]:.3g} of {AXES[axis].label}, {public.run.name} "
            f"{public.x[0]:.3g} to {public.x[-1]:.3g}: the curves do not overlap"
        )
    return float(lo), float(hi)


def caption(drawn: str, worth: str, deciding: list[dict[str, Any]], notes: list[str]) -> str:
    """The sentence under an overlay: what is drawn, what it is worth and why, gravest reason first."""
    parts = [f"{drawn[0].upper()}{drawn[1:]}: {worth}."]
    differ = [row for row in deciding if row["same"] is False]
    unknown = [row["aspect"] for row in deciding if row["same"] is None]
    parts += [f"{row['aspect']} differs ({row['own']} | {row['public']}): {row['why']}." for row in differ]
    if unknown:
        parts.append(f"Not known to agree: {', '.join(unknown)}.")
    return " ".join(parts + [f"{note}." for note in notes])


def final_gap(own: Measured, public: Measured, lo: float, hi: float) -> dict[str, Any] | None:
    """Own minus public, mean over the last `REFERENCE_SHARE` of the common stretch, at own's points, with a moving
    block bootstrap of the differences' noise; only the public curve is interpolated, nothing is smoothed before.
    None where no point of own lies there, or only where the public log is too coarse to interpolate."""
    known = np.isfinite(public.y)
    inside = (own.x >= lo) & (own.x <= hi * (1 + 1e-9)) & np.isfinite(own.y)
    if not inside.any() or not known.any():
        return None
    inside &= ~in_a_coarse_gap(own.x, public.x[known], public.y[known])
    if not inside.any():
        return None
    x, difference = own.x[inside], own.y[inside] - np.interp(own.x[inside], public.x[known], public.y[known])
    late = x >= hi - REFERENCE_SHARE * (hi - lo)
    if not late.any():
        return None
    value, interval = float(difference[late].mean()), None
    if len(difference) >= FEWEST_POINTS and late.sum() > 1:
        trend, noise, length = trend_and_noise(difference)
        interval = list(block_interval(trend, noise, lambda d: float(d[late].mean()), length, resamples=400))
        around = float(trend[late].mean())
        interval = [value + interval[0] - around, value + interval[1] - around]
    return {"value": value, "interval": interval, "window": [float(x[late][0]), hi], "n": int(late.sum())}
