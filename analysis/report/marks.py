"""What is marked on the overlay: published events of the public run, and what was found in each run's log."""

import json
from typing import Any

import numpy as np

from analysis.curves import integrated_lr
from logs.catalogue import load_catalogue
from logs.schema import Run


def public_events(public: Run) -> list[dict[str, Any]]:
    """What the catalogue says happened to the run inside its log; plans are left out."""
    entry = load_catalogue().get(public.name)
    if entry is None:
        return []
    last = int(public.table["step"].max())
    return [
        {
            **_place(public, event.step),
            "step": event.step,
            "kind": event.kind,
            "what": event.what,
            "source": event.source,
        }
        for event in entry.events
        if not event.planned and event.step <= last
    ]


def found_marks(run: Run, diagnosis: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    """What was found in the log of `run` at a known step, in order of steps."""
    documents = [document for document in diagnosis or [] if document["run"] == run.name]
    found = [f for document in documents for f in document["findings"] if f.get("onset_step") is not None]
    return [
        {
            **_place(run, f["onset_step"]),
            "steps": steps(f),
            "title": title(f),
            "severity": f["severity"],
            "says": evidence(f),
            "try_first": f["try_first"],
        }
        for f in sorted(found, key=lambda f: f["onset_step"])
    ]


def title(found: dict[str, Any]) -> str:
    """What a finding is called."""
    return str(found.get("title") or found["kind"].replace("_", " "))


def evidence(found: dict[str, Any]) -> str:
    """The evidence of a finding as text."""
    given = found["evidence"]
    if isinstance(given, dict):
        given = given.get("says", given)
    if isinstance(given, list):
        given = "; ".join(str(part) for part in given)
    return given if isinstance(given, str) else json.dumps(given)


def steps(found: dict[str, Any]) -> str:
    """`step 4,050` or `steps 4,050 to 4,085`; empty where the finding concerns the log as a whole."""
    onset, end = found.get("onset_step"), found.get("end_step")
    if onset is None:
        return ""
    return f"step {onset:,}" if end is None or end <= onset else f"steps {onset:,} to {end:,}"


def _place(run: Run, step: int) -> dict[str, Any]:
    """Steps and tokens done and learning rate summed once `step` is over; None where unknown."""
    done = step + 1 - (run.facts.steps_from or 0)
    per_step = run.facts.tokens_per_step
    summed = integrated_lr(run, np.array([float(step)]))
    return {
        "done": done,
        "tokens": done * per_step if per_step else None,
        "integrated_lr": None if summed is None else float(summed[0]),
    }
