"""Runs that differ in their mixture only: shares of the domains in one table, losses in another."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.csv_table import read_csv
from experiments.configuration import InputError

Numbers = NDArray[np.float64]

SUM_TOLERANCE = 0.01
"""Shares written with three decimals sum to 1 only within this (RegMix's tables: 0.996 to 1.003)."""


@dataclass(frozen=True)
class MixtureTable:
    """Mixtures and what they led to.

    Attributes:
        runs: identifier of each run, unique.
        domains: names of the training domains.
        weights: `[runs, domains]` shares, each row summing to 1.
        targets: names of the losses.
        losses: `[runs, targets]`, in one unit per target.
        warnings: what was changed on reading.
    """

    runs: tuple[str, ...]
    domains: tuple[str, ...]
    weights: Numbers
    targets: tuple[str, ...]
    losses: Numbers
    warnings: tuple[str, ...]

    def loss(self, target: str) -> Numbers:
        """`[runs]` losses of one target: its name, or a part of it that no other has.

        Raises:
            InputError: no target, or several, of that name.
        """
        return self.losses[:, self.targets.index(self.find_target(target))]

    def find_target(self, name: str) -> str:
        """The full name of a target.

        Raises:
            InputError: no target, or several, of that name.
        """
        found = [t for t in self.targets if t == name] or [t for t in self.targets if name in t]
        if len(found) != 1:
            said = "is no target" if not found else f"fits {', '.join(found)}"
            raise InputError(f"--target {name} {said}; targets: {', '.join(self.targets)}")
        return found[0]


def read_mixtures(weights: Path, losses: Path) -> MixtureTable:
    """Join two CSV tables whose first column names the run; other columns are domains and targets.

    Raises:
        InputError: a file that is no such table, a run that stands twice, no run in common, a cell that is no
            number, a negative share, or shares that do not sum to 1.
    """
    shares, found = _read(weights), _read(losses)
    common = shares.index.intersection(found.index)
    if common.empty:
        raise InputError(
            f"{losses}: no run of {weights} stands in it; the first column of both names the run"
        )
    table, warnings = _checked(shares.loc[common], weights)
    left = len(shares) + len(found) - 2 * len(common)
    if left:
        warnings.append(f"{left} rows of {weights} and {losses} have no partner and were left out")
    return MixtureTable(
        tuple(common), tuple(table.columns), table.to_numpy(), tuple(found.columns),
        found.loc[common].to_numpy(), tuple(warnings),
    )  # fmt: skip


def in_order(table: MixtureTable, domains: Sequence[str], path: Path) -> Numbers:
    """`[runs, domains]` shares of `table` in the order of `domains`.

    Raises:
        InputError: the tables have different domains.
    """
    if set(table.domains) != set(domains):
        differ = sorted(set(table.domains) ^ set(domains))
        raise InputError(f"{path}: other domains than the fitted table has: {', '.join(differ)}")
    return table.weights[:, [table.domains.index(name) for name in domains]]


def _read(path: Path) -> pd.DataFrame:
    table = read_csv(path)
    table = table.set_index(table.columns[0])
    table.index = table.index.map(str)
    if table.empty:
        raise InputError(f"{path}: no rows of a run and its numbers")
    if not table.index.is_unique:
        twice = table.index[table.index.duplicated()][0]
        raise InputError(f"{path}: run {twice} stands twice in the first column")
    numbers = table.apply(pd.to_numeric, errors="coerce").astype(float)
    bad = np.argwhere(~np.isfinite(numbers.to_numpy()))
    if len(bad):
        row, column = bad[0]
        cell = table.iloc[row, column]
        raise InputError(
            f"{path}: run {table.index[row]}, {table.columns[column]}: {str(cell)!r} is no finite number"
        )
    return numbers


def _checked(shares: pd.DataFrame, path: Path) -> tuple[pd.DataFrame, list[str]]:
    if (shares < 0).any(axis=None):
        run = shares.index[(shares < 0).any(axis=1)][0]
        raise InputError(f"{path}: run {run} has a negative share")
    sums = shares.sum(axis=1)
    off = (sums - 1).abs() > SUM_TOLERANCE
    if off.any():
        run = shares.index[off][0]
        raise InputError(f"{path}: the shares of run {run} sum to {sums[run]:.6g}; they must sum to 1")
    inexact = int(((sums - 1).abs() > 1e-9).sum())
    said = [f"{path}: the shares of {inexact} runs sum to {sums.min():.4g} to {sums.max():.4g}; scaled to 1"]
    return shares.div(sums, axis=0), said if inexact else []
