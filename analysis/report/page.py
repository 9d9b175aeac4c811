"""Writing the report page: one HTML file that holds its text, style, data, figures' code and Plotly."""

import json
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from analysis.report import sections
from analysis.report.overlay import overlay_data
from experiments.configuration import InputError, write_whole
from logs.schema import Run

FOLDER = Path(__file__).parent

LOSS_LABELS = {
    "eval/mean/loss": "final evaluation loss, nats per token",
    "train/loss": "final training loss, nats per token",
}


def write_page(
    path: Path,
    own: list[Run],
    public: Run,
    comparison: dict[str, Any],
    fit: dict[str, Any] | None = None,
    ablation: dict[str, Any] | None = None,
    findings: list[str] | None = None,
    x: str = "fraction",
    y: str = "relative",
) -> None:
    """Write one self-contained HTML page: Plotly and all data inside, nothing fetched.

    Sections whose result is None are left out, so the same page serves `maquette compare` alone.

    Args:
        x: x axis of the overlay's first view, a key of `analysis.curves.AXES`.
        y: its measure, a key of `analysis.report.overlay.MEASURES`.

    Raises:
        InputError: no curve can be drawn as `y` over `x`.
    """
    from plotly.offline import get_plotlyjs

    overlay = overlay_data(own, public, comparison)
    check_view(overlay, x, y)
    overlay["start"] = {"x": x, "y": y}
    data: dict[str, Any] = {"overlay": overlay}
    parts = [sections.findings(findings)] if findings else []
    parts += [sections.overlay(own, public, comparison, overlay), sections.ledger(comparison)]
    if fit is not None:
        data["fit"] = fit | {"loss_label": LOSS_LABELS.get(fit.get("metric", ""), "loss")}
        parts.append(sections.ladder(data["fit"]))
    if ablation is not None:
        data["ablation"] = ablation
        parts.append(sections.ablation(ablation))
    parts += [sections.reproduce(), sections.sources([public, *own])]
    title = public.facts.title or public.name
    page = Template((FOLDER / "page.html").read_text(encoding="utf-8")).substitute(
        title=escape(f"Small replicas over {title}"),
        lead=escape(sections.LEAD.format(public=title)),
        style=(FOLDER / "page.css").read_text(encoding="utf-8"),
        sections="\n".join(parts),
        data=json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c"),
        plotly=get_plotlyjs().replace("</script", "<\\/script"),
        script=(FOLDER / "page.js").read_text(encoding="utf-8"),
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
