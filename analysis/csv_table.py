"""CSV tables of results: one row per run, as people keep them beside their logs."""

from pathlib import Path

import pandas as pd

from experiments.configuration import InputError
from logs.parsing.opened import open_bytes


def read_csv(path: Path) -> pd.DataFrame:
    """The table in a CSV file, which may be compressed with gz, xz or zst.

    Raises:
        InputError: there is no such file, or it holds no such table.
    """
    with open_bytes(path) as stream:
        if b"\0" in stream.peek(4096):  # type: ignore[attr-defined]
            raise InputError(f"{path}: binary, an archive or UTF-16; give the CSV table itself, in UTF-8")
        try:
            return pd.read_csv(stream)
        except ValueError as error:  # of pandas too
            fault = " ".join(str(error).split())
            raise InputError(f"{path}: not a readable CSV table ({fault})") from None
