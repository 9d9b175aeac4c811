"""The report's HTML tables."""

from collections.abc import Iterable
from html import escape
from typing import Any

from analysis.report.findings import short
from logs.catalogue import load_catalogue
from logs.schema import Run

TAGS = {"comparable": "comparable", "shape only": "shape", "not comparable": "not"}


def number(value: Any) -> str:
    """A value for people: `535.3 B`, `0.05`, `yes`, `not stated`."""
    if value is None:
        return "not stated"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if isinstance(value, int) and abs(value) < 1_000_000:
        return f"{value:,}"
    for limit, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.4g} {unit}"
    return f"{value:.4g}"


def table(header: Iterable[str], rows: Iterable[Iterable[str]], kind: str = "") -> str:
    """An HTML table; the cells are HTML, the first of a row is its heading. On a phone each row becomes a
    card."""
    header = list(header)
    head = "".join(f"<th>{cell}</th>" for cell in header)
    body = ""
    for row in rows:
        first, *rest = row
        cells = "".join(
            f'<td data-label="{label}">{cell}</td>' for label, cell in zip(header[1:], rest, strict=True)
        )
        body += f"<tr><th>{first}</th>{cells}</tr>"
    return f'<table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def ledger_table(comparison: dict[str, Any]) -> str:
    """One row per aspect; the own runs share a cell where they agree. The consequence is the strictest of
    the pairs."""
    pairs = comparison["pairs"]
    rows = []
    for lines in zip(*(pair["ledger"] for pair in pairs), strict=True):
        worst = max(lines, key=lambda line: list(TAGS).index(line["consequence"]))
        values = [number(line["own"]) for line in lines]
        own = (
            values[0]
            if len(set(values)) == 1
            else "<br>".join(
                f"{escape(short(pair['own']))}: {escape(value)}"
                for pair, value in zip(pairs, values, strict=True)
            )
        )
        own = escape(own) if len(set(values)) == 1 else own
        consequence = worst["consequence"]
        why = f'<span class="why">{escape(worst["why"])}</span>' if worst["why"] else ""
        tag = f'<span class="tag {TAGS[consequence]}">{consequence}</span>{why}'
        rows.append([escape(worst["aspect"]), own, escape(number(worst["public"])), tag])
    return table(["aspect", "own", escape(comparison["public"]), "so it is"], rows)


def landmarks_table(comparison: dict[str, Any]) -> str:
    """Gradient-norm landmarks and the recovered schedule of every run, the public one first."""
    first = comparison["pairs"][0]
    runs = [(comparison["public"], first["grad_norm_landmarks"]["public"], first["schedule"]["public"])]
    runs += [
        (short(p["own"]), p["grad_norm_landmarks"]["own"], p["schedule"]["own"]) for p in comparison["pairs"]
    ]
    rows = [
        [
            escape(name),
            *(_landmark(landmarks, key) for key in ("first_peak", "minimum", "late_level")),
            _schedule(schedule),
        ]
        for name, landmarks, schedule in runs
    ]
    return table(["run", "first peak", "minimum", "late level", "learning rate"], rows, "number")


def _landmark(landmarks: dict[str, Any], key: str) -> str:
    mark = landmarks[key]
    if mark is None:
        return escape(landmarks["reason"] or "none")
    where = f"{100 * mark['fraction']:.2g} %" if mark["fraction"] is not None else f"step {mark['step']}"
    return f"{mark['value']:.3g} at {where}"


def _schedule(schedule: dict[str, Any]) -> str:
    if schedule["reason"] or schedule["shape"] is None:
        return escape(schedule["reason"] or "not known")
    final = schedule["final_fraction"]
    end = f", ends at {100 * final:.3g} % of the peak" if final is not None else ""
    warmup = f"warm-up of {schedule['warmup_steps']} step{'s' * (schedule['warmup_steps'] != 1)}"
    return f"{schedule['shape']}, peak {schedule['peak_lr']:.4g}, {warmup}{end}"


def fit_table(fit: dict[str, Any]) -> str:
    """Each parameter with both intervals."""
    rows = [
        [
            name,
            f"{p['value']:.4g}",
            _range(p["t_interval"]),
            _range(p["interval"]),
            "yes" if fit["identified"][name] else "no",
        ]
        for name, p in fit["parameters"].items()
    ]
    return table(
        ["parameter", "estimate", "95 % from residuals", "95 % bootstrap over runs", "identified"],
        rows,
        "number",
    )


def _range(interval: list[float]) -> str:
    return f"{interval[0]:.4g} to {interval[1]:.4g}"


def ablation_table(ablation: dict[str, Any]) -> str:
    """Overall effect of each mixture with its verdict."""
    rows = []
    for mixture in ablation["mixtures"]:
        effect = mixture["overall"]
        interval = (
            f"{effect['interval'][0]:+.4f} to {effect['interval'][1]:+.4f}"
            if effect["interval"]
            else "not known"
        )
        detectable = (
            f"{effect['minimum_detectable']:.4f}" if effect["minimum_detectable"] is not None else "not known"
        )
        needed = effect["seeds_needed"]
        verdict = effect["verdict"]
        if verdict == "needs more seeds" and needed:
            verdict = f"needs more seeds (about {needed} to settle a difference of this size)"
        rows.append(
            [
                escape(mixture["mixture"]),
                f"{effect['difference']:+.4f}",
                interval,
                detectable,
                escape(verdict),
            ]
        )
    return table(
        ["mixture", "overall difference", "95 % interval", "smallest detectable", "verdict"], rows, "number"
    )


def sources_table(runs: list[Run]) -> str:
    """Every run with its sources, licence and citation."""
    rows, catalogue = [], load_catalogue()
    for run in runs:
        entry = catalogue.get(run.name)
        licence = entry.licence.value if entry else next((s.licence for s in run.sources if s.licence), None)
        citation = (
            entry.address.value if entry else next((s.citation for s in run.sources if s.citation), None)
        )
        files = "<br>".join(
            f"<code>{escape(s.path)}</code> sha256 {escape(s.sha256[:12])}" for s in run.sources
        )
        text = number(run.facts.data)
        rows.append(
            [
                f"{escape(run.facts.title or run.name)}<br><code>{escape(run.name)}</code>",
                files or "made in this project",
                escape(text),
                escape(licence or "own run, Apache-2.0; the text it was trained on keeps its own licences"),
                _address(citation),
            ]
        )
    return table(["run", "log", "training text", "licence", "citation"], rows)


def _address(citation: str | None) -> str:
    if citation is None:
        return "own run"
    if citation.startswith("https://"):
        return f'<a href="{escape(citation)}">source</a>'
    return escape(citation)
