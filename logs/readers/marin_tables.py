"""Reader of the published tables of Marin 535B-A23B and its ladder (`logs/published/marin`), told by their
header.

`train_cross_entropy_loss` is the optimised objective: on this run it equals `train/loss` and holds the z-loss
term. The evaluations named `eval_dropless` are the headline ones; those named `eval` drop tokens over expert
capacity and are kept apart as `paloma_macro_with_drops`.
"""

from pathlib import Path

import pandas as pd

from experiments.configuration import InputError
from logs.parsing.opened import open_bytes
from logs.parsing.quoted_lines import cells_of
from logs.readers import NotALog, Sample
from logs.schema import AXES, Run, make_table, unit_of

NAME = "marin-tables"
VERSION = "1"
PUBLIC = True

HERO = "marin-535b"
FIRST_RUN = "hero-12d8b6f0-dee637"

COLUMNS = {
    "train_cross_entropy_loss": "train/loss",
    "train/cross_entropy_loss": "train/loss",
    "grad_norm_total": "grad_norm",
    "grad/norm/total": "grad_norm",
    "learning_rate": "lr",
    "optim/learning_rate": "lr",
    "adam_lr": "lr/adam",
    "optim/adam_lr": "lr/adam",
    "mfu_pct": "mfu",
    "drop_fraction": "router/drop_fraction",
    "moe/drop_fraction": "router/drop_fraction",
    "eval_dropless_paloma_macro_loss": "eval/paloma_macro/loss",
    "eval_dropless/paloma/macro_loss": "eval/paloma_macro/loss",
    "eval_dropless/paloma/macro_bpb": "eval/paloma_macro/loss_bpb",
    "eval/paloma/macro_loss": "eval/paloma_macro_with_drops/loss",
    "ladder_prediction_interp": "ladder_prediction/paloma_macro/loss",
    "timestamp": "wall_time",
    "tokens_seen": "tokens",
    "wandb_run_segment": "segment",
    "wandb_run": "segment",
}
UNITS = {"ladder_prediction/paloma_macro/loss": "nats/token"}

TRAIN = {
    "wandb_run_segment",
    "step",
    "train_cross_entropy_loss",
    "grad_norm_total",
    "learning_rate",
    "mfu_pct",
}
EVAL = {"wandb_run_segment", "step", "metric", "value", "ladder_prediction_interp"}
LADDER = {"rung", "wandb_run", "step", "tokens_seen", "eval_dropless_paloma_macro_loss"}
EARLY = ({"step", "tokens", "train/cross_entropy_loss"}, {"step", "optim/learning_rate", "moe/drop_fraction"})
NOT_LOGS = (  # tables beside the logs, told by columns that stand together in no other table
    {"date", "kind", "wandb_run", "event"},
    {"paloma_macro_loss", "paloma_macro_bpb", "step"},
    {"fraction", "hero_step", "predicted_dropless_paloma_macro_loss"},
)


def matches(sample: Sample) -> bool:
    """A CSV file with the header of one of these tables."""
    columns = set(header(sample.lines[0])) if sample.lines else set()
    return "source" in columns and any(
        wanted <= columns for wanted in (TRAIN, EVAL, LADDER, *EARLY, *NOT_LOGS)
    )


def header(line: str) -> list[str]:
    """Names of the columns in the first line of a CSV file."""
    return cells_of(line, ",")


def read(path: Path) -> list[Run]:
    """The rows of one table: a part of `marin-535b`, or the rungs of the ladder.

    Raises:
        NotALog: events, forecasts or another table beside the logs.
        InputError: a row that does not fit the header, or text where a number belongs.
    """
    try:
        with open_bytes(path) as stream:
            rows = pd.read_csv(stream)
    except (pd.errors.ParserError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not a whole CSV file: {error}") from None
    if rows["source"].isna().any():
        line = int(rows["source"].isna().argmax()) + 2
        raise InputError(f"{path}, line {line}: no source cited; the row is cut off or not one of this table")
    columns = set(rows.columns)
    try:
        if columns >= LADDER:
            keep = ["wandb_run", "step", "tokens_seen", "eval_dropless_paloma_macro_loss"]
            return [_run(f"marin-{rung}", cells[keep]) for rung, cells in rows.groupby("rung", sort=False)]
        if columns >= EVAL:
            return [_run(HERO, _wide(rows))]
        if columns >= TRAIN or any(columns >= early for early in EARLY):
            return [_run(HERO, rows.drop(columns="source"))]
    except (ValueError, TypeError) as error:
        raise InputError(f"{path}: a cell is not the number it should be: {error}") from None
    raise NotALog(f"{path}: a published table, but not a training log; its facts are for the analysis")


def _wide(rows: pd.DataFrame) -> pd.DataFrame:
    """The long table of evaluations with one row per run and step, one column per metric."""
    keys = ["wandb_run_segment", "step", "tokens"]
    metrics = rows.set_index([*keys, "metric"])["value"].unstack("metric")
    forecast = rows.groupby(keys)["ladder_prediction_interp"].first()
    return metrics.join(forecast).reset_index()


def _run(name: str, rows: pd.DataFrame) -> Run:
    rows = rows.rename(columns=COLUMNS).dropna(axis="columns", how="all")
    if "segment" not in rows:  # the two tables of the first steps name the run in their citations only
        rows = rows.assign(segment=FIRST_RUN)
    inferred: tuple[str, ...] = ()
    if "mfu" in rows:
        rows["mfu"] = rows["mfu"] / 100
        inferred = ("mfu = the published percentage / 100",)
    table = make_table(rows, name)
    units = {metric: UNITS.get(metric, unit_of(metric)) for metric in table.columns[len(AXES) :]}
    return Run(name, table, units, inferred=inferred)
