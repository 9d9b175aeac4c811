"""The one schema of a training log: where `replicas`, `logs` and `analysis` meet.

A `Run` is a table keyed by run, segment and step, plus what is known about the run. Metric columns are
Arrow doubles, so that *not logged* (null) and *logged as NaN* stay different things; `Run.series` gives
the logged points of one metric as plain numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
import pyarrow as pa

from experiments.configuration import Config

AXES = ("run", "segment", "step", "tokens", "samples", "wall_time")
"""Columns that every table has: names of run and segment, zero-based optimizer step, tokens and sequences
seen once the step is done, seconds since the epoch. Unknown cells are null."""

UNITS = (
    "nats/token",
    "bits/token",
    "bits/byte",
    "accuracy",
    "perplexity",
    "tokens/s",
    "s",
    "bytes",
    "fraction",
    "1",
    "unknown",
)

METRIC_UNITS = {
    "train/loss": "nats/token",
    "train/loss_bpb": "bits/byte",
    "grad_norm": "1",
    "lr": "1",
    "tokens_per_second": "tokens/s",
    "step_time": "s",
    "mfu": "fraction",
    "data_wait": "s",
}
"""Units of the canonical metrics with fixed names; `unit_of` covers families such as `lr/*` and `eval/*`."""

EVAL_UNITS = {
    "loss": "nats/token",
    "loss_bpb": "bits/byte",
    "accuracy": "accuracy",
    "perplexity": "perplexity",
}
"""Units of the canonical metrics `eval/<set>/<last part>`."""


def unit_of(metric: str) -> str:
    """Unit of a canonical metric name, or `unknown`."""
    if metric in METRIC_UNITS:
        return METRIC_UNITS[metric]
    if metric.startswith("lr/"):
        return "1"
    if metric.startswith("eval/"):
        return EVAL_UNITS.get(metric.rsplit("/", 1)[1], "unknown")
    if metric.startswith("router/"):
        return "fraction" if metric.endswith("drop_fraction") else "1"
    return "unknown"


class Schedule(Config):
    """Learning-rate schedule as planned: `shape` is linear, cosine, wsd, inverse_sqrt or constant."""

    shape: str
    peak_lr: float
    warmup_steps: int
    total_steps: int
    final_fraction: float


class RunFacts(Config):
    """What is known about a run beside its table; None means unknown, never assumed."""

    title: str | None = None
    architecture: str | None = (
        None  # where `replicas.models` has it, its module's name: the ledger compares them
    )
    params_total: int | None = None
    params_active: int | None = None
    params_embedding: int | None = None
    params_lm_head: int | None = None
    train_flops_per_token: float | None = None  # without the LM head
    tokens_per_step: int | None = None
    seq_len: int | None = None
    batch_sequences: int | None = None
    steps_planned: int | None = None
    steps_from: int | None = None  # the number that the log gives to the first optimizer step; None: 0
    tokens_planned: int | None = None
    schedule: Schedule | None = None
    vocab_size: int | None = None
    tokenizer: str | None = None
    data: str | None = None
    data_version: str | None = None
    mixture: dict[str, float] | None = None
    optimizer: str | None = None
    precision: str | None = None
    z_loss_in_loss: bool | None = None
    drops_in_training: bool | None = None
    evaluation_set: str | None = None
    counting_rule: str | None = None
    seed: int | None = None
    experiment: str | None = None  # e.g. ladder/small, ablation/code-heavy/seed-1


class Quirk(Config):
    """An oddity of a source: what kind, how often, where, and what was done about it."""

    kind: str
    count: int
    where: str
    action: str


class Source(Config):
    """Where a run came from: path or address, content hash, reader and its version, licence, citation, and for
    what was fetched from a service the UTC time at which rows last came."""

    path: str
    sha256: str
    reader: str
    reader_version: str
    licence: str | None = None
    citation: str | None = None
    fetched: str | None = None


class Segment(Config):
    """A stretch of one run written by one process lineage.

    `first_step` is the step from which the segment counts: where it forked from `parent` if that is known,
    else its first row. `last_step` is its last row, which may lie beyond the fork of a child, or
    `first_step - 1` if the log at hand has no row of it. Without a `parent` it continues the one before it.
    """

    id: str
    first_step: int
    last_step: int
    parent: str | None = None


@dataclass(frozen=True)
class Run:
    """One training run in the canonical form.

    Attributes:
        name: catalogue or store name, e.g. `marin-535b`, `own/ladder/small`.
        table: the raw rows, `AXES` first, then one Arrow double column per metric, sorted by segment order
            and step.
        units: unit of each metric column, one of `UNITS`.
        segments: in order of time; the last one is the tip of the lineage. See `lineage_ranges`.
        inferred: statements about what was derived and not logged, e.g. `tokens = (step + 1) * 46137344`.
    """

    name: str
    table: pd.DataFrame
    units: dict[str, str]
    facts: RunFacts = field(default_factory=RunFacts)
    segments: tuple[Segment, ...] = ()
    quirks: tuple[Quirk, ...] = ()
    sources: tuple[Source, ...] = ()
    inferred: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_table(self.table, self.units)

    @property
    def metrics(self) -> list[str]:
        """Names of the metric columns."""
        return [column for column in self.table.columns if column not in AXES]

    def series(self, metric: str) -> pd.DataFrame:
        """The rows of the lineage in which `metric` was logged: one row per step, plain numpy columns.

        Returns:
            Columns `segment, step, tokens, value`, sorted by step; `value` may be NaN or infinite where the
            log said so; `tokens` is NaN where unknown.

        Raises:
            KeyError: the run has no such metric.
        """
        if metric not in self.metrics:
            raise KeyError(f"run {self.name} has no metric {metric!r}; it has {', '.join(self.metrics)}")
        rows = self.lineage()
        rows = rows[is_logged(rows[metric])]
        return pd.DataFrame(
            {
                "segment": rows["segment"].astype(str).to_numpy(),
                "step": rows["step"].to_numpy("int64"),
                "tokens": rows["tokens"].to_numpy("float64", na_value=float("nan")),
                "value": rows[metric].array._pa_array.to_numpy(),
            }
        )

    def lineage(self) -> pd.DataFrame:
        """The table with one row per step, sorted by step.

        A child counts from its fork on: what its parent logged afterwards is left out. Rows of a child from
        before its fork are the history it inherited; they fill only cells that the owner of the step lacks. A
        cell logged twice by the same segment counts as logged last. `segment` is the owner of the step.
        """
        rows = self.table
        step = rows["step"].to_numpy()
        if len(self.segments) == 1 and (step[1:] > step[:-1]).all():
            return rows
        ranges = lineage_ranges(self.segments)
        inherited = pd.Series(False, index=rows.index)
        if ranges:
            first = rows["segment"].map({name: first for name, (first, _) in ranges.items()})
            end = rows["segment"].map({name: end for name, (_, end) in ranges.items()})
            inside = rows["step"] < end  # false too for a segment outside the lineage
            rows, inherited = rows[inside], (rows["step"] < first)[inside]
        order = pd.DataFrame({"step": rows["step"], "owned": ~inherited}).sort_values(
            ["step", "owned"], kind="stable"
        )
        rows = one_row_per_step(rows.loc[order.index])
        if ranges:
            starts = sorted((first, name) for name, (first, end) in ranges.items() if first < end)
            owner = np.searchsorted([first for first, _ in starts], rows["step"], side="right") - 1
            names = pa.array([name for _, name in starts], pa.large_string())
            rows["segment"] = pd.array(names.take(pa.array(np.maximum(owner, 0))), "str")
        return rows


def lineage_ranges(segments: Sequence[Segment]) -> dict[str, tuple[int, float]]:
    """The half-open range of steps that each segment owns, for the segments in the lineage of the last one.

    Walks from the tip to its parents; an ancestor owns the steps up to the earliest fork below it, so a
    branch that was given up, or rewound past its own fork, owns nothing.
    """
    by_id = {segment.id: i for i, segment in enumerate(segments)}
    ranges: dict[str, tuple[int, float]] = {}
    i, end = len(segments) - 1, float("inf")
    while i >= 0 and segments[i].id not in ranges:
        segment = segments[i]
        ranges[segment.id] = (segment.first_step, end)
        end = min(end, segment.first_step)
        i = by_id.get(segment.parent, -1) if segment.parent else i - 1
    return dict(reversed(ranges.items()))


def one_row_per_step(rows: pd.DataFrame) -> pd.DataFrame:
    """`rows`, sorted by step, with the rows of one step made one: each cell is the last one logged."""
    step = rows["step"].to_numpy()
    new = np.ones(len(rows), bool)
    new[1:] = step[1:] != step[:-1]
    starts = np.flatnonzero(new)
    if len(starts) == len(rows):
        return rows.reset_index(drop=True)
    columns: dict[str, pd.Series] = {}
    for name in rows.columns:
        logged = np.where(is_logged(rows[name]), np.arange(len(rows)), -1)
        last = np.maximum.reduceat(logged, starts)
        columns[name] = rows[name].reset_index(drop=True).reindex(np.where(last < 0, starts, last))
        columns[name].index = pd.RangeIndex(len(starts))
    return pd.DataFrame(columns)


def is_logged(column: pd.Series) -> np.ndarray:
    """Which cells of a table's column hold something, NaN and infinity included."""
    if isinstance(column.dtype, pd.ArrowDtype):
        return column.array._pa_array.is_valid().to_numpy(zero_copy_only=False)
    return column.notna().to_numpy()


def make_table(rows: pd.DataFrame, run: str, segment: str | None = None) -> pd.DataFrame:
    """`rows` with the axis columns completed, ordered and typed, metric columns as Arrow doubles.

    Args:
        rows: at least a `step` column; other axes optional; every other column is a metric. A null in a numpy
            column cannot be told from NaN and counts as *not logged*; give an Arrow column to keep the
            difference.
    """
    count = len(rows)
    columns: dict[str, pd.Series] = {"run": constant(run, count)}
    named = segment is None and "segment" in rows
    columns["segment"] = rows["segment"].astype("str") if named else constant(segment or run, count)
    columns["step"] = pd.Series(rows["step"].to_numpy().astype("int64", copy=False), copy=False)
    for axis, kind in (("tokens", pa.int64()), ("samples", pa.int64()), ("wall_time", pa.float64())):
        columns[axis] = as_arrow(rows[axis], kind) if axis in rows else _never_logged(count, kind)
    for metric in rows.columns:
        if metric not in AXES:
            columns[metric] = as_arrow(rows[metric])
    return pd.DataFrame({name: column.reset_index(drop=True) for name, column in columns.items()}, copy=False)


CHUNK = 65536
"""Rows of a column that stands in memory once and is repeated: a constant one costs nothing."""


def constant(text: str, count: int) -> pd.Series:
    """A column of `count` times the same text."""
    chunk = pa.repeat(pa.scalar(text, pa.large_string()), min(count, CHUNK))
    return pd.Series(pd.array(_repeated(chunk, count), "str"))


def _never_logged(count: int, kind: pa.DataType) -> pd.Series:
    chunk = pa.nulls(min(count, CHUNK), kind)
    return pd.Series(pd.arrays.ArrowExtensionArray(_repeated(chunk, count)))


def _repeated(chunk: pa.Array, count: int) -> pa.ChunkedArray:
    whole, rest = divmod(count, CHUNK) if count else (0, 0)
    return pa.chunked_array([*[chunk] * whole, chunk.slice(0, rest)], chunk.type)


def metric_column(values: Sequence[float | None], name: str | None = None) -> pd.Series:
    """Metric values as an Arrow column: None is *not logged*, NaN stays NaN."""
    return pd.Series(
        pd.arrays.ArrowExtensionArray(pa.array(values, pa.float64(), from_pandas=False)), name=name
    )


def as_arrow(column: pd.Series, kind: pa.DataType = pa.float64()) -> pd.Series:  # noqa: B008 (immutable)
    """A column as Arrow numbers. NaN in a numpy column becomes null; an Arrow column is kept."""
    if isinstance(column.dtype, pd.ArrowDtype):
        values = column.array._pa_array.cast(kind)
    elif pd.api.types.is_integer_dtype(column.dtype):
        values = pa.array(column).cast(kind)
    else:
        doubles = pa.array(column.to_numpy("float64", na_value=float("nan")), from_pandas=True)
        values = doubles.cast(kind)
    return pd.Series(pd.arrays.ArrowExtensionArray(values), index=column.index, name=column.name)


def check_table(table: pd.DataFrame, units: dict[str, str]) -> None:
    """Raise ValueError unless `table` and `units` follow this schema."""
    if list(table.columns[: len(AXES)]) != list(AXES):
        raise ValueError(f"a run's table starts with the columns {AXES}, found {list(table.columns)}")
    metrics = list(table.columns[len(AXES) :])
    if set(metrics) != set(units):
        raise ValueError(f"units are stated for {sorted(units)} but the metrics are {sorted(metrics)}")
    for metric in metrics:
        if table[metric].dtype != pd.ArrowDtype(pa.float64()):
            raise ValueError(
                f"metric {metric} is {table[metric].dtype}, not an Arrow double; use `make_table`"
            )
        if units[metric] not in UNITS:
            raise ValueError(f"metric {metric} has the unit {units[metric]!r}; allowed: {', '.join(UNITS)}")
