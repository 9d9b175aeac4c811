"""Forks, resumes and repeated rows: from rows as written to one run whose lineage is clear.

Nothing is dropped here and nothing averaged: rows keep the order in which they were written, segments say
which of them count (`Run.lineage`), and quirks say what was odd.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from experiments.configuration import InputError
from logs.schema import AXES, Quirk, Run, Segment, constant, lineage_ranges

GAP_FACTOR = 20
"""Where a log is sampled unevenly, a distance of more than this many usual (median) ones counts as a gap."""

FEWEST_DOWN = 3
"""Steps that go down so many times, and hardly ever up, are no resumes after one row each."""


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
    parts = sorted(map(oldest_first, parts), key=lambda part: len(part.table))
    known = {fork.id: i for i, fork in enumerate(forks)}
    places = dict(known)  # name of a segment -> its place in the order of time
    codes: list[np.ndarray] = []
    rewinds: list[str] = []
    for part in parts:
        code, names = codes_of(part.table["segment"])
        names = [segment or name for segment in names]
        if unknown := sorted(set(names) - set(known)) if known else []:
            raise InputError(f"{name}: the catalogue knows no segment {', '.join(unknown)} of this run")
        if not known:
            code, names, at = split_at_rewinds(code, names, part.table["step"].to_numpy())
            rewinds += at
        place = np.array([places.setdefault(segment, len(places)) for segment in names], np.int32)
        codes.append(place[code])
    table = _stack([part.table for part in parts])
    code = np.concatenate(codes) if len(codes) > 1 else codes.pop()
    codes.clear()
    order = _order(code, table["step"].to_numpy())
    if order is not None:
        table, code = table.take(order).reset_index(drop=True), code[order]
    segments = _segments(code, table["step"].to_numpy(), list(places), forks)
    table = table.assign(run=constant(name, len(table)), segment=_names(code, list(places)))
    quirks = [quirk for part in parts for quirk in part.quirks]
    if rewinds:
        where = ", ".join(rewinds[:5]) + f" and {len(rewinds) - 5} more" * (len(rewinds) > 5)
        quirks.append(
            Quirk(kind="rewind", count=len(rewinds), where=where, action="the later rows count from there on")
        )
    quirks += find_quirks(table, code, segments)
    return Run(
        name,
        table,
        _units(parts),
        facts=next((part.facts for part in reversed(parts) if part.facts.model_fields_set), parts[0].facts),
        segments=segments,
        quirks=tuple(quirks),
        sources=tuple(sorted((source for part in parts for source in part.sources), key=lambda s: s.path)),
        inferred=tuple(dict.fromkeys(text for part in parts for text in part.inferred)),
    )


def appended(parts: Sequence[Run]) -> Run:
    """Parts that one process after another wrote, as one part in that order.

    Raises:
        InputError: the parts state different units for one metric.
    """
    if len(parts) == 1:
        return parts[0]
    return replace(
        parts[0],
        table=_stack([part.table for part in parts]),
        units=_units(parts),
        quirks=tuple(quirk for part in parts for quirk in part.quirks),
        sources=tuple(source for part in parts for source in part.sources),
    )


def oldest_first(part: Run) -> Run:
    """`part` with its rows turned round if its steps go down from row to row, as a table saved newest first.

    A few steps down among many up are resumes from a checkpoint, and are left to be cut there.
    """
    step = part.table["step"].to_numpy()
    down = int((step[1:] < step[:-1]).sum())
    if down < FEWEST_DOWN or down <= 10 * int((step[1:] > step[:-1]).sum()):
        return part
    quirk = Quirk(
        kind="reversed",
        count=len(step),
        where=f"rows of steps {step[0]} down to {step[-1]}",
        action="newest first in the file; taken in the order of steps",
    )
    return replace(part, table=part.table[::-1].reset_index(drop=True), quirks=(*part.quirks, quirk))


def codes_of(column: pd.Series) -> tuple[np.ndarray, list[str]]:
    """A text column as numbers of names, and the names in the order in which they first occur."""
    text: Any = column.astype("str").array
    encoded = pa.chunked_array(text._pa_array).dictionary_encode().combine_chunks()
    return encoded.indices.to_numpy(), encoded.dictionary.to_pylist()


def _bounds(codes: np.ndarray, count: int) -> np.ndarray:
    """Where in ascending `codes` each of the numbers from 0 to `count` begins."""
    return np.searchsorted(codes, np.arange(count + 1, dtype=codes.dtype))  # of another type, all were copied


def _names(codes: np.ndarray, names: list[str]) -> pd.Series:
    """The text column of `codes`, which stand in ascending order."""
    bounds = _bounds(codes, len(names))
    used = [(names[i], int(n)) for i, n in enumerate(np.diff(bounds)) if n]
    columns = [constant(name, count) for name, count in used]
    return columns[0] if len(columns) == 1 else pd.concat(columns, ignore_index=True).astype("str")


def split_at_rewinds(
    codes: np.ndarray, names: list[str], step: np.ndarray
) -> tuple[np.ndarray, list[str], list[str]]:
    """Segments cut wherever the steps of one go back (`a`, `a#2`, `a#3`): the new numbers of their names, the
    names in the order in which they first occur, and where the steps went back."""
    if len(names) == 1 and (step[1:] >= step[:-1]).all():
        return codes, names, []
    pieces: list[tuple[int, str]] = []  # first row and name of each
    split = np.empty(len(codes), np.int32)
    places: list[str] = []
    for i, name in enumerate(names):
        rows = np.flatnonzero(codes == i) if len(names) > 1 else slice(None)
        steps = step[rows]
        back = np.flatnonzero(steps[1:] < steps[:-1]) + 1
        places += [f"step {steps[at - 1]} -> {steps[at]}" for at in back]
        piece = np.zeros(len(steps), np.int32)
        piece[[0]], piece[back] = len(pieces), 1
        split[rows] = np.cumsum(piece, dtype=np.int32)
        starts = np.concatenate([[0], back])
        firsts = starts if isinstance(rows, slice) else rows[starts]
        pieces += [(int(at), f"{name}#{k}" if k > 1 else name) for k, at in enumerate(firsts, start=1)]
    in_time = sorted(range(len(pieces)), key=lambda i: pieces[i])
    rank = np.empty(len(pieces), np.int32)
    rank[in_time] = np.arange(len(pieces))
    return rank[split], [pieces[i][1] for i in in_time], places


def _stack(tables: list[pd.DataFrame]) -> pd.DataFrame:
    """The tables one under the other; a metric that one of them lacks was not logged there."""
    if len(tables) == 1:
        return tables[0]
    metrics = list(dict.fromkeys(name for table in tables for name in table.columns if name not in AXES))
    for i, table in enumerate(tables):
        absent = {name: _absent(len(table)) for name in metrics if name not in table}
        tables[i] = table.assign(**absent)[[*AXES, *metrics]]
    return pd.concat(tables, ignore_index=True)


def _absent(rows: int) -> pd.arrays.ArrowExtensionArray:
    return pd.arrays.ArrowExtensionArray(pa.nulls(rows, pa.float64()))


def _order(code: np.ndarray, step: np.ndarray) -> np.ndarray | None:
    """The rows by segment and step, those of one step as written; None if they stand so already."""
    ahead = (code[1:] > code[:-1]) | ((code[1:] == code[:-1]) & (step[1:] >= step[:-1]))
    return None if ahead.all() else np.lexsort((step, code))


def _segments(
    code: np.ndarray, step: np.ndarray, names: list[str], forks: Sequence[Fork]
) -> tuple[Segment, ...]:
    """The segments of rows that are sorted by segment and step: the known ones, or else those found."""
    bounds = _bounds(code, len(names))
    starts, ends = bounds[:-1], bounds[1:]
    found = forks or [
        Fork(name, int(step[starts[i]]), names[i - 1] if i else None) for i, name in enumerate(names)
    ]
    return tuple(
        Segment(
            id=fork.id,
            first_step=fork.first_step,
            last_step=int(step[end - 1]) if end > start else fork.first_step - 1,
            parent=fork.parent,
        )
        for fork, start, end in zip(found, starts, ends, strict=True)
    )


def _units(parts: Sequence[Run]) -> dict[str, str]:
    units: dict[str, str] = {}
    for part in parts:
        for metric, unit in part.units.items():
            if units.setdefault(metric, unit) != unit:
                raise InputError(
                    f"{part.name}: {metric} is in {unit} here and in {units[metric]} in another file"
                )
    return units


def find_quirks(table: pd.DataFrame, code: np.ndarray, segments: Sequence[Segment]) -> list[Quirk]:
    """What is odd in the rows of a run: overlaps, inherited history, repeated cells, non-finite, gaps.

    Args:
        table: sorted by segment and step.
        code: the place in `segments` of each row's segment.
    """
    step = table["step"].to_numpy()
    quirks = [*_fork_quirks(code, step, segments), *_repeat_quirks(table, code, step)]
    for metric in table.columns[len(AXES) :]:
        finite = pc.fill_null(pc.is_finite(table[metric].array._pa_array), True).to_numpy()
        quirks += _at_steps("non_finite", step[~finite], metric, "kept as logged")
    return [*quirks, *_step_quirks(step)]


def _at_steps(kind: str, steps: np.ndarray, what: str, action: str, more: str = "") -> list[Quirk]:
    """The quirk of `what` at some steps, one for each time that it occurs; none if there are no steps."""
    if not len(steps):
        return []
    return [Quirk(kind=kind, count=len(steps), where=f"{what}, {_listed(steps)}{more}", action=action)]


def _listed(steps: np.ndarray) -> str:
    """Up to five different steps by number, more by their range."""
    first, last = int(steps.min()), int(steps.max())
    if first == last:
        return f"step {first}"
    some = np.unique(steps) if len(steps) < 1000 else steps
    return f"steps {', '.join(map(str, some))}" if len(some) <= 5 else f"steps {first}-{last}"


def _fork_quirks(code: np.ndarray, step: np.ndarray, segments: Sequence[Segment]) -> list[Quirk]:
    ranges = lineage_ranges(segments)
    bounds = _bounds(code, len(segments))
    quirks: list[Quirk] = []
    for i, segment in enumerate(segments):
        steps = step[bounds[i] : bounds[i + 1]]
        first, end = ranges.get(segment.id, (segment.first_step, segment.first_step))
        late = "logged after the fork; kept, but the lineage takes the child's rows"
        early = "the parents' rows as copied by the fork; they fill only what the parents lack"
        quirks += _at_steps("overlap", steps[steps >= end], segment.id, late)
        quirks += _at_steps("inherited_history", steps[steps < first], segment.id, early)
    return quirks


def _repeat_quirks(table: pd.DataFrame, code: np.ndarray, step: np.ndarray) -> list[Quirk]:
    """Cells that one segment logged more than once for one step."""
    again = np.zeros(len(step) + 1, bool)
    again[1:-1] = (step[1:] == step[:-1]) & (code[1:] == code[:-1])
    if not again.any():
        return []
    rows = np.flatnonzero(again[:-1] | again[1:])  # all rows of the steps that have several
    group, steps = np.cumsum(~again[:-1])[rows], step[rows]
    quirks: list[Quirk] = []
    for metric in table.columns[len(AXES) :]:
        cells = table[metric].array._pa_array.take(pa.array(rows))
        logged = cells.is_valid().to_numpy()
        values, groups, at = cells.drop_null().to_numpy(), group[logged], steps[logged]
        starts = np.flatnonzero(np.diff(groups, prepend=-1))
        several = np.diff(starts, append=len(groups)) > 1
        if not several.any():
            continue
        with np.errstate(invalid="ignore"):
            spread = (np.fmax.reduceat(values, starts) - np.fmin.reduceat(values, starts))[several]
        differ = int((spread > 0).sum())
        what = f"{differ} of them differ, by at most {np.nanmax(spread):.3g}" if differ else "all equal"
        action = "all kept; the last one counts in the lineage"
        quirks += _at_steps("duplicate_step", at[starts][several], metric, action, f"; {what}")
    return quirks


def _counted(distance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The different values of `distance`, ascending, and how often each occurs."""
    if distance.min() == distance.max():
        return distance[:1], np.array([len(distance)])
    return np.unique(distance, return_counts=True)


def _step_quirks(step: np.ndarray) -> list[Quirk]:
    """Thinning and gaps in the steps of a run."""
    ascending = (step[1:] > step[:-1]).all()
    steps = step if ascending else np.unique(step)
    distance = np.diff(steps)
    if len(distance) < 2:
        return []
    usual, count = _counted(distance)
    stride = int(usual[count.argmax()])
    regular = count.max() >= 0.9 * len(distance)
    limit = stride if regular else GAP_FACTOR * float(np.median(distance))
    quirks: list[Quirk] = []
    kept = "kept; not filled in"
    if regular and stride > 1:
        quirks.append(Quirk(kind="thinned", count=len(steps), where=f"every {stride} steps", action=kept))
    if not regular:
        where = f"usual distance {np.median(distance):g} steps, largest {distance.max()}"
        quirks.append(Quirk(kind="uneven_sampling", count=len(steps), where=where, action=kept))
    gaps = np.flatnonzero(distance > limit)
    if len(gaps):
        longest = gaps[distance[gaps].argmax()]
        where = f"the longest from step {steps[longest]} to {steps[longest + 1]}"
        if len(gaps) > 1:
            first = ", ".join(f"{steps[at]}-{steps[at + 1]}" for at in gaps[:5])
            where += f"; {'all' if len(gaps) <= 5 else 'the first five'}: {first}"
        quirks.append(Quirk(kind="gap", count=len(gaps), where=where, action="left open"))
    return quirks
