"""The section on what was found in the logs: a verdict per run, findings with causes and advice, phases."""

from html import escape
from typing import Any

from analysis.report.elements import copyable, folded, number, section, table, tag
from analysis.report.findings import short
from analysis.report.marks import evidence, steps, title

MOST_ALIKE = 3
"""Findings of one kind that are told in full; of more, the steps are listed."""

TAGS = {"healthy": "good", "warning": "shape", "diverged": "bad", "severe": "bad", "info": "note"}

TEXT = """<p>Every log was searched for spikes, divergence, plateaus, growing gradient norms, level steps, slow
stretches, missing or doubled rows. Each finding names its evidence, its likely causes in the order to check them, and
what to try first. The same findings are marked at the foot of Figure 1.</p>"""


def health(diagnosis: list[dict[str, Any]], headline: str) -> str:
    """One part per run; where something is wrong, the worst of it is unfolded."""
    command = copyable(f"maquette diagnose {' '.join(run['run'] for run in diagnosis)}")
    parts = [_run(run) for run in diagnosis]
    return section(
        "health", "What was found in the logs", headline, TEXT, *parts, f'<p class="made">{command}</p>'
    )


def _run(run: dict[str, Any]) -> str:
    verdict = tag(TAGS.get(run["verdict"], "note"), run["verdict"])
    phases = " · ".join(f"{escape(p['name'])} {p['first_step']:,}–{p['last_step']:,}" for p in run["phases"])
    by_kind: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for found in run["findings"]:
        by_kind.setdefault((found["severity"], found["kind"]), []).append(found)
    kinds = "".join(
        _kind(severity, found, opened=i == 0 and severity != "info")
        for i, ((severity, _), found) in enumerate(by_kind.items())
    )
    said = f"<p>{escape(_sentence(run['says']))}</p>" if run.get("says") else ""
    return (
        f'<div class="run"><h3>{escape(short(run["run"]))} {verdict}</h3>{said}'
        f"{f'<p class=phases>Phases, in steps: {phases}.</p>' if phases else ''}{kinds}{_reference(run)}</div>"
    )


def _kind(severity: str, found: list[dict[str, Any]], opened: bool) -> str:
    """All findings of one kind: what shows them, why, what to do."""
    times = f" ({len(found)} times)" if len(found) > 1 else ""
    where = steps(found[0]) if len(found) == 1 else ""
    summary = (
        f"{tag(TAGS.get(severity, 'shape'), severity)} {escape(title(found[0]))}{times}"
        f"{f' <span class=where>{where}</span>' if where else ''}"
    )
    told = "".join(f"<li>{escape(_told(one))}</li>" for one in found[:MOST_ALIKE])
    rest = ", ".join(f"{f['onset_step']:,}" for f in found[MOST_ALIKE:] if f["onset_step"] is not None)
    more = f"<li>Also at steps {rest}.</li>" if rest else ""
    causes = "".join(f"<li>{escape(cause)}</li>" for cause in found[0]["causes"])
    sources = "; ".join(found[0].get("sources") or [])
    return folded(
        summary,
        f"<ul>{told}{more}</ul>",
        f"<p><strong>Check, in this order:</strong></p><ol>{causes}</ol>" if causes else "",
        f"<p><strong>Try first:</strong> {escape(found[0]['try_first'])}</p>",
        f'<p class="why">Sources: {escape(sources)}.</p>' if sources else "",
        opened=opened,
    )


def _told(found: dict[str, Any]) -> str:
    where = steps(found)
    return _sentence(f"{where[:1].upper()}{where[1:]}: {evidence(found)}" if where else evidence(found))


def _reference(run: dict[str, Any]) -> str:
    """The band of healthy public runs, where the diagnosis holds the run against one."""
    measures = (run.get("reference") or {}).get("measures") or []
    rows = [
        [
            escape(str(m["means"])),
            number(m["value"]),
            f"{number(m['low'])} to {number(m['high'])}",
            tag("good", "inside") if m["inside"] else tag("shape", "outside"),
        ]
        for m in measures
    ]
    if not rows:
        return ""
    return folded(
        "Beside healthy public runs", table(["measure", "this run", "public runs", "band"], rows, "number")
    )


def _sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text}."
