"""A run in numbers, as `maquette logs show` tells it."""

import math
from typing import Any

import numpy as np
import pandas as pd

from logs.schema import AXES, Run


def summarise(run: Run) -> dict[str, Any]:
    """What a run holds.

    Returns:
        `name, format, rows` (raw rows), `segments`, `first_step, last_step` and `metrics` of the lineage,
        `quirks`, `inferred`, `facts` (what is known), `sources`. A metric's `n` counts its logged points,
        non-finite ones included; `min` and `max` are of the finite ones; a value that is none or non-finite
        is None.
    """
    lineage = run.lineage()
    return {
        "name": run.name,
        "format": ", ".join(dict.fromkeys(source.reader for source in run.sources)) or "unknown",
        "rows": len(run.table),
        "segments": [segment.model_dump(exclude_none=True) for segment in run.segments],
        "first_step": int(lineage["step"].iloc[0]) if len(lineage) else None,
        "last_step": int(lineage["step"].iloc[-1]) if len(lineage) else None,
        "tokens": _last_tokens(lineage),
        "metrics": {name: _metric(lineage[name], run.units[name]) for name in run.table.columns[len(AXES) :]},
        "quirks": [quirk.model_dump() for quirk in run.quirks],
        "inferred": list(run.inferred),
        "facts": run.facts.model_dump(exclude_none=True),
        "sources": [source.model_dump(exclude_none=True) for source in run.sources],
    }


def _last_tokens(lineage: pd.DataFrame) -> int | None:
    tokens = lineage["tokens"].dropna()
    return int(tokens.iloc[-1]) if len(tokens) else None


def _metric(column: pd.Series, unit: str) -> dict[str, Any]:
    values = column.array._pa_array.drop_null().to_numpy()
    finite = values[np.isfinite(values)]
    return {
        "unit": unit,
        "n": len(values),
        "first": _finite(values[0]) if len(values) else None,
        "last": _finite(values[-1]) if len(values) else None,
        "min": float(finite.min()) if len(finite) else None,
        "max": float(finite.max()) if len(finite) else None,
        "non_finite": len(values) - len(finite),
    }


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
