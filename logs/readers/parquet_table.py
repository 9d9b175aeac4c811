"""Reader of any Parquet table with a column that counts steps."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from experiments.configuration import InputError
from logs.naming import canonical_names
from logs.parsing.opened import open_seekable
from logs.parsing.tables import Block, block_of, flat_columns, run_of, table_of
from logs.readers import Sample
from logs.schema import Quirk, Run

NAME = "parquet"
VERSION = "1"
FALLBACK = True

MAGIC = b"PAR1"
BATCH_ROWS = 2**17
MOST_CELLS = 2**30
"""Repeated cells take next to nothing in a file and eight bytes each in memory."""


def matches(sample: Sample) -> bool:
    """The magic number of Parquet."""
    return sample.head.startswith(MAGIC)


def read(path: Path) -> list[Run]:
    """The table as one run, its name left to whoever ingests it.

    Raises:
        NotALog: no column counts steps.
        InputError: damaged, too large, or no row has a step.
    """
    return [run_of(*read_table(path))]


def read_table(
    path: Path, names: Callable[[Sequence[str]], dict[str, str]] = canonical_names
) -> tuple[pd.DataFrame, list[Quirk]]:
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
                cells = {
                    name: cell
                    for column, cells in zip(batch.schema.names, batch.columns, strict=True)
                    for name, cell in flat_columns(column, cells).items()
                }
                yield block_of(cells, range(first, first + len(batch)))
                first += len(batch)
    except (pa.ArrowException, OSError) as error:
        what = str(error).splitlines()[0]
        raise InputError(f"{path}: not a whole Parquet file ({what}); fetch it again") from None
