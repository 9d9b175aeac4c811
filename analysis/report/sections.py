"""The page's sections as HTML: headings that say the finding, controls, captions and tables around the figures."""

from html import escape
from typing import Any

from analysis.ablation import SHOWN
from analysis.report.elements import choice, figure, folded, section, unbroken, warnings
from analysis.report.findings import Finding
from analysis.report.tables import (
    ablation_table,
    events_table,
    fit_table,
    forecast_table,
    landmarks_table,
    ledger_table,
    runs_table,
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
    "reducible": "above irreducible",
    "grad_norm": "grad norm",
    "lr": "learning rate",
}

OVERLAY_CAPTION = """<p class="missing" id="overlay-missing"></p>
<p id="overlay-note"></p>
<p>Every mark is a logged value; none is smoothed. Where there is a line, it is for the eye only, and the axis says
how it was smoothed: a debiased average to both sides, broken where nothing was logged. Of {public}, {logged} losses
are public, so short events may be missing there. Of a long log {most} points are drawn, the lowest and the highest of
every stretch among them, so no spike is lost. Blue shade: the stretch in which all curves are set to 1. Drag to zoom,
double click for the whole range.</p>
<p>At the foot, hover or tap: triangles and stars are what the public run's team reported{found}.</p>"""

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

ABLATION_CAPTION = """<p id="ablation-note"></p>
<p>Each run is paired with the {baseline} run of the same seed, which starts and reads alike, so what the seed does to
both cancels. {noise} Verdicts are corrected for {tests} comparisons after {method}: the chance that a study without any
difference calls even one is {level:.0f} %.</p>
<p>Comparable: all of these, since they share size, data pool, evaluation text and seeds.</p>"""

FORECAST_CAPTION = """<p id="forecast-note"></p>
<p>Method <em>{method}</em>{metric}. Band: 95 % interval.{source}</p>"""

WORDS = """<dl>
<dt>Relative loss, distance in shape</dt><dd>A 100 k-parameter model cannot reach the loss of a 535 B one. So each loss
is divided by its own value late in training; what is left is how it got there. The distance is the root mean square
of the log ratio of two such curves: .10 means about 10 % apart.</dd>
<dt>Fraction of the schedule</dt><dd>Steps done over steps planned. At equal fractions, equal recipes have the same
learning rate relative to its peak.</dd>
<dt>Active parameters, active FLOPs</dt><dd>What one token passes through. A mixture of experts has many more.</dd>
<dt>Seed noise</dt><dd>How much two runs of one recipe differ by the seed alone. A difference below it says
nothing.</dd>
<dt>Detectable</dt><dd>The smallest true difference that this many seeds would have found in 80 % of studies. “Within
noise” does not mean “equal” where this is large.</dd>
<dt>95 % interval</dt><dd>Made so that it holds the truth in 95 % of studies.</dd>
</dl>"""

REPRODUCE = """<p>In a fresh clone, one command installs, fetches the text, trains, compares and writes this
page:</p>
<pre><code>make repro</code></pre>
<p>The numbers behind it are in <code>reports/</code>: <code>compare.json</code>, <code>findings.json</code> and one
file per further section; the same figures as pictures are in <code>reports/figures/</code>. Change a mixture weight
or a size in <code>params.yaml</code>, and only what depends on it runs again.</p>"""


def overview(
    found: list[Finding],
    own: list[Run],
    public: Run,
    comparison: dict[str, Any],
    diagnosis: list[dict[str, Any]] | None,
) -> str:
    """The findings as a numbered list that leads to their sections, and the runs at a glance."""
    items = "".join(
        f'<li><a href="#{finding.section}"><strong>{escape(unbroken(finding.title))}</strong></a> '
        f"{escape(unbroken(finding.text))}</li>"
        for finding in found
    )
    return section(
        "findings",
        "Overview",
        "What was found",
        f'<ol class="findings">{items}</ol>',
        runs_table(own, public, comparison, diagnosis or []),
    )


def overlay(
    own: list[Run], public: Run, comparison: dict[str, Any], drawn: dict[str, Any], headline: str, kicker: str
) -> str:
    """The overlay with its axis buttons, what happened, and the table of landmarks. `drawn` is from `overlay_data`."""
    start = drawn["start"]
    measures = {key for run in drawn["runs"] for key in run["curves"]}
    controls = (
        choice(
            "overlay",
            "y",
            "y",
            {k: Y_BUTTONS.get(k, k) for k in drawn["measures"] if k in measures},
            start["y"],
        )
        + choice("overlay", "x", "x", {k: X_BUTTONS.get(k, k) for k in drawn["axes"]}, start["x"])
        + choice("overlay", "logx", "x scale", {"log": "log", "linear": "linear"}, "log")
        + choice("overlay", "line", "smoothed line", {"shown": "on", "hidden": "off"}, "shown")
        + choice("overlay", "marks", "events", {"shown": "on", "hidden": "off"}, "shown")
    )
    logged = next(iter(drawn["runs"][0]["curves"].values()))["logged"] if drawn["runs"][0]["curves"] else "no"
    found = any(run["found"] for run in drawn["runs"])
    caption = OVERLAY_CAPTION.format(
        public=escape(public.name),
        logged=logged,
        most="about 2,000",
        found="; diamonds are what was found in a run's log" if found else "",
    )
    label = f"Curves of {len(own)} own runs over {public.name}"
    command = f"maquette compare {' '.join(run.name for run in own)} --public {public.name}"
    missing = [
        f"{pair['own']}: {pair['reasons']['shape_distance']}"
        for pair in comparison["pairs"]
        if pair["reasons"]["shape_distance"]
    ]
    happened = (
        folded(f"What happened in {escape(public.name)}", events_table(drawn)) if drawn["events"] else ""
    )
    return section(
        "curves",
        f"{kicker} Own curves over {public.name}",
        headline,
        warnings(missing),
        figure("overlay", label, controls, caption, command),
        happened,
        "<h3>Gradient norm and schedule, read from the logs</h3>",
        landmarks_table(comparison),
    )


def ledger(comparison: dict[str, Any]) -> str:
    """The comparability ledger, and why there is no token shift where there is none."""
    reasons = [pair["reasons"]["token_shift"] for pair in comparison["pairs"]]
    reason = next((reason for reason in reasons if reason), None)
    shift = f"<p>No token shift or compute ratio is given: {escape(reason)}.</p>" if reason else ""
    return section(
        "ledger", "Ledger", _ledger_headline(comparison), LEDGER_TEXT, ledger_table(comparison), shift
    )


def _ledger_headline(comparison: dict[str, Any]) -> str:
    worst: dict[str, str] = {}
    for pair in comparison["pairs"]:
        for row in pair["ledger"]:
            if row["consequence"] != "comparable":
                worst[row["aspect"]] = row["consequence"]
    total = len(comparison["pairs"][0]["ledger"])
    if not worst:
        return f"All {total} aspects agree: levels may be compared"
    return f"What may be compared: {len(worst)} of {total} aspects differ or are not stated"


def ladder(fit: dict[str, Any], headline: str, kicker: str) -> str:
    """The scaling fit, its warnings and the table of parameters."""
    resamples, freedom = fit["resamples"], fit["degrees_of_freedom"]
    caption = LADDER_CAPTION.format(
        loss=fit["loss_label"],
        source=escape(fit["source"]),
        runs=fit["n_used"],
        resamples=f"all {resamples['n']}" if resamples["exact"] else resamples["n"],
        freedom=f"{freedom} degree{'s' * (freedom > 1)} of freedom",
    )
    command = f"maquette fit {fit['law']} --runs own/ladder"
    return section(
        "scaling",
        f"{kicker} The ladder: final loss against compute",
        headline,
        figure("ladder", "Final loss against compute with a power-law fit", "", caption, command),
        warnings(fit["warnings"]),
        fit_table(fit),
    )


def ablation(result: dict[str, Any], headline: str, kicker: str) -> str:
    """Differences at the end and over training, their warnings and all verdicts."""
    overall = next(iter(SHOWN))
    sd, range_ = (result["seed_noise"][overall].get(key) for key in ("difference_sd", "interval"))
    noise = "The noise between seeds is not known."
    if sd is not None:
        noise = f"The noise between seeds of such a difference is {sd:.4f} bits per byte overall"
        noise += f" (95 %: {range_[0]:.4f} to {range_[1]:.4f})." if range_ else "."
    correction = result["correction"]
    caption = ABLATION_CAPTION.format(
        baseline=escape(result["baseline"]),
        noise=noise,
        tests=correction["comparisons"],
        method=escape(correction["method"]),
        level=100 * correction["level"],
    )
    label = f"Differences of the mixtures from {result['baseline']}"
    command = f"maquette ablate own/ablation --baseline {result['baseline']}"
    sets = {name: name for name in ["overall", *result["domains"]]}
    controls = choice(
        "ablation", "view", "view", {"domains": "at the end", "curve": "over training"}, "domains"
    ) + choice("ablation", "set", "set", sets, "overall")
    return section(
        "mixtures",
        f"{kicker} Ablation: what the data mixture changes",
        headline,
        figure("ablation", label, controls, caption, command),
        warnings(result["warnings"]),
        folded("All differences, intervals and verdicts", ablation_table(result), opened=True),
    )


def forecast(result: dict[str, Any], headline: str, kicker: str) -> str:
    """What was predicted, what has landed, and by how much it was off."""
    views = {"loss": "loss", "error": "landed − predicted"}
    metric = f", {result['metric']} in {result.get('unit', 'its unit')}" if result.get("metric") else ""
    caption = FORECAST_CAPTION.format(
        method=escape(result["method"]),
        metric=escape(metric),
        source=f" Ladder: {escape(result['source'])}." if result.get("source") else "",
    )
    command = f"maquette forecast {result['run']} --method {result['method']}"
    label = f"Forecast of {result['run']} and what has landed"
    return section(
        "prediction",
        f"{kicker} Forecast of {result['run']}",
        headline,
        figure("forecast", label, choice("forecast", "view", "view", views, "loss"), caption, command),
        warnings(result["warnings"]),
        folded("All points", forecast_table(result)),
    )


def words() -> str:
    """What the page's own words mean."""
    return section("words", "", "How to read the numbers", WORDS)


def reproduce() -> str:
    """How to make the page anew."""
    return section("reproduce", "", "How to reproduce this page", REPRODUCE)


def sources(runs: list[Run]) -> str:
    """Where the logs came from, with licences and citations."""
    return section("sources", "", "Data, sources and licences", sources_table(runs))
