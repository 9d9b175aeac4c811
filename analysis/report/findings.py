"""The three findings: plain sentences with numbers, from what compare, fit and ablate found."""

from typing import Any


def findings(comparison: dict[str, Any], fit: dict[str, Any], ablation: dict[str, Any]) -> list[str]:
    """One sentence or two on the overlay, on the ladder and on the ablation, in that order."""
    return [overlay_finding(comparison), ladder_finding(fit), ablation_finding(ablation)]


def overlay_finding(comparison: dict[str, Any]) -> str:
    """How far the own curves' shape is from the public one's, and for which size it is closest."""
    public, pairs = comparison["public"], comparison["pairs"]
    known = [pair for pair in pairs if pair["shape_distance"] is not None]
    if not known:
        return f"The curves cannot be laid over {public}: {pairs[0]['reasons']['shape_distance']}."
    parts = [f"{100 * p['shape_distance']:.1f} % for {short(p['own'])} {_interval(p)}" for p in known]
    mean = sum(p["shape"]["fraction"]["mean_log_ratio"] for p in known) / len(known)
    lo, hi = known[0]["shape"]["fraction"]["window"]
    where = f"between {100 * lo:.0f} and {100 * hi:.0f} % of the schedule"
    pace = "later" if mean > 0 else "earlier"
    text = (
        f"Each loss divided by its own value at {100 * comparison['reference_fraction']:.0f} % of the "
        f"schedule, the own curves differ in shape from {public} by {_join(parts)} "
        f"(root mean square {where}); they fall {pace}."
    )
    if len(known) > 1:
        first, last = known[0], known[-1]
        apart = last["interval"][1] < first["interval"][0] or first["interval"][1] < last["interval"][0]
        nearer = short((last if last["shape_distance"] < first["shape_distance"] else first)["own"])
        text += (
            f" {nearer.capitalize()} is the closer of the ladder's two ends."
            if apart
            else " Between the ladder's two ends the intervals overlap: no trend with size can be claimed."
        )
    return text


def ladder_finding(fit: dict[str, Any]) -> str:
    """The exponent with its honest interval, and how well the small runs predicted the largest."""
    alpha = fit["parameters"]["alpha"]
    text = (
        f"Across {fit['n_used']} runs the final loss goes with active compute as C^{-alpha['value']:.3f} "
        f"(95 % interval of the exponent {alpha['t_interval'][0]:.3f} to {alpha['t_interval'][1]:.3f} from "
        f"the residuals, {alpha['interval'][0]:.3f} to {alpha['interval'][1]:.3f} by bootstrap over the "
        "runs)."
    )
    if alpha["t_interval"][0] <= 0 <= alpha["t_interval"][1]:
        text += " So few runs do not pin the exponent down."
    held = fit["holdout"]
    if held.get("reason") is None:
        text += (
            f" Fitted without the largest run, the law predicts {held['predicted']:.3f} for it, "
            f"{held['extrapolation']:.1f} times beyond the largest it saw; it ended at {held['actual']:.3f} "
            f"({100 * held['relative_error']:+.1f} %)."
        )
    return text


def ablation_finding(ablation: dict[str, Any]) -> str:
    """Each mixture's overall difference with its interval and verdict, and the clearest domain effect."""
    baseline = ablation["baseline"]
    parts = [f"{m['mixture']} {_difference(m['overall'])}" for m in ablation["mixtures"]]
    seeds = min(len(m["seeds"]) for m in ablation["mixtures"])
    text = (
        f"Against the {baseline} mixture, final bits per byte change by {_join(parts)}, "
        f"with {seeds} seed{'s' * (seeds > 1)} each."
    )
    clear = [
        (m["mixture"], domain, effect)
        for m in ablation["mixtures"]
        for domain, effect in m["domains"].items()
        if effect["verdict"] in ("better", "worse")
    ]
    if all(m["overall"]["interval"] is None for m in ablation["mixtures"]):
        return f"{text} With one seed the noise between seeds is unknown: no domain can be judged."
    if not clear:
        return f"{text} No single domain differs beyond seed noise after correction for multiple comparisons."
    mixture, domain, effect = max(clear, key=lambda found: abs(found[2]["difference"]))
    return f"{text} The clearest domain effect: {mixture} on {domain}, {_difference(effect)}."


def short(name: str) -> str:
    """`own/ladder/small` as people say it: `small`."""
    return name.rsplit("/", 1)[-1]


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
