"""The findings: what compare, diagnose, fit, score, ablate and forecast found, each a headline and plain sentences."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Finding:
    """A headline that says what was found, the numbers behind it, and the section of the page that shows it."""

    section: str
    title: str
    text: str

    @property
    def sentence(self) -> str:
        """Both as one text."""
        return f"{self.title}. {self.text}"


def findings(
    comparison: dict[str, Any],
    fit: dict[str, Any] | None = None,
    ablation: dict[str, Any] | None = None,
    diagnosis: list[dict[str, Any]] | None = None,
    forecast: dict[str, Any] | None = None,
    score: dict[str, Any] | None = None,
) -> list[Finding]:
    """One finding per result that is there: first the study's own three, overlay, ladder and ablation, then its
    score, the health of its runs and the forecast of the public one."""
    found = [overlay_finding(comparison)]
    found += [ladder_finding(fit)] if fit else []
    found += [ablation_finding(ablation)] if ablation else []
    found += [score_finding(score)] if score else []
    found += [health_finding(diagnosis)] if diagnosis else []
    found += [forecast_finding(forecast)] if forecast else []
    return found


def overlay_finding(comparison: dict[str, Any]) -> Finding:
    """How far the own curves' shape is from the public one's, and for which size it is closest."""
    public, pairs = comparison["public"], comparison["pairs"]
    known = [pair for pair in pairs if pair["shape_distance"] is not None]
    if not known:
        reason = pairs[0]["reasons"]["shape_distance"]
        return Finding("curves", f"The curves cannot be laid over {public}", f"{_capital(reason)}.")
    mean = sum(p["shape"]["fraction"]["mean_log_ratio"] for p in known) / len(known)
    lo, hi = known[0]["shape"]["fraction"]["window"]
    percents = [100 * p["shape_distance"] for p in known]
    low, high = f"{min(percents):.0f}", f"{max(percents):.0f}"
    apart = f"{low} % apart" if low == high else f"{low} to {high} % apart"
    own = "The own curve falls" if len(known) == 1 else "The own curves fall"
    title = f"{own} {'later' if mean > 0 else 'earlier'} than that of {public}: {apart} in shape"
    parts = [f"{100 * p['shape_distance']:.1f} % for {short(p['own'])} {_interval(p)}" for p in known]
    text = (
        f"With each loss divided by its own value at {100 * comparison['reference_fraction']:.0f} % of the "
        f"schedule, the distance is {_join(parts)}, with 95 % intervals; root mean square between "
        f"{100 * lo:.0f} and {100 * hi:.0f} % of the schedule."
    )
    if len(known) > 1:
        first, last = known[0], known[-1]
        separate = last["interval"][1] < first["interval"][0] or first["interval"][1] < last["interval"][0]
        nearer = short((last if last["shape_distance"] < first["shape_distance"] else first)["own"])
        text += (
            f" {nearer.capitalize()} is the closer of the ladder's two ends."
            if separate
            else " Between the ladder's two ends the intervals overlap: no trend with size can be claimed."
        )
    return Finding("curves", title, text)


def health_finding(diagnosis: list[dict[str, Any]]) -> Finding:
    """How many runs are healthy, and what the others have."""
    ill = [run for run in diagnosis if run["verdict"] != "healthy"]
    if not ill:
        every = "The run is healthy" if len(diagnosis) == 1 else f"All {len(diagnosis)} runs are healthy"
        notes = sum(len(run["findings"]) for run in diagnosis)
        return Finding(
            "health", every, f"Nothing needs attention; {_count(notes, 'note')} on what was logged."
        )
    diverged = [short(run["run"]) for run in ill if run["verdict"] == "diverged"]
    if diverged:
        title = f"{_join(diverged)} diverged"
    else:
        verb = "needs" if len(ill) == 1 else "need"
        title = f"{len(ill)} of {_count(len(diagnosis), 'run')} {verb} a look; none diverged"
    parts = [f"{short(run['run'])}: {_first_problem(run)}" for run in ill]
    return Finding("health", title, "; ".join(parts) + ".")


def _first_problem(run: dict[str, Any]) -> str:
    worst = next((f for f in run["findings"] if f["severity"] != "info"), None)
    if worst is None:
        return str(run.get("says") or run["verdict"])
    name = str(worst.get("title") or worst["kind"].replace("_", " "))
    onset = worst.get("onset_step")
    return name[:1].lower() + name[1:] + (f" from step {onset:,}" if onset is not None else "")


def ladder_finding(fit: dict[str, Any]) -> Finding:
    """The exponent with its honest interval, and how well the small runs predicted the largest."""
    alpha, held = fit["parameters"]["alpha"], fit["holdout"]
    pinned = not alpha["t_interval"][0] <= 0 <= alpha["t_interval"][1]
    what = "the loss above its floor" if fit.get("floor") else "the loss"
    title = (
        f"Ten times the compute lowers {what} by {100 * (1 - 10 ** -alpha['value']):.0f} %"
        if pinned
        else "More compute lowers the loss, but so few runs do not pin down how fast"
    )
    text = (
        f"Across {fit['n_used']} runs the final loss goes with active compute as C^{-alpha['value']:.3f} "
        f"(95 % interval of the exponent {alpha['t_interval'][0]:.3f} to {alpha['t_interval'][1]:.3f} from "
        f"the residuals, {alpha['interval'][0]:.3f} to {alpha['interval'][1]:.3f} by bootstrap over the "
        "runs)."
    )
    if held.get("reason") is None:
        text += (
            f" Fitted without the largest run, the law predicts {held['predicted']:.3f} for it, "
            f"{held['extrapolation']:.1f} times beyond the largest it saw; it ended at {held['actual']:.3f} "
            f"({100 * held['relative_error']:+.1f} %)."
        )
    return Finding("scaling", title, text)


def score_finding(score: dict[str, Any]) -> Finding:
    """Whether the largest rung landed where it had been forecast before its training."""
    titles = {True: "landed inside", False: "landed outside", None: "has not reached"}
    title = f"The largest rung {titles[score['inside']]} the interval written down before its training"
    return Finding("scaling", title, score["finding"])


def ablation_finding(ablation: dict[str, Any]) -> Finding:
    """Each mixture's overall difference with its interval and verdict, and the clearest domain effect."""
    baseline, mixtures = ablation["baseline"], ablation["mixtures"]
    parts = [f"{m['mixture']} {_difference(m['overall'])}" for m in mixtures]
    seeds = min(len(m["seeds"]) for m in mixtures)
    text = (
        f"Against the {baseline} mixture, final bits per byte change by {_join(parts)}, "
        f"with {_count(seeds, 'seed')} each."
    )
    clear = [
        (m["mixture"], domain, effect)
        for m in mixtures
        for domain, effect in m["domains"].items()
        if effect["verdict"] in ("better", "worse")
    ]
    if all(m["overall"]["interval"] is None for m in mixtures):
        text += " The noise between seeds is unknown: no domain can be judged."
    elif not clear:
        text += " No single domain differs beyond seed noise after correction for multiple comparisons."
    else:
        mixture, domain, effect = max(clear, key=lambda found: abs(found[2]["difference"]))
        text += f" The clearest domain effect: {mixture} on {domain}, {_difference(effect)}."
    return Finding("mixtures", _verdicts(mixtures, baseline), text)


def _verdicts(mixtures: list[dict[str, Any]], baseline: str) -> str:
    """`code-heavy and prose-heavy are worse than balanced`, in the order better, worse, unsettled."""
    groups: dict[str, list[str]] = {}
    for mixture in mixtures:
        verdict = mixture["overall"]["verdict"]
        groups.setdefault(verdict if verdict in ("better", "worse", "within noise") else "open", []).append(
            mixture["mixture"]
        )
    said = {
        "better": f"better than {baseline} overall",
        "worse": f"worse than {baseline} overall",
        "within noise": f"within seed noise of {baseline}",
        "open": f"not settled against {baseline} yet",
    }
    parts = [
        f"{_join(groups[key])} {'is' if len(groups[key]) == 1 else 'are'} {words}"
        for key, words in said.items()
        if key in groups
    ]
    return "; ".join(parts)


def forecast_finding(forecast: dict[str, Any]) -> Finding:
    """How far what has landed lies from what was predicted."""
    run, points = forecast["run"], forecast["points"]
    landed = [p for p in points if p.get("landed") is not None]
    last = points[-1]
    ahead = f"At {100 * last['fraction']:.0f} % of the run {last['predicted']:.3f} is expected"
    if last.get("interval"):
        ahead += f" ({last['interval'][0]:.3f} to {last['interval'][1]:.3f})"
    if not landed:
        return Finding("prediction", f"Nothing of {run} has landed yet", f"{ahead}.")
    latest = landed[-1]
    error = latest["landed"] - latest["predicted"]
    mean = sum(abs(p["landed"] - p["predicted"]) for p in landed) / len(landed)
    known = [p for p in landed if p.get("interval")]
    inside = sum(p["interval"][0] <= p["landed"] <= p["interval"][1] for p in known)
    title = f"{run} lands {abs(error):.3f} {'above' if error > 0 else 'below'} its forecast"
    text = (
        f"The latest of {_count(len(landed), 'landed evaluation')}, at {100 * latest['fraction']:.0f} % of the run, is "
        f"{latest['landed']:.3f} where {latest['predicted']:.3f} was predicted; the mean absolute error is {mean:.3f}"
    )
    text += f", and {inside} of {len(known)} lie inside their 95 % interval" if known else ""
    return Finding("prediction", title, f"{text}. {ahead}.")


def short(name: str) -> str:
    """`own/ladder/small` as people say it: `small`."""
    return name.rsplit("/", 1)[-1]


def _count(n: int, thing: str) -> str:
    return f"{n} {thing}{'s' * (n != 1)}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _interval(pair: dict[str, Any]) -> str:
    lo, hi = pair["interval"]
    return f"({100 * lo:.1f} to {100 * hi:.1f})"


def _difference(effect: dict[str, Any]) -> str:
    if effect["interval"] is None:
        return f"{effect['difference']:+.4f} ({effect['verdict']})"
    lo, hi = effect["interval"]
    return f"{effect['difference']:+.4f} ({lo:+.4f} to {hi:+.4f}: {effect['verdict']})"


def _join(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
