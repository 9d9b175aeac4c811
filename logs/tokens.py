"""Tokens of a run: filled in from its steps where they are not logged, and what is odd in those that are."""

from dataclasses import replace

import numpy as np
import pandas as pd

from logs.schema import Quirk, Run, is_logged

LARGEST = 2**63 - 1
"""The largest count that a run's table holds."""


def with_tokens(run: Run) -> Run:
    """`run` with tokens in every row, if its tokens per step are known; logged cells are kept and checked.

    Tokens count what was consumed when the step is done: (step + 1) * tokens_per_step, steps from zero; a log
    that counts its steps from 1 (`steps_from`) has consumed step * tokens_per_step.
    """
    run = replace(run, quirks=(*run.quirks, *_token_quirks(run)))
    per_step = run.facts.tokens_per_step
    if per_step is None:
        return run
    table = run.table.copy()
    logged = is_logged(table["tokens"])
    done = 1 - (run.facts.steps_from or 0)
    formula = f"(step + {done})" if done else "step"
    fits = (table["step"] <= LARGEST // max(per_step, 1) - done).to_numpy()
    derived = (table["step"] + done).where(fits, 0) * min(per_step, LARGEST)
    differ = logged & (~fits | (table["tokens"] != derived).fillna(False).to_numpy(bool))
    quirks = run.quirks
    if differ.any():
        first = table[differ].iloc[0]
        text = f"{steps_of(table, differ)}; step {first['step']} logs {first['tokens']}"
        where = f"{text}, {formula} * {per_step} is {(int(first['step']) + done) * per_step}"
        quirks += (_quirk("tokens_disagree", differ, where, "logged tokens kept"),)
    missing = ~logged & ~fits
    if missing.any():
        where = f"{steps_of(table, missing)}; {formula} * {per_step} is more than {LARGEST}"
        quirks += (_quirk("tokens_too_large", missing, where, "tokens left unknown; is the step one?"),)
    inferred = run.inferred
    if not logged.all():
        filled = pd.array(np.where(logged, table["tokens"].fillna(0), derived), "Int64")
        filled[missing] = pd.NA
        table["tokens"] = filled
        text = f"tokens = {formula} * {per_step} in {int((~logged & fits).sum())} rows of {len(table)}"
        inferred += (f"{text}; {int(logged.sum() - differ.sum())} of {int(logged.sum())} logged cells agree",)
    return replace(run, table=table, quirks=quirks, inferred=inferred)


def _token_quirks(run: Run) -> list[Quirk]:
    """Logged tokens that no count can be: below zero, or fewer than at an earlier step of the lineage."""
    if not is_logged(run.table["tokens"]).any():
        return []
    rows = run.lineage()
    rows = rows[is_logged(rows["tokens"])]
    tokens = rows["tokens"].to_numpy("int64")
    negative = tokens < 0
    falling = np.diff(tokens, prepend=tokens[:1]) < 0
    quirks = []
    if negative.any():
        quirks.append(_quirk("negative_tokens", negative, steps_of(rows, negative), "kept as logged"))
    if falling.any():
        at = int(falling.argmax())
        where = f"{steps_of(rows, falling)}; first from {tokens[at - 1]} to {tokens[at]}"
        quirks.append(_quirk("falling_tokens", falling, where, "kept as logged"))
    return quirks


def _quirk(kind: str, rows: np.ndarray, where: str, action: str) -> Quirk:
    return Quirk(kind=kind, count=int(rows.sum()), where=where, action=action)


def steps_of(table: pd.DataFrame, rows: np.ndarray) -> str:
    """The range of the steps of some rows, for a quirk."""
    steps = table["step"].to_numpy()[rows]
    first, last = steps.min(), steps.max()
    return f"step {first}" if first == last else f"steps {first}-{last}"
