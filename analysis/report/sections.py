"""The page's sections as HTML: headings, controls, captions and tables around the figures of `page.js`."""

from html import escape
from typing import Any

from analysis.report.overlay import MEASURES
from analysis.report.tables import (
    ablation_table,
    fit_table,
    landmarks_table,
    ledger_table,
    sources_table,
)
from logs.schema import Run

LEAD = (
    "Scale models of {public}, trained on an ordinary machine by the published recipe, their curves laid "
    "over the public ones. Levels cannot match between a model this small and one this large; the shape can."
)

X_BUTTONS = {
    "fraction": "fraction",
    "tokens": "tokens",
    "step": "steps",
    "flops": "FLOPs",
    "tokens_per_parameter": "tokens / parameter",
    "integrated_lr": "summed learning rate",
}
Y_BUTTONS = {
    "relative": "loss, relative",
    "loss": "nats",
    "bpb": "bits per byte",
    "grad_norm": "grad norm",
    "lr": "learning rate",
}

OVERLAY_CAPTION = """<p class="missing" id="overlay-missing"></p>
<p id="overlay-note"></p>
<p>Every mark is a logged value; none is smoothed. The line is for the eye only: a debiased exponential
average to both sides with a half-life of 5 % of the steps done, broken where nothing was logged. Of
{public}, {logged} losses are public, so short events may be missing there. Triangles and stars at the foot
are what its team reported: hover over them. Blue shade: the reference window. A double click shows the
whole range.</p>"""

LEDGER_TEXT = """<p>What the runs share, where they differ, and what that allows. <em>Comparable</em>:
numbers may be set side by side. <em>Shape only</em>: the form of the curves may be
compared, levels may not. <em>Not comparable</em>: leave it.</p>"""

LADDER_CAPTION = """<p>One point per run: {loss}, over the compute spent on active parameters. The line is
A·C<sup>−α</sup>, fitted in log space ({source}). The dark band draws the {runs} runs
anew with replacement ({resamples} usable resamples); the light band is Student's
interval from the residuals ({freedom}) and may leave the picture. The open circle is
what the smaller runs alone predicted for the largest.</p>
<p>Comparable: these runs with each other, since they share data, tokenizer and recipe. Not comparable:
their losses with those of the public ladder.</p>"""

ABLATION_CAPTION = """<p>Final evaluation on held-out text, minus the {baseline} mixture with the same seed:
left of zero is better. Small open marks are single seeds, large marks their mean,
bars the 95 % t interval with the seed noise pooled over mixtures. {noise} Verdicts
are corrected for {tests} comparisons (Holm).</p>
<p>Comparable: all of these, since they share size, data pool, evaluation text and seeds.</p>"""

REPRODUCE = """<p>In a fresh clone, one command installs, fetches the text, trains, compares and writes this
page:</p>
<pre><code>make repro</code></pre>
<p>The numbers behind it are in <code>reports/compare.json</code>, <code>reports/fit.json</code>,
<code>reports/ablation.json</code> and <code>reports/findings.json</code>; the same figures as pictures are
in <code>reports/figures/</code>. Change a mixture weight or a size in <code>params.yaml</code>, and only
what depends on it runs again.</p>"""


def unbroken(text: str) -> str:
    """`text` in which no line breaks before a percent sign."""
    return text.replace(" %", "\N{NO-BREAK SPACE}%")


def findings(sentences: list[str]) -> str:
    """The findings as a numbered list."""
    items = "".join(f"<li>{escape(unbroken(sentence))}</li>" for sentence in sentences)
    return _section("findings", "Three findings", f'<ol class="findings">{items}</ol>')


def overlay(own: list[Run], public: Run, comparison: dict[str, Any], drawn: dict[str, Any]) -> str:
    """Figure 1 with its axis buttons, and the table of landmarks. `drawn` is from `overlay_data`."""
    start = drawn["start"]
    measures = {key for run in drawn["runs"] for key in run["curves"]}
    controls = (
        _choice("overlay", "y", "y", {k: Y_BUTTONS[k] for k in MEASURES if k in measures}, start["y"])
        + _choice("overlay", "x", "x", X_BUTTONS, start["x"])
        + _choice("overlay", "logx", "scale", {"log": "log", "linear": "linear"}, "log")
        + _choice("overlay", "line", "line for the eye", {"shown": "on", "hidden": "off"}, "shown")
    )
    logged = drawn["runs"][0]["curves"]["loss"]["logged"]
    caption = OVERLAY_CAPTION.format(public=escape(public.name), logged=logged)
    label = f"Curves of {len(own)} own runs over {public.name}"
    command = f"maquette compare {' '.join(run.name for run in own)} --public {public.name}"
    missing = [
        f"{pair['own']}: {pair['reasons']['shape_distance']}"
        for pair in comparison["pairs"]
        if pair["reasons"]["shape_distance"]
    ]
    return _section(
        "curves",
        f"Figure 1. Own curves over {public.name}",
        _warnings(missing),
        _figure("overlay", label, controls, caption, command),
        "<h3>Gradient norm and schedule, read from the logs</h3>",
        landmarks_table(comparison),
    )


def ledger(comparison: dict[str, Any]) -> str:
    """The comparability ledger, and why there is no token shift where there is none."""
    reasons = [pair["reasons"]["token_shift"] for pair in comparison["pairs"]]
    reason = next((reason for reason in reasons if reason), None)
    shift = f"<p>No token shift or compute ratio is given: {escape(reason)}.</p>" if reason else ""
    return _section("ledger", "What may be compared", LEDGER_TEXT, ledger_table(comparison), shift)


def ladder(fit: dict[str, Any]) -> str:
    """Figure 2, its warnings and the table of parameters."""
    resamples, freedom = fit["resamples"], fit["degrees_of_freedom"]
    caption = LADDER_CAPTION.format(
        loss=fit["loss_label"],
        source=escape(fit["source"]),
        runs=fit["n_used"],
        resamples=f"all {resamples['n']}" if resamples["exact"] else resamples["n"],
        freedom=f"{freedom} degree{'s' * (freedom > 1)} of freedom",
    )
    command = f"maquette fit {fit['law']} --runs own/ladder"
    return _section(
        "scaling",
        "Figure 2. The ladder: final loss against compute",
        _figure("ladder", "Final loss against compute with a power-law fit", "", caption, command),
        _warnings(fit["warnings"]),
        fit_table(fit),
    )


def ablation(result: dict[str, Any]) -> str:
    """Figure 3, its warnings and the table of verdicts."""
    views = {"domains": "per domain, at the end", "curve": "overall, over training"}
    sd = result["seed_noise"]["mean"]["difference_sd"]
    caption = ABLATION_CAPTION.format(
        baseline=escape(result["baseline"]),
        noise=f"The standard deviation of a paired difference is {sd:.4f} bits per byte overall."
        if sd is not None
        else "With one seed each the noise between seeds is not known.",
        tests=len(result["mixtures"]) * (1 + len(result["domains"])),
    )
    label = f"Differences of the mixtures from {result['baseline']} per domain"
    command = f"maquette ablate own/ablation --baseline {result['baseline']}"
    controls = _choice("ablation", "view", "view", views, "domains")
    return _section(
        "mixtures",
        "Figure 3. What the data mixture changes",
        _figure("ablation", label, controls, caption, command),
        _warnings(result["warnings"]),
        ablation_table(result),
    )


def reproduce() -> str:
    """How to make the page anew."""
    return _section("reproduce", "How to reproduce this page", REPRODUCE)


def sources(runs: list[Run]) -> str:
    """Where the logs came from, with licences and citations."""
    return _section("sources", "Data, sources and licences", sources_table(runs))


def _section(name: str, title: str, *parts: str) -> str:
    return f'<section id="{name}"><h2>{escape(title)}</h2>{"".join(parts)}</section>'


def _warnings(texts: list[str]) -> str:
    return "".join(f'<p class="warning">{escape(text)}.</p>' for text in texts)


def _choice(figure: str, key: str, legend: str, options: dict[str, str], chosen: str) -> str:
    buttons = "".join(
        f'<button type="button" data-figure="{figure}" data-key="{key}" data-value="{value}" '
        f'aria-pressed="{str(value == chosen).lower()}">{escape(label)}</button>'
        for value, label in options.items()
    )
    return f'<fieldset class="choice"><legend>{legend}</legend>{buttons}</fieldset>'


def _figure(name: str, label: str, controls: str, caption: str, command: str) -> str:
    plot = f'<div class="plot" id="{name}" role="img" aria-label="{escape(label)}"></div>'
    download = f'<a class="download" data-figure="{name}" download="{name}.csv">Download the data (CSV)</a>'
    return (
        f'<figure><div class="controls">{controls}</div>{plot}<figcaption>{caption}</figcaption>'
        f'<div class="made">{download}<code>{escape(command)}</code></div></figure>'
    )
