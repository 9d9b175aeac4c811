"""Reader of any Parquet table with a column that counts steps."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from experiments.configuration import InputError
from logs.naming import canonical_names
from logs.parsing.cells import flat_columns
from logs.parsing.opened import open_seekable
from logs.parsing.several_runs import runs_of
from logs.parsing.tables import Block, Table, block_of, table_of
from logs.readers import Sample
from logs.schema import Run

NAME = "parquet"
VERSION = "2"
FALLBACK = True

MAGIC = b"PAR1"
BATCH_ROWS = 2**17
MOST_CELLS = 2**30
"""Repeated cells take next to nothing in a file and eight bytes each in memory."""


def matches(sample: Sample) -> bool:
    """The magic number of Parquet."""
    return sample.head.startswith(MAGIC)


def read(path: Path) -> list[Run]:
    """The table as one run, or as several where a column tells them apart; see `several_runs.runs_of`.

    Raises:
        NotALog: no column counts steps.
        InputError: damaged, too large, a column stands twice, or no row has a step.
    """
    return runs_of(read_table(path))


def read_table(path: Path, names: Callable[[Sequence[str]], dict[str, str]] = canonical_names) -> Table:
    """The rows of a Parquet file and what was odd in them; see `tables.table_of` for `names`."""
    return table_of(path, _blocks(path), names, place="row")


def column_names(path: Path) -> list[str]:
    """Names of the columns; none if the file is damaged, which reading it tells."""
    try:
        with open_seekable(path) as stream:
            return list(pq.read_schema(stream).names)
    except (pa.ArrowException, OSError, InputError):
        return []


def _blocks(path: Path) -> Iterator[Block]:
    first = 1
    try:
        with open_seekable(path) as stream:
            file = pq.ParquetFile(stream)
            rows, columns = file.metadata.num_rows, file.metadata.num_columns
            if rows * columns > MOST_CELLS:
                raise InputError(
                    f"{path}: {rows:,} rows of {columns:,} columns are more than fit; split the file"
                )
            for batch in file.iter_batches(BATCH_ROWS, use_threads=False):
                flat = [
                    named
                    for column, cells in zip(batch.schema.names, batch.columns, strict=True)
                    for named in flat_columns(column, cells)
                ]
                if twice := [name for name, count in Counter(name for name, _ in flat).items() if count > 1]:
                    raise InputError(f"{path}: the column {twice[0]!r} stands twice; rename one")
                yield block_of(dict(flat), range(first, first + len(batch)))
                first += len(batch)
    except (pa.ArrowException, OSError) as error:
        what = str(error).splitlines()[0]
        raise InputError(f"{path}: not a whole Parquet file ({what}); fetch it again") from None
