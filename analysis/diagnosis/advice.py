"""Likely causes and first remedies of each kind of finding, from `advice.yaml`."""

from functools import lru_cache
from pathlib import Path
from typing import Any

from analysis.diagnosis.finding import Finding
from experiments.configuration import Config, parse, read_yaml

FILE = Path(__file__).with_name("advice.yaml")


class Advice(Config):
    """What a colleague would say of one kind of finding: `causes` in the order to check them."""

    title: str
    causes: tuple[str, ...]
    try_first: str
    sources: tuple[str, ...]


@lru_cache(maxsize=1)
def advice_by_kind() -> dict[str, Advice]:
    """All advice, by kind.

    Raises:
        InputError: the file has an unknown key, or lacks one.
    """
    return {kind: parse(Advice, entry, f"{FILE.name}, {kind}") for kind, entry in read_yaml(FILE).items()}


def advised(finding: Finding) -> dict[str, Any]:
    """The finding as a JSON document, with causes and what to try first."""
    advice = advice_by_kind()[finding.kind]
    return {
        "kind": finding.kind,
        "title": advice.title,
        "onset_step": finding.onset_step,
        "peak_step": finding.peak_step,
        "end_step": finding.end_step,
        "severity": finding.severity,
        "evidence": {
            "says": finding.says,
            "metric": finding.metric,
            **finding.numbers,
            "rows": [[step, value] for step, value in finding.rows],
        },
        "causes": list(advice.causes),
        "try_first": advice.try_first,
        "sources": list(advice.sources),
    }
