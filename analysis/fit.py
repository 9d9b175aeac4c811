"""Fitting a scaling law to runs: estimate, intervals over runs, hold-out by scale, and what is not known."""

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import t as student

from analysis.bootstrap import run_resamples
from analysis.curves import has_metric, points
from analysis.laws import Law
from analysis.laws.law import bounded_exp
from analysis.solver import solve
from experiments.configuration import InputError
from logs.schema import Run

Numbers = NDArray[np.float64]

RESAMPLES = 4_000
CELLS_AT_ONCE = 2_000_000
"""Resamples times points solved in one batch; bounds the memory of the bootstrap to some 100 MB."""

FEW_RUNS = 5
WIDE = 2.0
"""A log-scale parameter whose interval spans more than this factor's exponent (e^2 = 7.4) is not
identified."""


def fit_law(
    law: Law, points: pd.DataFrame, floor: float = 0.0, delta: float | None = None, drop_highest: int = 0
) -> dict[str, Any]:
    """Fit `law` to `points` in log space and say how far the answer can be trusted.

    Args:
        points: columns `name`, `loss`, `group` and the law's variables (`flops`, ...), one row per point.
        Rows of
            one group (a run) are resampled together.
        floor: irreducible loss taken as known; subtracted from the loss before the logarithm.
        delta: Huber's corner in log loss; None for least squares.
        drop_highest: how many of the highest losses to set aside first.

    Returns:
        The keys of `maquette fit --json`, and `points`, `band` (the fitted curve with two intervals),
        `resamples`, `floor` and `source`. `interval` is the percentile bootstrap over groups, `t_interval` is
        Student's from the residuals.

    Raises:
        InputError: no more points than parameters, one single scale, or a loss at or below the floor.
    """
    used = points.sort_values("loss", kind="stable").iloc[: len(points) - drop_highest].sort_index()
    _check(law, used, floor)
    x, loss = used[list(law.variables)].to_numpy("float64"), used["loss"].to_numpy("float64") - floor
    best = solve(law, law.start(x, loss)[None], x, loss, np.ones((1, len(x))), delta)
    theta = best.theta[0]
    weight, exact, degenerate = _resample_weights(law, used)
    spread = _bootstrap(law, theta, x, loss, weight, delta)
    error, dof = _standard_errors(law, theta, x, loss)
    estimate = law.report(theta[None])[0]
    low, high = np.quantile(law.report(spread), [0.025, 0.975], axis=0)
    half = error * student.ppf(0.975, dof)
    t_low, t_high = law.report((theta - half)[None])[0], law.report((theta + half)[None])[0]
    identified = _identified(law, spread, half)
    status = ("" if best.converged[0] else "not ") + "converged"
    return {
        "law": law.name,
        "n_points": len(points),
        "n_used": len(used),
        "parameters": {
            name: {
                "value": float(estimate[i]),
                "interval": [float(low[i]), float(high[i])],
                "t_interval": sorted([float(t_low[i]), float(t_high[i])]),
            }
            for i, name in enumerate(law.parameters)
        },
        "objective": float(best.objective[0]),
        "gradient": float(best.gradient[0]),
        "status": status if all(identified.values()) else f"{status}, under-identified",
        "identified": identified,
        "holdout": hold_out(law, used, floor, delta),
        "floor": floor,
        "degrees_of_freedom": dof,
        "resamples": {"n": len(spread), "exact": exact, "degenerate": degenerate},
        "points": _predictions(law, theta, used, floor),
        "band": _band(law, theta, spread, x, loss, floor) if len(law.variables) == 1 else [],
        "source": law.source,
        "warnings": _warnings(law, len(np.unique(used["group"])), dof, identified),
    }


def _check(law: Law, used: pd.DataFrame, floor: float) -> None:
    scales, p = used[list(law.variables)].drop_duplicates(), len(law.parameters)
    if len(used) <= p or len(scales) < p:
        raise InputError(
            f"{law.name} has {p} parameters ({', '.join(law.parameters)}) and there are {len(used)} points "
            f"at {len(scales)} scales: give at least {p + 1} points at {p} or more scales, or a law with "
            "fewer parameters"
        )
    low = used[used["loss"] <= floor]
    if len(low):
        raise InputError(
            f"the loss of {low['name'].iloc[0]} is not above the floor {floor:g}; take a lower floor"
        )


def _resample_weights(law: Law, used: pd.DataFrame) -> tuple[Numbers, bool, int]:
    """How often each point counts in each resample of groups `[resamples, n]`, without the resamples that
    hold fewer scales than parameters; whether all resamples were enumerated, and how many were left out."""
    codes, groups = pd.factorize(used["group"])
    chosen, exact = run_resamples(len(groups), RESAMPLES)
    counts = np.apply_along_axis(np.bincount, 1, chosen, minlength=len(groups))
    weight = counts[:, codes].astype("float64")
    scale = used.groupby(list(law.variables), sort=False).ngroup().to_numpy()
    seen = np.stack([(weight[:, scale == s] > 0).any(axis=1) for s in np.unique(scale)])
    usable = seen.sum(axis=0) >= len(law.parameters)
    return weight[usable], exact, int((~usable).sum())


def _bootstrap(
    law: Law, theta: Numbers, x: Numbers, loss: Numbers, weight: Numbers, delta: float | None
) -> Numbers:
    """Parameters of every resample `[resamples, p]`, started from the estimate, in bounded memory."""
    batch = max(1, CELLS_AT_ONCE // len(x))
    parts = [
        solve(law, np.tile(theta, (len(part), 1)), x, loss, part, delta).theta
        for part in (weight[i : i + batch] for i in range(0, len(weight), batch))
    ]
    return np.concatenate(parts)


def _standard_errors(law: Law, theta: Numbers, x: Numbers, loss: Numbers) -> tuple[Numbers, int]:
    """Standard errors of theta from the residuals (linearised), and the degrees of freedom."""
    jacobian = law.jacobian(theta[None], x)[0]
    residual = law.log_loss(theta[None], x)[0] - np.log(loss)
    dof = len(x) - len(theta)
    covariance = np.linalg.pinv(jacobian.T @ jacobian) * float(residual @ residual) / dof
    return np.sqrt(np.maximum(np.diag(covariance), 0)), dof


def _identified(law: Law, spread: Numbers, half: Numbers) -> dict[str, bool]:
    """A parameter is identified when the wider of its two intervals is short: for exponents it excludes zero,
    for amounts (fitted as logarithms) it spans less than e^`WIDE`."""
    low, high = np.quantile(spread, [0.025, 0.975], axis=0)
    result = {}
    for i, name in enumerate(law.parameters):
        width, middle = max(float(high[i] - low[i]), 2 * float(half[i])), float(np.median(spread[:, i]))
        exponent = name in ("alpha", "beta")
        result[name] = width < 2 * abs(middle) if exponent else width < WIDE
    return result


def hold_out(law: Law, used: pd.DataFrame, floor: float, delta: float | None) -> dict[str, Any]:
    """Fit the smaller scales, predict the largest: the error that a forecast of this kind had here.

    `extrapolation` is the held-out value of the first variable over the largest fitted one.
    """
    scale = law.variables[-1] if law.variables != ("flops",) else "flops"
    largest = used[scale] == used[scale].max()
    small, held = used[~largest], used[largest]
    if len(small[list(law.variables)].drop_duplicates()) < len(law.parameters):
        return {"reason": "without the largest scale there are fewer scales than parameters"}
    x, loss = small[list(law.variables)].to_numpy("float64"), small["loss"].to_numpy("float64") - floor
    theta = solve(law, law.start(x, loss)[None], x, loss, np.ones((1, len(x))), delta).theta
    at = held[list(law.variables)].to_numpy("float64")
    predicted = float(np.mean(np.exp(law.log_loss(theta, at)[0]) + floor))
    actual = float(held["loss"].mean())
    return {
        "held_out": [str(name) for name in held["name"]],
        "predicted": predicted,
        "actual": actual,
        "error": predicted - actual,
        "relative_error": (predicted - actual) / actual,
        "fitted_on": len(small),
        "extrapolation": float(held[scale].max() / small[scale].max()),
        "reason": None,
    }


def _predictions(law: Law, theta: Numbers, used: pd.DataFrame, floor: float) -> list[dict[str, Any]]:
    x = used[list(law.variables)].to_numpy("float64")
    predicted = np.exp(law.log_loss(theta[None], x)[0]) + floor
    return [
        {"name": str(row["name"]), **{v: float(row[v]) for v in law.variables}, "loss": float(row["loss"]),
         "predicted": float(fitted)}
        for (_, row), fitted in zip(used.iterrows(), predicted, strict=True)
    ]  # fmt: skip


def _band(
    law: Law, theta: Numbers, spread: Numbers, x: Numbers, loss: Numbers, floor: float
) -> list[dict[str, Any]]:
    """The fitted curve from half the smallest to twice the largest scale, with the bootstrap interval of the
    curve (`interval`) and Student's (`t_interval`, linearised in theta)."""
    at = np.geomspace(x.min() / 2, x.max() * 2, 60)[:, None]
    centre = law.log_loss(theta[None], at)[0]
    low, high = np.quantile(law.log_loss(spread, at), [0.025, 0.975], axis=0)
    here, residual = law.jacobian(theta[None], x)[0], law.log_loss(theta[None], x)[0] - np.log(loss)
    dof = len(x) - len(theta)
    covariance = np.linalg.pinv(here.T @ here) * float(residual @ residual) / dof
    rows = law.jacobian(theta[None], at)[0]
    half = student.ppf(0.975, dof) * np.sqrt(np.maximum(np.einsum("np,pq,nq->n", rows, covariance, rows), 0))
    curves = bounded_exp(np.stack([centre, low, high, centre - half, centre + half])) + floor
    return [
        {
            law.variables[0]: float(c),
            "loss": row[0],
            "interval": [row[1], row[2]],
            "t_interval": [row[3], row[4]],
        }
        for c, row in zip(at[:, 0], curves.T.tolist(), strict=True)
    ]


def _warnings(law: Law, groups: int, dof: int, identified: dict[str, bool]) -> list[str]:
    warnings = []
    if groups < FEW_RUNS:
        warnings.append(
            f"{groups} runs and {len(law.parameters)} parameters leave {dof} degree{'s' if dof > 1 else ''} "
            "of freedom: the bootstrap interval is too narrow with so few runs and Student's interval is "
            "the honest one; do not extrapolate far"
        )
    loose = [name for name, known in identified.items() if not known]
    if loose:
        warnings.append(f"{', '.join(loose)} not identified by these points: other values fit about as well")
    return warnings


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


def table_points(table: pd.DataFrame, columns: dict[str, str | None], law: Law, where: str) -> pd.DataFrame:
    """The rows of a CSV table as points for `fit_law`.

    Args:
        columns: which column holds `n`, `d`, `flops`, `loss`, `group`; None where not given. Compute not
        given is
            6 N D; data not given is C / (6 N).
        where: the table's name, for messages.

    Raises:
        InputError: no rows, a column that is not there, a cell that is no positive number (line named), nothing to
            compute a variable from.
    """
    if table.empty:
        raise InputError(f"{where}: no rows below the header")
    found: dict[str, pd.Series] = {}
    for role in ("n", "d", "flops", "loss", "group"):
        column = columns.get(role)
        if column is None:
            continue
        if column not in table.columns:
            raise InputError(
                f"{where}: no column `{column}` (for --{role}); columns: {', '.join(table.columns)}"
            )
        found[role] = table[column] if role == "group" else _positive(table[column], where)
    if "loss" not in found:
        raise InputError(f"{where}: name the column of the loss with --loss")
    if "flops" not in found and {"n", "d"} <= found.keys():
        found["flops"] = 6 * found["n"] * found["d"]
    if "d" not in found and {"n", "flops"} <= found.keys():
        found["d"] = found["flops"] / (6 * found["n"])
    missing = [variable for variable in law.variables if variable not in found]
    if missing:
        raise InputError(
            f"{where}: {law.name} needs {', '.join(missing)}; name the column with --{missing[0]}"
        )
    result = pd.DataFrame(found)
    result["name"] = (
        found["group"].astype(str) if "group" in found else [f"row {i + 1}" for i in range(len(table))]
    )
    result["group"] = found["group"] if "group" in found else np.arange(len(table))
    return result


def _positive(column: pd.Series, where: str) -> pd.Series:
    numbers = pd.to_numeric(column, errors="coerce").astype("float64")
    bad = np.flatnonzero(~(np.isfinite(numbers) & (numbers > 0)))
    if len(bad):
        cell = column.iloc[bad[0]]
        cell = cell.item() if isinstance(cell, np.generic) else cell
        raise InputError(
            f"{where}, line {bad[0] + 2}: `{column.name}` is {cell!r}, not a positive number "
            f"({len(bad)} such rows); remove or repair them"
        )
    return numbers
