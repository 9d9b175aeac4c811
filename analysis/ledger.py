"""The comparability ledger: what two runs share, what differs, and what each difference forbids."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from logs.schema import Run

COMPARABLE, SHAPE_ONLY, NOT_COMPARABLE = "comparable", "shape only", "not comparable"


@dataclass(frozen=True)
class Aspect:
    """One line of the ledger.

    Attributes:
        of: the run's value, a plain JSON value, or None where its source does not say.
        differs: the consequence when the two values differ.
        why: what that means for a reader of the overlay.
        tolerance: relative difference up to which numbers count as the same.
    """

    name: str
    of: Callable[[Run], Any]
    differs: str
    why: str
    tolerance: float = 0.0


def _ratio(part: float | None, whole: float | None, digits: int = 4) -> float | None:
    return float(f"{part / whole:.{digits}g}") if part is not None and whole else None


def _warmup_share(run: Run) -> float | None:
    schedule = run.facts.schedule
    return _ratio(schedule.warmup_steps, schedule.total_steps, 2) if schedule else None


def _schedule_covered(run: Run) -> float | None:
    return _ratio(int(run.table["step"].max()) + 1, run.facts.steps_planned, 3)


def _history(run: Run) -> str | None:
    """`full` when the loss is logged at nearly every step of the stretch that the log covers."""
    metric = "train/loss" if "train/loss" in run.metrics else next(iter(run.metrics), None)
    if metric is None:
        return None
    steps = run.series(metric)["step"]
    share = len(steps) / (steps.max() - steps.min() + 1) if len(steps) else 0.0
    return "full" if share > 0.9 else f"sampled ({share:.2g} of its steps)"


ASPECTS = (
    Aspect(
        "architecture", lambda r: r.facts.architecture, SHAPE_ONLY, "another block may learn at another pace"
    ),
    Aspect(
        "active parameters",
        lambda r: r.facts.params_active,
        SHAPE_ONLY,
        "a model of another size ends at another loss; only the form of the curve can agree",
        tolerance=0.01,
    ),
    Aspect(
        "total / active parameters",
        lambda r: _ratio(r.facts.params_total, r.facts.params_active),
        SHAPE_ONLY,
        "sparsity changes what a FLOP buys; a tiny model's embeddings weigh more",
        tolerance=0.05,
    ),
    Aspect(
        "parameter counting rule",
        lambda r: r.facts.counting_rule,
        SHAPE_ONLY,
        "tokens per parameter means something else on each side",
    ),
    Aspect(
        "tokens per active parameter, planned",
        lambda r: _ratio(r.facts.tokens_planned, r.facts.params_active, 3),
        SHAPE_ONLY,
        "normalised curves of different sizes coincide only at equal tokens per parameter",
        tolerance=0.05,
    ),
    Aspect(
        "training data", lambda r: r.facts.data, SHAPE_ONLY, "other text has another entropy: levels differ"
    ),
    Aspect("data version", lambda r: r.facts.data_version, SHAPE_ONLY, "the text may differ"),
    Aspect("tokenizer", lambda r: r.facts.tokenizer, SHAPE_ONLY, "nats per token count other tokens"),
    Aspect(
        "vocabulary",
        lambda r: r.facts.vocab_size,
        SHAPE_ONLY,
        "the loss starts at ln(vocabulary), so the first fall is not the same fall",
    ),
    Aspect(
        "tokens per batch",
        lambda r: r.facts.tokens_per_step,
        SHAPE_ONLY,
        "a smaller batch has a noisier loss and a larger gradient norm",
        tolerance=0.01,
    ),
    Aspect(
        "sequence length", lambda r: r.facts.seq_len, SHAPE_ONLY, "longer context lowers the loss per token"
    ),
    Aspect(
        "schedule shape",
        lambda r: r.facts.schedule.shape if r.facts.schedule else None,
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
        lambda r: r.facts.schedule.final_fraction if r.facts.schedule else None,
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
        "optimizer", lambda r: r.facts.optimizer, SHAPE_ONLY, "learning rates and gradient norms are its own"
    ),
    Aspect(
        "precision",
        lambda r: r.facts.precision,
        COMPARABLE,
        "rounding is small beside every other difference",
    ),
    Aspect(
        "z-loss inside the logged loss",
        lambda r: r.facts.z_loss_in_loss,
        SHAPE_ONLY,
        "the term adds .01 to .04 nats early and almost nothing late",
    ),
    Aspect(
        "drops tokens in training",
        lambda r: r.facts.drops_in_training,
        SHAPE_ONLY,
        "dropped expert assignments raise the training loss by less than .01 nats",
    ),
    Aspect(
        "evaluation set",
        lambda r: r.facts.evaluation_set,
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


def ledger(own: Run, public: Run) -> list[dict[str, Any]]:
    """One dict `{aspect, own, public, same, consequence, why}` per aspect.

    `same` is None where either side's source does not say; an unknown is treated as a difference, because
    nothing supports the comparison, but never as worse than `shape only`.
    """
    rows = []
    for aspect in ASPECTS:
        left, right = aspect.of(own), aspect.of(public)
        same = _same(left, right, aspect.tolerance)
        consequence = COMPARABLE if same or aspect.differs == COMPARABLE else aspect.differs
        if same is None and consequence == NOT_COMPARABLE:
            consequence = SHAPE_ONLY
        why = aspect.why if same is False else "not stated by the source" if same is None else ""
        rows.append(
            {
                "aspect": aspect.name,
                "own": left,
                "public": right,
                "same": same,
                "consequence": consequence,
                "why": why,
            }
        )
    return rows


def _same(left: Any, right: Any, tolerance: float) -> bool | None:
    if left is None or right is None:
        return None
    if isinstance(left, int | float) and isinstance(right, int | float) and not isinstance(left, bool):
        return abs(left - right) <= tolerance * max(abs(left), abs(right))
    return left == right


def levels_differ(rows: list[dict[str, Any]], aspects: tuple[str, ...]) -> list[str]:
    """Those of `aspects` that are not known to be the same."""
    return [row["aspect"] for row in rows if row["aspect"] in aspects and not row["same"]]
