"""The record of preregistrations: one file against its log, and all of its folder together."""

from pathlib import Path
from typing import Any

from analysis.forecast.preregistration import (
    BrokenError,
    Preregistration,
    calibration,
    landed_value,
    read_preregistration,
    score,
)
from experiments.configuration import InputError
from logs.lookup import stored_run


def score_file(path: Path, store: Path) -> dict[str, Any]:
    """The keys of `maquette score --json`: the score of the file, `finding`, and `calibration` over its folder.

    Files of the folder that are no preregistrations are passed over; those that were changed, or whose run is not
    stored or cannot be scored, are named in the warnings and left out.

    Raises:
        InputError: the file is not there or no preregistration, or its run is not stored.
        BrokenError: its content does not fit its hash.
    """
    found = read_preregistration(path)
    document = score(found, _landed(found, store))
    scores, left_out = [document], []
    for other in sorted(path.parent.glob("*.json")):
        if other.resolve() == path.resolve():
            continue
        try:
            one = read_preregistration(other)
        except InputError:
            continue
        except BrokenError as error:
            left_out.append(str(error))
            continue
        try:
            scores.append(score(one, _landed(one, store)))
        except InputError as error:
            left_out.append(f"{other.name} is not in the calibration: {error}")
    document["finding"] = finding(document)
    document["calibration"] = calibration(scores)
    document["warnings"] += left_out
    return document


def _landed(found: Preregistration, store: Path) -> float | None:
    return landed_value(stored_run(found.claim.run, store), found.claim)


def finding(document: dict[str, Any]) -> str:
    """The score as one sentence."""
    claim, (low, high) = document["claim"], document["interval"]
    said = (
        f"Before {claim['run']} reached step {claim['step']:,}, its {claim['metric']} was preregistered at "
        f"{document['predicted']:.3f} ({low:.3f} to {high:.3f} at 95 %) {claim['unit'].replace('/', ' per ')}"
    )
    if document["landed"] is None:
        return f"{said}; it has not landed yet."
    where = "inside" if document["inside"] else "outside"
    return f"{said}; it landed at {document['landed']:.3f} ({document['error']:+.3f}), {where} the interval."
