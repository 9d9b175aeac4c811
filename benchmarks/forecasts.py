"""Which forecast to trust: every method by leaving the future out, and what each says of the live run's end.

`python -m benchmarks.forecasts` reads the carried figures of the public run and prints two Markdown tables.
"""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from analysis.forecast.document import ask, read_known
from analysis.forecast.methods import METHODS, Known
from analysis.forecast.scoring import score_document
from logs.ingest import ingest

RUN = "marin-535b"


def read() -> Known:
    """The public run and its ladder, ingested into a store that is thrown away."""
    with tempfile.TemporaryDirectory() as folder:
        ingest("logs/published/marin", root=Path(folder))
        return read_known(ask(RUN), Path(folder))


def score_table(document: dict[str, Any]) -> list[str]:
    """One row per test and what was known, one column per method: mean absolute error in millinats per token, and
    in brackets the share of what landed that lies inside the 95 % interval."""
    lines = [f"| left out | known | n | {' | '.join(METHODS)} |", f"|---|---|---:|{'---:|' * len(METHODS)}"]
    scores = document["scores"]
    for test, known in dict.fromkeys((score["test"], score["known"]) for score in scores):
        here = {
            score["method"]: score for score in scores if (score["test"], score["known"]) == (test, known)
        }
        best = min(score["mean_abs"] for score in here.values())
        cells = [_cell(here.get(method), best) for method in METHODS]
        lines.append(f"| {test} | {known} | {next(iter(here.values()))['n']} | {' | '.join(cells)} |")
    return lines


def _cell(score: dict[str, Any] | None, best: float) -> str:
    if score is None:
        return ""
    error = f"{1000 * score['mean_abs']:.1f}"
    inside = "no interval" if score["inside"] is None else f"{100 * score['inside']:.0f} %"
    return f"{'**' if score['mean_abs'] == best else ''}{error}{'**' if score['mean_abs'] == best else ''} ({inside})"


def end_table(known: Known) -> list[str]:
    """What each method says of the run's last step, with its 95 % interval, in nats per token."""
    lines = ["| method | what | at the end of the run | 95 % |", "|---|---|---:|---:|"]
    for method in METHODS.values():
        band = method.forecast(known, np.array([1.0]))
        lines.append(
            f"| {method.name} | {method.what} | {band.predicted[0]:.4f} | {band.low[0]:.4f} to {band.high[0]:.4f} |"
        )
    return lines


def main() -> None:
    """Print both tables."""
    known = read()
    print("\n".join([*score_table(score_document(known)), "", *end_table(known)]))


if __name__ == "__main__":
    main()
