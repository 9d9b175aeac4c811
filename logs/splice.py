"""Forks, resumes and repeated rows: from rows as written to one run whose lineage is clear.

Nothing is dropped here and nothing averaged: rows keep the order in which they were written, segments say
which of them count (`Run.lineage`), and quirks say what was odd.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa

from experiments.configuration import InputError
from logs.schema import AXES, Quirk, Run, Segment, is_logged, lineage_ranges

GAP_FACTOR = 20
"""Where a log is sampled unevenly, a distance of more than this many usual (median) ones counts as a gap."""


@dataclass(frozen=True)
class Fork:
    """What is known beforehand of a segment: it forked from `parent` (None: began) at `first_step`."""

    id: str
    first_step: int
    parent: str | None = None


def splice(parts: Sequence[Run], name: str, forks: Sequence[Fork] = ()) -> Run:
    """The parts of one run, as read from one or more files, as a single run with segments and quirks.

    Args:
        parts: rows in the order in which they were written. Where two parts log the same cell, the longer
            part counts.
        name: name of the run.
        forks: the known segments in order of time. A segment that is not among them starts at its first row,
            and again wherever its steps go back (a resume from a checkpoint).

    Raises:
        InputError: the parts state different units for one metric, or rows of a run with known segments lie
        in none.
    """
    parts = sorted(parts, key=lambda part: len(part.table))
    known = {fork.id for fork in forks}
    tables: list[pd.DataFrame] = []
    rewinds: list[str] = []
    for part in parts:
        table = part.table.assign(run=name)
        table.loc[table["segment"] == "", "segment"] = name
        if unknown := sorted(set(table["segment"]) - known) if known else []:
            raise InputError(f"{name}: the catalogue knows no segment {', '.join(unknown)} of this run")
        if not known:
            table["segment"], at = split_at_rewinds(table["segment"], table["step"])
            rewinds += at
        tables.append(table)
    table = _stack(tables)
    segments = _known_segments(table, forks) if known else _found_segments(table)
    order = table["segment"].map({segment.id: i for i, segment in enumerate(segments)})
    by_segment = pd.DataFrame({"segment": order, "step": table["step"]}).sort_values(
        ["segment", "step"], kind="stable"
    )
    table = table.loc[by_segment.index].reset_index(drop=True)
    quirks = [quirk for part in parts for quirk in part.quirks]
    if rewinds:
        where = ", ".join(rewinds[:5])
        quirks.append(
            Quirk(kind="rewind", count=len(rewinds), where=where, action="the later rows count from there on")
        )
    quirks += find_quirks(table, segments)
    return Run(
        name,
        table,
        _units(parts),
        facts=next((part.facts for part in reversed(parts) if part.facts.model_fields_set), parts[0].facts),
        segments=tuple(segments),
        quirks=tuple(quirks),
        sources=tuple(sorted((source for part in parts for source in part.sources), key=lambda s: s.path)),
        inferred=tuple(dict.fromkeys(text for part in parts for text in part.inferred)),
    )


def split_at_rewinds(segment: pd.Series, step: pd.Series) -> tuple[pd.Series, list[str]]:
    """Names of segments, cut wherever a segment's steps go back (`a`, `a#2`, `a#3`), and where they did."""
    names = segment.astype(object).copy()
    places: list[str] = []
    for name in segment.unique():
        rows = np.flatnonzero((segment == name).to_numpy())
        steps = step.to_numpy()[rows]
        back = np.flatnonzero(np.diff(steps) < 0) + 1
        places += [f"step {steps[i - 1]} -> {steps[i]}" for i in back]
        part = np.searchsorted(back, np.arange(len(rows)), side="right")
        names.iloc[rows] = [name if number == 0 else f"{name}#{number + 1}" for number in part]
    return names.astype(str), places


def _stack(tables: list[pd.DataFrame]) -> pd.DataFrame:
    """The tables one under the other; a metric that one of them lacks was not logged there."""
    metrics = list(dict.fromkeys(name for table in tables for name in table.columns if name not in AXES))
    for i, table in enumerate(tables):
        absent = {name: _absent(len(table)) for name in metrics if name not in table}
        tables[i] = table.assign(**absent)[[*AXES, *metrics]]
    return pd.concat(tables, ignore_index=True)


def _absent(rows: int) -> pd.arrays.ArrowExtensionArray:
    return pd.arrays.ArrowExtensionArray(pa.nulls(rows, pa.float64()))


def _known_segments(table: pd.DataFrame, forks: Sequence[Fork]) -> list[Segment]:
    last = table.groupby("segment")["step"].max()
    return [
        Segment(
            id=fork.id,
            first_step=fork.first_step,
            last_step=int(last.get(fork.id, fork.first_step - 1)),
            parent=fork.parent,
        )
        for fork in forks
    ]


def _found_segments(table: pd.DataFrame) -> list[Segment]:
    steps = table.groupby("segment", sort=False)["step"].agg(["min", "max"])
    names = list(steps.index)
    return [
        Segment(
            id=name,
            first_step=int(steps["min"].iloc[i]),
            last_step=int(steps["max"].iloc[i]),
            parent=names[i - 1] if i else None,
        )
        for i, name in enumerate(names)
    ]


def _units(parts: Sequence[Run]) -> dict[str, str]:
    units: dict[str, str] = {}
    for part in parts:
        for metric, unit in part.units.items():
            if units.setdefault(metric, unit) != unit:
                raise InputError(
                    f"{part.name}: {metric} is in {unit} here and in {units[metric]} in another file"
                )
    return units


def find_quirks(table: pd.DataFrame, segments: Sequence[Segment]) -> list[Quirk]:
    """What is odd in the rows of a run: overlaps, inherited history, repeated cells, non-finite, gaps."""
    quirks = [*_fork_quirks(table, segments), *_repeat_quirks(table), *_non_finite_quirks(table)]
    return [*quirks, *_step_quirks(np.unique(table["step"].to_numpy()))]


def _fork_quirks(table: pd.DataFrame, segments: Sequence[Segment]) -> list[Quirk]:
    ranges = lineage_ranges(segments)
    quirks: list[Quirk] = []
    for segment in segments:
        steps = table.loc[table["segment"] == segment.id, "step"]
        first, end = ranges.get(segment.id, (segment.first_step, segment.first_step))
        late, early = steps[steps >= end], steps[steps < first]
        if len(late):
            quirks.append(
                Quirk(
                    kind="overlap",
                    count=len(late),
                    where=f"{segment.id}, steps {late.min()}-{late.max()}",
                    action="logged after the fork; kept, but the lineage takes the child's rows",
                )
            )
        if len(early):
            quirks.append(
                Quirk(
                    kind="inherited_history",
                    count=len(early),
                    where=f"{segment.id}, steps {early.min()}-{early.max()}",
                    action="the parents' rows as copied by the fork; they fill only what the parents lack",
                )
            )
    return quirks


def _repeat_quirks(table: pd.DataFrame) -> list[Quirk]:
    """Cells that one segment logged more than once for one step."""
    rows = table[table.duplicated(["segment", "step"], keep=False)]
    quirks: list[Quirk] = []
    for metric in table.columns[len(AXES) :]:
        logged = rows[is_logged(rows[metric])]
        values = logged[metric].to_numpy("float64")
        groups = pd.Series(values).groupby([logged["segment"].to_numpy(), logged["step"].to_numpy()])
        spread = (groups.max() - groups.min())[groups.size() > 1]
        if not len(spread):
            continue
        differ = int((spread > 0).sum())
        steps = spread.index.get_level_values(1)
        what = f"{differ} of them differ, by at most {spread.max():.3g}" if differ else "all equal"
        quirks.append(
            Quirk(
                kind="duplicate_step",
                count=len(spread),
                where=f"{metric}, steps {steps.min()}-{steps.max()}; {what}",
                action="all kept; the last one counts in the lineage",
            )
        )
    return quirks


def _non_finite_quirks(table: pd.DataFrame) -> list[Quirk]:
    quirks: list[Quirk] = []
    for metric in table.columns[len(AXES) :]:
        logged = table[is_logged(table[metric])]
        bad = logged["step"][~np.isfinite(logged[metric].array._pa_array.to_numpy())]
        if len(bad):
            quirks.append(
                Quirk(
                    kind="non_finite",
                    count=len(bad),
                    where=f"{metric}, steps {bad.min()}-{bad.max()}",
                    action="kept as logged",
                )
            )
    return quirks


def _step_quirks(steps: np.ndarray) -> list[Quirk]:
    """Thinning and gaps in the sorted steps of a run."""
    distance = np.diff(steps)
    if len(distance) < 2:
        return []
    usual, count = np.unique(distance, return_counts=True)
    stride = int(usual[count.argmax()])
    regular = count.max() >= 0.9 * len(distance)
    limit = stride if regular else GAP_FACTOR * float(np.median(distance))
    quirks: list[Quirk] = []
    if regular and stride > 1:
        quirks.append(
            Quirk(
                kind="thinned", count=len(steps), where=f"every {stride} steps", action="kept; not filled in"
            )
        )
    if not regular:
        quirks.append(
            Quirk(
                kind="uneven_sampling",
                count=len(steps),
                where=f"usual distance {np.median(distance):g} steps, largest {distance.max()}",
                action="kept; not filled in",
            )
        )
    gaps = np.flatnonzero(distance > limit)
    if len(gaps):
        longest = gaps[distance[gaps].argmax()]
        quirks.append(
            Quirk(
                kind="gap",
                count=len(gaps),
                where=f"the longest from step {steps[longest]} to {steps[longest + 1]}",
                action="left open",
            )
        )
    return quirks
