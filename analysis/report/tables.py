"""The report's HTML tables."""

from html import escape
from typing import Any

from analysis.curves import points
from analysis.report.elements import number, table, tag
from analysis.report.findings import short
from logs.catalogue import load_catalogue
from logs.schema import Run

TAGS = {"comparable": "good", "shape only": "shape", "not comparable": "bad"}
HEALTH = {"healthy": "good", "warning": "shape", "diverged": "bad"}
VERDICTS = {"better": "good", "worse": "bad", "within noise": "note"}


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
        rows.append(
            [
                escape(worst["aspect"]),
                own,
                escape(number(worst["public"])),
                f"{tag(TAGS[consequence], consequence)}{why}",
            ]
        )
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
    """Every mixture on every set: difference, intervals, effect size, what could have been found, verdict."""
    rows = []
    for mixture in ablation["mixtures"]:
        for name, effect in [("overall", mixture["overall"]), *mixture["domains"].items()]:
            verdict = effect["verdict"]
            rows.append(
                [
                    escape(f"{mixture['mixture']}, {name}"),
                    f"{effect['difference']:+.4f}",
                    _signed_range(effect["interval"]),
                    _signed_range(effect["bootstrap_interval"]),
                    f"{effect['effect_size']:+.1f}" if effect["effect_size"] is not None else "not known",
                    f"{effect['minimum_detectable']:.4f}"
                    if effect["minimum_detectable"] is not None
                    else "not known",
                    f"{effect['p_holm']:.2g}" if effect["p_holm"] is not None else "not known",
                    tag(VERDICTS.get(verdict, "shape"), verdict),
                ]
            )
    header = [
        "mixture, set", "difference", "95 % t", "95 % bootstrap", "in seed noise", "detectable", "p (Holm)", "verdict",
    ]  # fmt: skip
    return table(header, rows, "number dense")


def _signed_range(interval: list[float] | None) -> str:
    return f"{interval[0]:+.4f} to {interval[1]:+.4f}" if interval else "not known"


def runs_table(
    own: list[Run], public: Run, comparison: dict[str, Any], diagnosis: list[dict[str, Any]]
) -> str:
    """Size, tokens, last loss, distance in shape and verdict of every run, the public one first."""
    metric = comparison["metric"]
    pairs = {pair["own"]: pair for pair in comparison["pairs"]}
    verdicts = {document["run"]: document["verdict"] for document in diagnosis}
    rows = []
    for run in [public, *own]:
        logged = points(run, metric)
        pair, verdict = pairs.get(run.name), verdicts.get(run.name)
        tokens = logged["tokens"].iloc[-1]
        distance = "reference" if pair is None else "none"
        if pair is not None and pair["shape_distance"] is not None:
            distance = f"{100 * pair['shape_distance']:.1f} %"
        row = [
            escape(run.facts.title or run.name) if pair is None else escape(short(run.name)),
            number(float(run.facts.params_active)) if run.facts.params_active else "not stated",
            number(float(tokens)) if tokens == tokens else "not stated",
            f"{logged['value'].iloc[-1]:.3f} at step {logged['step'].iloc[-1]:,}",
            distance,
        ]
        rows.append([*row, tag(HEALTH.get(verdict, "note"), verdict) if verdict else "not looked at"])
    header = [
        "run",
        "active parameters",
        "tokens seen",
        "last loss, nats per token",
        "distance in shape",
        "log",
    ]
    return table(header, rows, "number")


def events_table(drawn: dict[str, Any]) -> str:
    """What the public run's team reported, step by step."""
    rows = [
        [f"{event['step']:,}", escape(event["kind"]), escape(event["what"]), escape(event["source"])]
        for event in drawn["events"]
    ]
    return table(["step", "kind", "what happened", "source"], rows)


def forecast_table(forecast: dict[str, Any]) -> str:
    """Every point: predicted, interval, landed."""
    rows = [
        [
            f"{100 * point['fraction']:.1f} %",
            f"{point['step']:,}",
            f"{point['predicted']:.4f}",
            f"{point['interval'][0]:.4f} to {point['interval'][1]:.4f}" if point["interval"] else "none",
            f"{point['landed']:.4f}" if point["landed"] is not None else "not yet",
            f"{point['landed'] - point['predicted']:+.4f}" if point["landed"] is not None else "",
        ]
        for point in forecast["points"]
    ]
    header = ["of the run", "step", "predicted", "95 % interval", "landed", "landed − predicted"]
    return table(header, rows, "number")


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
