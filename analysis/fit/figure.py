"""The picture of a fit, as a page that works offline or as an image."""

from pathlib import Path
from typing import IO, TYPE_CHECKING

from analysis.fit.estimate import Fit
from analysis.fit.plots import iso_flop, iso_loss, residuals
from experiments.configuration import InputError, write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from plotly.graph_objects import Figure


def draw(fit: Fit, path: Path) -> None:
    """Write residuals, and for laws of N and D iso-FLOP and iso-loss curves, to `path` (.html or .png).

    Raises:
        InputError: another ending.
    """
    if path.suffix == ".html":
        page = _page(fit).to_html(include_plotlyjs=True)
        with write_whole(path) as stream:
            stream.write(page)
    elif path.suffix == ".png":
        with write_whole(path, "wb") as stream:
            _image(fit, stream)
    else:
        raise InputError(f"--plot {path}: give a file that ends in .html or .png")


def _both(fit: Fit) -> bool:
    return fit.law.variables == ("n", "d") and fit.law.response == "loss"


def _page(fit: Fit) -> "Figure":
    from plotly.graph_objects import Contour, Figure, Scatter
    from plotly.subplots import make_subplots

    titles = ["residuals", *(["loss at equal FLOPs", "equal loss"] if _both(fit) else [])]
    figure: Figure = make_subplots(rows=1, cols=len(titles), subplot_titles=titles)
    rows = residuals(fit)
    hover = [row["name"] for row in rows]
    colour = ["#d55e00" if row["fails"] else "#0072b2" for row in rows]
    marks = {"mode": "markers", "marker": {"color": colour}, "text": hover, "showlegend": False}
    x, y = [row["size"] for row in rows], [row["residual"] for row in rows]
    figure.add_trace(Scatter(x=x, y=y, **marks), row=1, col=1)
    if _both(fit):
        for curve in iso_flop(fit):
            line = {"x": [p["n"] for p in curve["curve"]], "y": [p["loss"] for p in curve["curve"]]}
            figure.add_trace(Scatter(**line, name=f"{curve['flops']:.1e} FLOPs"), row=1, col=2)
        surface = iso_loss(fit)
        contour = Contour(x=surface["n"], y=surface["d"], z=surface["loss"], contours_coloring="lines")
        figure.add_trace(contour.update(showscale=False), row=1, col=3)
        path = {"x": [p["n"] for p in surface["path"]], "y": [p["d"] for p in surface["path"]]}
        figure.add_trace(Scatter(**path, name="compute-optimal"), row=1, col=3)
        figure.update_yaxes(type="log", row=1, col=3)
    figure.update_xaxes(type="log")
    return figure.update_layout(title=f"{fit.law.name}: {fit.law.source}")


def _image(fit: Fit, target: IO[bytes]) -> None:
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=(15, 4.5) if _both(fit) else (6, 4.5), layout="constrained")
    axes: list[Axes] = list(canvas.subplots(1, 3 if _both(fit) else 1, squeeze=False)[0])
    rows = residuals(fit)
    colour = ["#d55e00" if row["fails"] else "#0072b2" for row in rows]
    axes[0].scatter([row["size"] for row in rows], [row["residual"] for row in rows], c=colour, s=14)
    axes[0].axhline(0, color="0.7", linewidth=0.8)
    axes[0].set(xscale="log", xlabel=" x ".join(fit.law.scale), ylabel="log residual", title="residuals")
    if _both(fit):
        for curve in iso_flop(fit):
            n, loss = zip(*((p["n"], p["loss"]) for p in curve["curve"]), strict=True)
            axes[1].plot(n, loss, label=f"{curve['flops']:.1e}")
        axes[1].set(xscale="log", xlabel="N", ylabel="loss", title="loss at equal FLOPs")
        axes[1].legend(fontsize=7)
        surface = iso_loss(fit)
        lines = axes[2].contour(surface["n"], surface["d"], surface["loss"], levels=15)
        axes[2].clabel(lines, fontsize=7)
        axes[2].plot([p["n"] for p in surface["path"]], [p["d"] for p in surface["path"]], color="#d55e00")
        axes[2].set(xscale="log", yscale="log", xlabel="N", ylabel="D (tokens)", title="equal loss")
    canvas.savefig(target, format="png", dpi=130, metadata={"Software": None})
