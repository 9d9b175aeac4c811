"""One law under every counting rule that a table allows: how the exponents move with what N counts."""

from typing import Any

import pandas as pd

from analysis.fit.allocation import allocation_exponents
from analysis.fit.counting import RULES, possible
from analysis.fit.estimate import describe, estimate
from analysis.fit.points import table_points
from analysis.laws import Law
from experiments.configuration import InputError


def fit_by_counting(
    law: Law,
    table: pd.DataFrame,
    columns: dict[str, str | None],
    where: str,
    delta: float | None = None,
    drop_highest: int = 0,
    resamples: int = 1_000,
) -> dict[str, Any]:
    """`{rule: {parameters, allocation, objective, status}}` for each rule of `counting.RULES` whose columns are there.

    `allocation` holds the exponents a and b of N* ~ C^a, D* ~ C^b for laws of N and D.

    Raises:
        InputError: the law does not read N, or the table has the columns of no rule.
    """
    if "n" not in law.variables:
        raise InputError(f"{law.name} does not read N; how it is counted changes nothing")
    rules = possible(table)
    if not rules:
        needed = sorted({column for used in RULES.values() for column in used})
        raise InputError(f"{where}: no counting rule has its columns; they are {', '.join(needed)}")
    result = {}
    for rule in rules:
        fit = estimate(
            law, table_points(table, columns, law, where, rule), 0.0, delta, drop_highest, resamples
        )
        document = describe(fit)
        result[rule] = {key: document[key] for key in ("parameters", "objective", "status", "identified")}
        if law.variables == ("n", "d") and law.response == "loss":
            result[rule]["allocation"] = allocation_exponents(fit)
    return result
