"""The report's figures as PNGs, for papers, READMEs and printing: matplotlib, no browser."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.report.findings import short
from experiments.configuration import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OWN_COLOURS = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#8a6d00",
)  # Okabe-Ito, yellow darkened for white paper
OWN_DASHES = ("-", "--", ":", "-.", (0, (5, 1)))
OWN_MARKERS = "osD^P"
INK = "#1d2226"


def write_pictures(
    folder: Path, overlay: dict[str, Any], fit: dict[str, Any] | None, ablation: dict[str, Any] | None
) -> list[Path]:
    """Write `overlay.png` and, of what is there, `ladder.png` and `ablation.png` into `folder`; the same input gives
    the same bytes."""
    figures = {"overlay": _overlay(overlay)}
    if fit is not None:
        figures["ladder"] = _ladder(fit)
    if ablation is not None:
        figures["ablation"] = _ablation(ablation)
    return [_save(folder / f"{name}.png", figure) for name, figure in figures.items()]


def _save(path: Path, figure: "Figure") -> Path:
    with write_whole(path, "wb") as stream:
        figure.savefig(stream, format="png", dpi=160, metadata={"Software": None})
    return path


def _axes(width: float = 8.0, height: float = 4.6) -> "tuple[Figure, Axes]":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#dfe3e6", linewidth=0.7)
    axes.set_axisbelow(True)
    return figure, axes


def _overlay(overlay: dict[str, Any]) -> "Figure":
    figure, axes = _axes()
    own_index, starts, heights = 0, [], []
    for run in overlay["runs"]:
        curve, factor = run["curves"].get("relative"), run["factors"]["fraction"]
        index = own_index
        own_index += not run["public"]
        if curve is None or factor is None:
            continue
        x, y = np.array(curve["done"]) * factor, np.array(curve["value"])
        colour = INK if run["public"] else OWN_COLOURS[index % 5]
        axes.plot(
            x,
            y,
            "x" if run["public"] else ".",
            color=colour,
            markersize=3 if run["public"] else 2,
            alpha=0.35,
        )
        line_x, line_y = (
            np.insert(x, curve["breaks"], np.nan),
            np.insert(np.array(curve["line"]), curve["breaks"], np.nan),
        )
        dash: Any = "-" if run["public"] else OWN_DASHES[index % 5]
        axes.plot(
            line_x,
            line_y,
            linestyle=dash,
            color=colour,
            linewidth=1.8,
            label=run["title"] if run["public"] else short(run["name"]),
        )
        if not run["public"]:
            starts.append(x[0])
            heights += [y.min(), y.max()]
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    if starts:
        axes.set_xlim(0.8 * min(starts), 1.1)
        axes.set_ylim(0.93 * min(heights), 1.08 * max(heights))
    if overlay["reference"]:
        axes.axvspan(*overlay["reference"], color="#0072b2", alpha=0.12, linewidth=0)
    axes.set_xlabel("fraction of the schedule")
    axes.set_ylabel("loss / its value in the shaded window")
    axes.legend(frameon=False)
    return figure


def _ladder(fit: dict[str, Any]) -> "Figure":
    figure, axes = _axes()
    flops = [row["flops"] for row in fit["band"]]
    for key, alpha, label in (
        ("t_interval", 0.1, "95 % from residuals"),
        ("interval", 0.25, "95 % bootstrap over runs"),
    ):
        low, high = zip(*(row[key] for row in fit["band"]), strict=True)
        axes.fill_between(flops, low, high, color="#0072b2", alpha=alpha, linewidth=0, label=label)
    axes.plot(flops, [row["loss"] for row in fit["band"]], color="#0072b2", linewidth=1.6, label="power law")
    losses = [point["loss"] for point in fit["points"]]
    for i, point in enumerate(fit["points"]):
        axes.plot(point["flops"], point["loss"], OWN_MARKERS[i % 5], color=OWN_COLOURS[i % 5], markersize=8)
        axes.annotate(
            short(point["name"]), (point["flops"], point["loss"]), xytext=(8, 6), textcoords="offset points"
        )
    if fit["holdout"].get("reason") is None:
        largest = max(point["flops"] for point in fit["points"])
        style: dict[str, Any] = {"markerfacecolor": "none", "markeredgecolor": "#b34700", "markersize": 11}
        label = "predicted without the largest run"
        axes.plot(largest, fit["holdout"]["predicted"], "o", label=label, **style)
    spread = max(losses) - min(losses)
    axes.set_xscale("log")
    axes.set_ylim(min(losses) - 0.6 * spread, max(losses) + 0.6 * spread)
    axes.set_xlabel("active training FLOPs (without the LM head)")
    axes.set_ylabel("final loss, nats per token")
    axes.legend(frameon=False)
    return figure


def _ablation(ablation: dict[str, Any]) -> "Figure":
    figure, axes = _axes()
    names = ["overall", *ablation["domains"]]
    count = len(ablation["mixtures"])
    for index, mixture in enumerate(ablation["mixtures"]):
        effects = [mixture["overall"], *(mixture["domains"][d] for d in ablation["domains"])]
        y = -np.arange(len(names)) + 0.12 * (count - 1) - 0.24 * index
        colour, marker = OWN_COLOURS[index % 5], OWN_MARKERS[index % 5]
        for row, effect in enumerate(effects):
            if effect["interval"]:
                axes.plot(effect["interval"], [y[row], y[row]], color=colour, linewidth=1.5)
            axes.plot(
                effect["per_seed"],
                [y[row]] * effect["n"],
                marker,
                color=colour,
                markerfacecolor="white",
                markersize=4,
                linestyle="",
            )
        axes.plot(
            [e["difference"] for e in effects],
            y,
            marker,
            color=colour,
            markersize=7,
            linestyle="",
            label=mixture["mixture"],
        )
    axes.axvline(0, color=INK, linewidth=1)
    axes.set_yticks(-np.arange(len(names)), names)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(f"bits per byte minus {ablation['baseline']} (left of zero is better)")
    axes.legend(frameon=False)
    return figure
