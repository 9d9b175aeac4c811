"""Points for a fit: from stored runs or a table, checked before anything is fitted to them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.curves import has_metric, points
from analysis.fit.counting import count
from analysis.laws import AllocationLaw, Law
from analysis.solver import Solution
from experiments.configuration import InputError
from logs.schema import Run

Numbers = NDArray[np.float64]
Solver = Callable[[Law, Numbers, Numbers, float | None], Solution]
"""`(law, x, response, delta) -> solution`, a batch of one."""

ROBUST = 1e-3
"""Huber's corner of the fit that finds diverged runs: nearly least absolute errors, which they cannot pull."""

FAR = 0.3
"""Log response that separates a diverged run, or a unit, from the law: a factor of 1.35. Bits per byte and nats per
token of one tokenizer are a factor of 2 to 4 apart, bits and nats 1.44."""

WIDE = 0.1
"""Log residuals as wide as this are no noise of training: a tenth of the loss."""

FEWEST_TO_JUDGE = 8
"""With fewer runs a single one cannot be told from the law."""

RUN_COLUMNS = ("run", "run_id", "run_name", "hyper_id", "step")
"""Columns that say that rows are of one run; their values decide nothing unless named by `--group`."""

INT64 = 2.0**63


def ladder_points(runs: list[Run]) -> tuple[pd.DataFrame, str]:
    """One point per run, for `fit_law`: active training FLOPs and final loss, and the metric taken.

    The final loss is the last `eval/mean/loss` (nats per token) where every run logs it, else the mean of the
    last 5 % of `train/loss`. FLOPs are tokens done times `train_flops_per_token` (without the LM head).

    Raises:
        InputError: a run lacks tokens or FLOPs per token, stopped early, or uses another tokenizer or data.
    """
    if not runs:
        raise InputError("there are no runs to fit; train the ladder first")
    for fact in ("tokenizer", "vocab_size", "data", "data_version", "evaluation_set", "counting_rule"):
        values = {str(getattr(run.facts, fact)) for run in runs}
        if len(values) > 1:
            raise InputError(
                f"the runs differ in {fact} ({', '.join(sorted(values))}): their losses share no law"
            )
    metric = "eval/mean/loss" if all(has_metric(run, "eval/mean/loss") for run in runs) else "train/loss"
    rows = []
    for run in runs:
        trained, logged = points(run, "train/loss"), points(run, metric)
        done, planned = int(trained["done"].iloc[-1]), run.facts.steps_planned
        if planned and done < 0.98 * planned:
            raise InputError(
                f"run {run.name} stopped at {done} of {planned} steps; its last loss is not its final loss"
            )
        tokens, cost = float(trained["tokens"].iloc[-1]), run.facts.train_flops_per_token
        if cost is None or not np.isfinite(tokens):
            raise InputError(f"run {run.name} does not state its tokens or training FLOPs per token")
        last = 1 if metric != "train/loss" else max(1, len(logged) // 20)
        rows.append(
            {
                "name": run.name,
                "group": run.name,
                "n": float(run.facts.params_active or np.nan),
                "d": tokens,
                "flops": tokens * cost,
                "loss": float(logged["value"].tail(last).mean()),
            }
        )
    return pd.DataFrame(rows).sort_values("flops", ignore_index=True), metric


def table_points(
    table: pd.DataFrame,
    columns: dict[str, str | None],
    law: Law | AllocationLaw,
    where: str,
    counting: str | None = None,
) -> pd.DataFrame:
    """The rows of a CSV table as points for `fit_law`.

    Args:
        columns: which column holds `n`, `d`, `flops`, `loss`, `group` and whatever else the law reads; None where
            not given. What is not given is read from the column of the role's own name, if there is one. Compute not
            given is 6 N D; data not given is C / (6 N). `group` may be `row`: each row is a run of its own.
        where: the table's name, for messages.
        counting: which parameters N counts, one of `counting.RULES`; None for the column as it stands.

    Raises:
        InputError: no rows, a column that is not there, a cell that is no positive number (line named), nothing to
            compute a variable from, more than one unit of loss, a repeated row, or rows of one run without a group.
    """
    if table.empty:
        raise InputError(f"{where}: no rows below the header")
    response = "loss" if isinstance(law, AllocationLaw) else law.response
    found = _columns(table, columns, law.variables, response, where)
    if response not in found:
        raise InputError(f"{where}: name the column of the {response} with --{response}")
    if counting is not None:
        found["n"] = count(table, counting, where)
    overflown(found, where)
    if "flops" not in found and {"n", "d"} <= found.keys():
        found["flops"] = 6 * found["n"] * found["d"]
    if "d" not in found and {"n", "flops"} <= found.keys():
        found["d"] = found["flops"] / (6 * found["n"])
    missing = [variable for variable in law.variables if variable not in found]
    if missing:
        option = f"--{missing[0]}" if missing[0] in ("n", "d", "flops") else f"--column {missing[0]}=COLUMN"
        raise InputError(f"{where}: {law.name} needs {', '.join(missing)}; name the column with {option}")
    _one_unit(table, columns.get("unit"), where)
    result = pd.DataFrame(found)
    group = columns.get("group")
    if group is None and "step" not in law.variables:
        _all_of_different_runs(table, result, where)
    if group is None or (group == "row" and "row" not in table.columns):
        result["name"], result["group"] = [f"row {i + 1}" for i in range(len(table))], np.arange(len(table))
        if "step" in law.variables:
            result["group"] = 0
    else:
        result["name"] = result["group"].astype(str)
    return result


def _columns(
    table: pd.DataFrame, columns: dict[str, str | None], variables: tuple[str, ...], response: str, where: str
) -> dict[str, pd.Series]:
    """The table's columns by role; named ones, and those of the role's own name."""
    unknown = set(columns) - {"n", "d", "flops", "loss", "lr", "batch", "group", "unit", *variables}
    if unknown:
        raise InputError(f"`{min(unknown)}` is nothing that this law reads; it reads {', '.join(variables)}")
    found: dict[str, pd.Series] = {}
    for role in dict.fromkeys(["n", "d", "flops", response, "group", *variables]):
        column = columns.get(role)
        if column is None and role in table.columns and role != "group":
            column = role
        if column is None or (role == "group" and column == "row" and "row" not in table.columns):
            continue
        if column not in table.columns:
            raise InputError(
                f"{where}: no column `{column}` (for --{role}); columns: {', '.join(table.columns)}"
            )
        if role == "group":
            found[role] = table[column]
        else:
            found[role] = positive(table[column], where, least=0 if role == "step" else None)
    return found


def positive(column: pd.Series, where: str, least: float | None = None) -> pd.Series:
    """The column as positive float64 (or at least `least`).

    Raises:
        InputError: a cell is not; the line is named.
    """
    numbers = pd.to_numeric(column, errors="coerce").astype("float64")
    fine = np.isfinite(numbers) & ((numbers > 0) if least is None else (numbers >= least))
    bad = np.flatnonzero(~fine)
    if len(bad):
        cell = column.iloc[bad[0]]
        cell = cell.item() if isinstance(cell, np.generic) else cell
        hint = ""
        if isinstance(cell, (int, float)) and cell < -1e15:
            hint = "; a product of integers above 2^63 turns negative: compute it in floating point"
        raise InputError(
            f"{where}, line {bad[0] + 2}: `{column.name}` is {cell!r}, not a positive number "
            f"({len(bad)} such rows); remove or repair them{hint}"
        )
    return numbers


def overflown(found: dict[str, pd.Series], where: str) -> None:
    """Refuse FLOPs that are 6 N D less a multiple of 2^64: an integer product that wrapped around.

    6 N D itself is computed in float64 here, whatever type the columns have.
    """
    if not {"n", "d", "flops"} <= found.keys():
        return
    product = 6 * found["n"] * found["d"]
    turns = (product - found["flops"]) / 2.0**64
    wrapped = (
        (product >= INT64) & (found["flops"] < INT64) & (np.abs(turns - turns.round()) < 1e-6) & (turns > 0.5)
    )
    bad = np.flatnonzero(wrapped)
    if len(bad):
        raise InputError(
            f"{where}, line {bad[0] + 2}: the FLOPs are 6 N D less a multiple of 2^64, an integer that overflowed "
            f"({len(bad)} such rows); leave the column out (6 N D is computed in floating point) or repair it"
        )


def _one_unit(table: pd.DataFrame, column: str | None, where: str) -> None:
    if column is None:
        return
    if column not in table.columns:
        raise InputError(f"{where}: no column `{column}` (for --column unit)")
    units = sorted(str(unit) for unit in table[column].unique())
    if len(units) > 1:
        raise InputError(
            f"{where}: losses in several units ({', '.join(units)}); convert them to one, or fit one unit's rows"
        )


def _all_of_different_runs(table: pd.DataFrame, result: pd.DataFrame, where: str) -> None:
    """Without a group each row counts as a run: refuse what says that they are not."""
    repeated = np.flatnonzero(result.duplicated())
    if len(repeated):
        raise InputError(
            f"{where}, line {repeated[0] + 2}: repeats an earlier row ({len(repeated)} such rows); remove it, or say "
            "which rows are of one run with --group COLUMN (--group row if they are runs of their own)"
        )
    for column in RUN_COLUMNS:
        if column in table.columns and (column == "step" or table[column].duplicated().any()):
            said = "rows are steps of runs" if column == "step" else f"{table[column].nunique()} runs"
            raise InputError(
                f"{where}: by its column `{column}`, {said} in {len(table)} rows; many steps of one run are not many "
                "runs: name the run's column with --group COLUMN (--group row if each row is a run of its own)"
            )


def check_points(law: Law, used: pd.DataFrame, floor: float) -> None:
    """Refuse points that cannot determine the law.

    Raises:
        InputError: too few points or scales for the parameters, a variable with one single value, one single run, or
            a loss at or below the floor.
    """
    scales, p = used[list(law.variables)].drop_duplicates(), len(law.parameters)
    if len(used) <= p or len(scales) < p:
        raise InputError(
            f"{law.name} has {p} parameters ({', '.join(law.parameters)}) and there are {len(used)} points "
            f"at {len(scales)} scales: give at least {p + 1} points at {p} or more scales, or a law with "
            "fewer parameters"
        )
    for variable in law.variables if law.features is None else ():
        if used[variable].nunique() < 2:
            raise InputError(
                f"all points have one {'model size' if variable == 'n' else variable} "
                f"({used[variable].iloc[0]:g}): nothing says how the {law.response} goes with it; add runs of others"
            )
    if law.features is None and used["group"].nunique() < 2:
        raise InputError(
            f"all {len(used)} rows are of one run ({used['group'].iloc[0]}): many steps of one run are not many runs"
        )
    low = used[used[law.response] <= floor]
    if len(low):
        raise InputError(
            f"the loss of {low['name'].iloc[0]} is not above the floor {floor:g}; take a lower floor"
        )


def set_aside_diverged(
    law: Law, used: pd.DataFrame, floor: float, best: Solver
) -> tuple[pd.DataFrame, list[dict[str, Any]]]:
    """The points without the runs that diverged, and those: name, response, and how far above the law they lie.

    The law is fitted robustly to all; a run that lies more than `FAR` and ten median deviations above it diverged.

    Raises:
        InputError: the responses fall into two groups with a gap between, as losses in two units do.
    """
    runs = pd.factorize(used["group"])[0]
    if runs.max() + 1 < FEWEST_TO_JUDGE or law.features is not None:
        return used, []
    x, response = law.x(used), used[law.response].to_numpy("float64") - floor

    def residual_of(rows: NDArray[np.bool_]) -> Numbers:
        theta = best(law, x[rows], response[rows], ROBUST).theta
        return pd.Series(np.log(response) - law.log_loss(theta, x)[0]).groupby(runs).median().to_numpy()

    residual = residual_of(np.full(len(x), True))
    if _typical(residual) > WIDE:
        # between two units the law lies in the middle; it is one unit's when fitted to the lower half
        lower = (residual <= np.median(residual))[runs]
        if lower.sum() > len(law.parameters):
            _refuse_two_units(law, residual_of(lower))
    _refuse_two_units(law, residual)
    typical = _typical(residual)
    diverged = (residual > max(FAR, 10 * typical))[runs]
    aside = [
        {"name": str(row["name"]), law.response: float(row[law.response]), "above": float(np.exp(over))}
        for row, over in zip(used[diverged].to_dict("records"), residual[runs[diverged]], strict=True)
    ]
    return used[~diverged], aside


def _typical(residual: Numbers) -> float:
    """Standard deviation by the median deviation."""
    return 1.4826 * float(np.median(np.abs(residual - np.median(residual))))


def _refuse_two_units(law: Law, residual: Numbers) -> None:
    ordered = np.sort(residual)
    gaps = np.diff(ordered)
    cut = int(gaps.argmax()) + 1
    low, high = ordered[:cut], ordered[cut:]
    fewest = max(2, len(ordered) // 5)
    if (
        gaps[cut - 1] > FAR
        and min(len(low), len(high)) >= fewest
        and max(low.std(), high.std()) < gaps[cut - 1] / 3
    ):
        raise InputError(
            f"the {law.response} falls into two groups, {len(low)} runs and {len(high)} that lie a factor "
            f"{np.exp(np.median(high) - np.median(low)):.2f} higher: two units (nats, bits, bits per byte)? Convert "
            "them to one, or fit them apart"
        )
