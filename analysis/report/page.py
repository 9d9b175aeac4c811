"""Writing the report page: one HTML file that holds its text, style, data, figures' code and Plotly."""

import json
from html import escape
from itertools import count
from pathlib import Path
from string import Template
from typing import Any

from analysis.report import sections
from analysis.report.findings import findings
from analysis.report.health import health
from analysis.report.overlay import overlay_data
from experiments.configuration import InputError, write_whole
from logs.schema import Run

BROWSER = Path(__file__).parent / "browser"
PLOTLY = Path(__file__).parent / "vendor" / "plotly-basic.min.js"
SCRIPTS = ("figure.js", "overlay.js", "ladder.js", "ablation.js", "forecast.js", "start.js")
"""In this order: each uses names of those before it."""

LOSS_LABELS = {
    "eval/mean/loss": "final evaluation loss, nats per token",
    "train/loss": "final training loss, nats per token",
}

NAMES = {
    "findings": "Overview",
    "curves": "Curves",
    "health": "Health",
    "ledger": "Ledger",
    "scaling": "Ladder",
    "mixtures": "Ablation",
    "prediction": "Forecast",
    "words": "Words",
    "reproduce": "Reproduce",
    "sources": "Sources",
}


def write_page(
    path: Path,
    own: list[Run],
    public: Run,
    comparison: dict[str, Any],
    fit: dict[str, Any] | None = None,
    ablation: dict[str, Any] | None = None,
    diagnosis: list[dict[str, Any]] | None = None,
    forecast: dict[str, Any] | None = None,
    score: dict[str, Any] | None = None,
    overlay: dict[str, Any] | None = None,
    x: str = "fraction",
    y: str = "relative",
) -> None:
    """Write one self-contained HTML page: Plotly and all data inside, nothing fetched.

    Sections whose result is None are left out, so the same page serves `maquette compare` alone.

    Args:
        diagnosis: the documents of single runs.
        score: what came of the ladder's own preregistration; the overview tells it.
        overlay: what `overlay_data` gives for these, where it is at hand.
        x: x axis of the overlay's first view, a key of `analysis.curves.AXES`.
        y: its measure, a key of `analysis.measures.MEASURES` or a metric that all runs log.

    Raises:
        InputError: no curve can be drawn as `y` over `x`.
    """
    overlay = overlay or overlay_data(own, public, comparison, diagnosis)
    check_view(overlay, x, y)
    overlay = overlay | {"start": {"x": x, "y": y}}
    data: dict[str, Any] = {"overlay": overlay, "fit": None, "ablation": ablation, "forecast": forecast}
    found = findings(comparison, fit, ablation, diagnosis, forecast, score)
    titles = {finding.section: finding.title for finding in reversed(found)}  # of two, the first
    number = (f"Figure {n}." for n in count(1))
    parts = {
        "findings": sections.overview(found, own, public, comparison, diagnosis),
        "curves": sections.overlay(own, public, comparison, overlay, titles["curves"], next(number)),
    }
    if diagnosis:
        parts["health"] = health(diagnosis, titles["health"])
    parts["ledger"] = sections.ledger(comparison)
    if fit is not None:
        data["fit"] = fit | {"loss_label": LOSS_LABELS.get(fit.get("metric") or "", "loss")}
        parts["scaling"] = sections.ladder(data["fit"], titles["scaling"], next(number))
    if ablation is not None:
        parts["mixtures"] = sections.ablation(ablation, titles["mixtures"], next(number))
    if forecast is not None:
        parts["prediction"] = sections.forecast(forecast, titles["prediction"], next(number))
    parts |= {
        "words": sections.words(),
        "reproduce": sections.reproduce(),
        "sources": sections.sources([public, *own]),
    }
    _write(path, public.facts.title or public.name, parts, data)


def _write(path: Path, public: str, parts: dict[str, str], data: dict[str, Any]) -> None:
    page = Template((BROWSER / "page.html").read_text(encoding="utf-8")).substitute(
        title=escape(f"Small replicas over {public}"),
        lead=escape(sections.LEAD.format(public=public)),
        style=(BROWSER / "page.css").read_text(encoding="utf-8"),
        contents="".join(f'<a href="#{name}">{NAMES[name]}</a>' for name in parts),
        sections="\n".join(parts.values()),
        data=json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c"),
        plotly=PLOTLY.read_text(encoding="utf-8").replace("</script", "<\\/script"),
        script="\n".join((BROWSER / name).read_text(encoding="utf-8") for name in SCRIPTS),
    )
    with write_whole(path) as stream:
        stream.write(page)


def check_view(overlay: dict[str, Any], x: str, y: str) -> None:
    """Raise InputError unless at least one curve can be drawn as `y` over `x`."""
    for given, allowed, option in ((x, overlay["axes"], "--x"), (y, overlay["measures"], "--y")):
        if given not in allowed:
            raise InputError(f"{option} {given}: not a choice; choices: {', '.join(allowed)}")
    if not any(y in run["curves"] and run["factors"][x] is not None for run in overlay["runs"]):
        reasons = "; ".join(run["missing"].get(x, f"{run['name']} has no {y}") for run in overlay["runs"])
        raise InputError(f"no curve can be drawn as {y} over {x}: {reasons}")
