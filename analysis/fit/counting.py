"""Which parameters N counts: total or active, with or without embeddings and head.

The exponents of a law hang on it: Kaplan et al. 2020 count without embeddings, Hoffmann et al. 2022 with them, and
most of what their exponents differ by is that (Porian et al. 2024, arXiv 2406.19146).
"""

import numpy as np
import pandas as pd

from experiments.configuration import InputError

RULES: dict[str, tuple[str, ...]] = {
    "total": ("n_total",),
    "total-no-embedding": ("n_total", "n_embedding"),
    "total-no-embedding-no-head": ("n_total", "n_embedding", "n_head"),
    "active": ("n_active",),
    "active-no-embedding": ("n_active", "n_embedding"),
    "active-no-embedding-no-head": ("n_active", "n_embedding", "n_head"),
}
"""By the name of the rule: the column it starts from, and those it takes off."""


def count(table: pd.DataFrame, rule: str, where: str) -> pd.Series:
    """N of each row by `rule`, from the columns n_total, n_active, n_embedding and n_head.

    Raises:
        InputError: no such rule, a column is missing or holds no number, or nothing is left.
    """
    if rule not in RULES:
        raise InputError(f"`{rule}` is not a counting rule; rules: {', '.join(RULES)}")
    missing = [column for column in RULES[rule] if column not in table.columns]
    if missing:
        raise InputError(
            f"{where}: counting {rule} needs the columns {', '.join(RULES[rule])}; there is no {missing[0]}"
        )
    first, *others = (pd.to_numeric(table[c], errors="coerce").astype("float64") for c in RULES[rule])
    left = first - sum(others) if others else first
    bad = np.flatnonzero(~(np.isfinite(left) & (left > 0)))
    if len(bad):
        raise InputError(
            f"{where}, line {bad[0] + 2}: counting {rule} leaves {left.iloc[bad[0]]:g} parameters "
            f"({len(bad)} such rows); check {', '.join(RULES[rule])}"
        )
    return left


def possible(table: pd.DataFrame) -> list[str]:
    """The rules that the table has the columns for."""
    return [rule for rule, columns in RULES.items() if set(columns) <= set(table.columns)]
