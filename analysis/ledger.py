"""The comparability ledger: what two runs share, what differs, and what each difference forbids."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from analysis.counting_rule import same_rule
from analysis.schedule import recover_schedule
from logs.schema import Run

COMPARABLE, SHAPE_ONLY, NOT_COMPARABLE = "comparable", "shape only", "not comparable"
"""Consequences, from the mildest to the gravest."""


@dataclass(frozen=True)
class Subject:
    """A run and the schedule that its log shows (see `recover_schedule`)."""

    run: Run
    schedule: dict[str, Any]


@dataclass(frozen=True)
class Aspect:
    """One line of the ledger.

    Attributes:
        of: the run's value, a plain JSON value, or None where neither its source nor its log says.
        differs: the consequence when the two values differ.
        why: what that means for a reader of the overlay.
        tolerance: relative difference up to which numbers count as the same.
        equal: for values that can agree in other words: True, False or None for undecided.
    """

    name: str
    of: Callable[[Subject], Any]
    differs: str
    why: str
    tolerance: float = 0.0
    equal: Callable[[Any, Any], bool | None] | None = None


def _fact(name: str) -> Callable[[Subject], Any]:
    return partial(_fact_of, name=name)


def _fact_of(subject: Subject, name: str) -> Any:
    return getattr(subject.run.facts, name)


def _ratio(part: float | None, whole: float | None, digits: int = 4) -> float | None:
    return float(f"{part / whole:.{digits}g}") if part is not None and whole else None


def _mixture(subject: Subject) -> str | None:
    shares = subject.run.facts.mixture
    return ", ".join(f"{name} {share:.3g}" for name, share in sorted(shares.items())) if shares else None


def _vocabulary_share(subject: Subject) -> float | None:
    """Share of embeddings and LM head in all parameters; tied embeddings count once."""
    facts = subject.run.facts
    if facts.params_embedding is None or facts.params_lm_head is None:
        return None
    return _ratio(facts.params_embedding + facts.params_lm_head, facts.params_total, 3)


def _flops_per_parameter(subject: Subject) -> float | None:
    facts = subject.run.facts
    return _ratio(facts.train_flops_per_token, facts.params_active, 3)


def _schedule_shape(subject: Subject) -> str | None:
    """As stated, else as the log shows it; a level stretch of a longer schedule does not show its shape."""
    stated, seen = subject.run.facts.schedule, subject.schedule
    if stated:
        return stated.shape
    decided = seen["shape"] not in (None, "unrecognised") and not _only_level(subject)
    return str(seen["shape"]) if decided else None


def _only_level(subject: Subject) -> bool:
    seen = subject.schedule
    return bool(seen["shape"] == "constant" and seen["final_fraction"] is None)


def _warmup_share(subject: Subject) -> float | None:
    stated, seen = subject.run.facts.schedule, subject.schedule
    if stated:
        return _ratio(stated.warmup_steps, stated.total_steps, 2)
    return _ratio(seen["warmup_steps"], seen["total_steps"] or seen["recovered_steps"], 2)


def _final_share(subject: Subject) -> float | None:
    stated, seen = subject.run.facts.schedule, subject.schedule["final_fraction"]
    return stated.final_fraction if stated else None if seen is None else round(seen, 4)


def _off_schedule(subject: Subject) -> str | None:
    """Whether the log keeps to the shape it shows, in words."""
    seen = subject.schedule
    if seen["shape"] in (None, "unrecognised"):
        return None
    stretches = seen["departure_stretches"]
    if not stretches:
        return "none"
    points = sum(stretch["points"] for stretch in stretches)
    return f"{points} points from step {stretches[0]['first_step']} on"


def _schedule_covered(subject: Subject) -> float | None:
    facts = subject.run.facts
    done = int(subject.run.table["step"].max()) + 1 - (facts.steps_from or 0)
    return _ratio(done, facts.steps_planned, 3)


def _loss_metric(run: Run) -> str | None:
    logged = run.metrics
    return "train/loss" if "train/loss" in logged else next(iter(logged), None)


def _loss_unit(subject: Subject) -> str | None:
    metric = _loss_metric(subject.run)
    unit = subject.run.units[metric] if metric else "unknown"
    return None if unit == "unknown" else unit


def _history(subject: Subject) -> str | None:
    """`full` when the loss is logged at nearly every step of the stretch that the log covers."""
    metric = _loss_metric(subject.run)
    if metric is None:
        return None
    steps = subject.run.series(metric)["step"]
    share = len(steps) / (steps.max() - steps.min() + 1) if len(steps) else 0.0
    return "full" if share > 0.9 else f"sampled ({share:.2g} of its steps)"


ASPECTS = (
    Aspect("architecture", _fact("architecture"), SHAPE_ONLY, "another block may learn at another pace"),
    Aspect(
        "active parameters",
        _fact("params_active"),
        SHAPE_ONLY,
        "a model of another size ends at another loss; only the form of the curve can agree",
        tolerance=0.01,
    ),
    Aspect(
        "total / active parameters",
        lambda s: _ratio(s.run.facts.params_total, s.run.facts.params_active),
        SHAPE_ONLY,
        "sparsity changes what a FLOP buys",
        tolerance=0.05,
    ),
    Aspect(
        "embeddings and LM head, share of all parameters",
        _vocabulary_share,
        SHAPE_ONLY,
        "a small model spends more of itself on its vocabulary, and gains less from its layers",
        tolerance=0.1,
    ),
    Aspect(
        "training FLOPs per token and active parameter",
        _flops_per_parameter,
        SHAPE_ONLY,
        "attention's share of the compute differs, so equal tokens per parameter are not equal compute",
        tolerance=0.1,
    ),
    Aspect(
        "parameter counting rule",
        _fact("counting_rule"),
        SHAPE_ONLY,
        "tokens per parameter means something else on each side",
        equal=same_rule,
    ),
    Aspect(
        "tokens per active parameter, planned",
        lambda s: _ratio(s.run.facts.tokens_planned, s.run.facts.params_active, 3),
        SHAPE_ONLY,
        "normalised curves of different sizes coincide only at equal tokens per parameter",
        tolerance=0.05,
    ),
    Aspect("training data", _fact("data"), SHAPE_ONLY, "other text has another entropy: levels differ"),
    Aspect("data version", _fact("data_version"), SHAPE_ONLY, "the text may differ"),
    Aspect("data mixture", _mixture, SHAPE_ONLY, "other shares of the same sources have another entropy"),
    Aspect("tokenizer", _fact("tokenizer"), SHAPE_ONLY, "nats per token count other tokens"),
    Aspect(
        "vocabulary",
        _fact("vocab_size"),
        SHAPE_ONLY,
        "the loss starts at ln(vocabulary), so the first fall is not the same fall",
    ),
    Aspect(
        "tokens per batch",
        _fact("tokens_per_step"),
        SHAPE_ONLY,
        "a smaller batch has a noisier loss and a larger gradient norm",
        tolerance=0.01,
    ),
    Aspect("sequence length", _fact("seq_len"), SHAPE_ONLY, "longer context lowers the loss per token"),
    Aspect(
        "schedule shape",
        _schedule_shape,
        NOT_COMPARABLE,
        "at one fraction of the schedule the learning rates are in different phases",
    ),
    Aspect(
        "warm-up, share of the schedule",
        _warmup_share,
        SHAPE_ONLY,
        "the start of the curve is stretched; the overlay compares from after both warm-ups",
        tolerance=0.1,
    ),
    Aspect(
        "final learning rate, share of the peak",
        _final_share,
        SHAPE_ONLY,
        "the last drop of the loss depends on how far the learning rate falls",
        tolerance=0.01,
    ),
    Aspect(
        "schedule covered by the log",
        _schedule_covered,
        SHAPE_ONLY,
        "only the stretch that both have is compared; an unfinished run has no final loss",
        tolerance=0.02,
    ),
    Aspect(
        "stretches off the schedule",
        _off_schedule,
        SHAPE_ONLY,
        "where the learning rate left its schedule, the loss did too",
    ),
    Aspect("optimizer", _fact("optimizer"), SHAPE_ONLY, "learning rates and gradient norms are its own"),
    Aspect(
        "precision",
        _fact("precision"),
        COMPARABLE,
        "rounding is small beside every other difference",
    ),
    Aspect(
        "unit of the loss",
        _loss_unit,
        SHAPE_ONLY,
        "numbers in different units cannot be subtracted; divided by their own end they can",
    ),
    Aspect(
        "z-loss inside the logged loss",
        _fact("z_loss_in_loss"),
        SHAPE_ONLY,
        "the term adds .01 to .04 nats early and almost nothing late",
    ),
    Aspect(
        "drops tokens in training",
        _fact("drops_in_training"),
        SHAPE_ONLY,
        "dropped expert assignments raise the training loss by less than .01 nats",
    ),
    Aspect(
        "evaluation set",
        _fact("evaluation_set"),
        NOT_COMPARABLE,
        "evaluation losses on different text cannot be subtracted, in bits per byte neither",
    ),
    Aspect(
        "history",
        _history,
        SHAPE_ONLY,
        "a sampled log may miss spikes; do not compare the number of spikes",
    ),
)
"""The lines of the ledger, in the order in which a reader should check them."""


def ledger(
    own: Run,
    public: Run,
    own_schedule: dict[str, Any] | None = None,
    public_schedule: dict[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """One dict `{aspect, own, public, same, consequence, why}` per aspect.

    `same` is None where either side does not say, and `why` then names the side; an unknown is treated as a
    difference, because nothing supports the comparison, but never as worse than `shape only`.

    Args:
        own_schedule, public_schedule: what `recover_schedule` gave, if it is at hand.
    """
    left = Subject(own, own_schedule or recover_schedule(own))
    right = Subject(public, public_schedule or recover_schedule(public))
    return [_row(aspect, left, right) for aspect in ASPECTS]


def _row(aspect: Aspect, own: Subject, public: Subject) -> dict[str, Any]:
    left, right = aspect.of(own), aspect.of(public)
    same = _same(left, right, aspect)
    consequence = COMPARABLE if same or aspect.differs == COMPARABLE else aspect.differs
    if same is None and consequence == NOT_COMPARABLE:
        consequence = SHAPE_ONLY
    silent = [s.run.name for s, value in ((own, left), (public, right)) if value is None]
    why = ""
    if silent:
        why = f"not known for {' and '.join(silent)}; if it differs: {aspect.why}"
    elif same is None:
        why = f"worded differently, may mean the same; if not: {aspect.why}"
    elif not same:
        why = aspect.why
    return {
        "aspect": aspect.name,
        "own": left,
        "public": right,
        "same": same,
        "consequence": consequence,
        "why": why,
    }


def _same(left: Any, right: Any, aspect: Aspect) -> bool | None:
    if left is None or right is None:
        return None
    if aspect.equal is not None:
        return aspect.equal(left, right)
    if isinstance(left, int | float) and isinstance(right, int | float) and not isinstance(left, bool):
        return abs(left - right) <= aspect.tolerance * max(abs(left), abs(right))
    if isinstance(left, str) and isinstance(right, str):
        return _plain(left) == _plain(right)
    return bool(left == right)


def _plain(text: str) -> str:
    """Case, punctuation and spacing are wording, not facts."""
    return " ".join(re.findall(r"\w+", text.casefold()))


def levels_differ(rows: list[dict[str, Any]], aspects: tuple[str, ...]) -> list[str]:
    """Those of `aspects` that are not known to be the same."""
    return [row["aspect"] for row in rows if row["aspect"] in aspects and not row["same"]]


def gravest_first(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows in the order in which they limit a comparison: by consequence, known differences before unknowns;
    what is the same comes last."""
    order = (NOT_COMPARABLE, SHAPE_ONLY, COMPARABLE)
    return sorted(
        rows, key=lambda row: (row["same"] is True, order.index(row["consequence"]), row["same"] is None)
    )
