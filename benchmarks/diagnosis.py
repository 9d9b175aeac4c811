"""How well the diagnosis finds events planted into real logs, and how often it sees some where there are none.

    python -m benchmarks.diagnosis PUBLIC              # tables of sensitivity and of false alarms
    python -m benchmarks.diagnosis PUBLIC --reference  # the measures of analysis/diagnosis/reference_runs.yaml

PUBLIC is the folder of public logs. Events are planted into logs of which no fault is known; whatever is found
in the log as it is counts as found before, and only what overlaps an event as found.
"""

import argparse
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import yaml

from analysis.diagnosis.diagnose import diagnose, loss_of
from analysis.diagnosis.divergence import divergence
from analysis.diagnosis.levels import level_steps
from analysis.diagnosis.reference import measured
from analysis.diagnosis.spikes import find_spikes
from analysis.diagnosis.trend import Curve, curve_of, flattened
from logs.ingest import read_logs
from logs.schema import Run

HEALTHY = {
    "build-nanogpt/log_1_epoch": "build-nanogpt, GPT-2 124M, one epoch of FineWeb-Edu 10B",
    "build-nanogpt/log_linear_lr/log.txt": "build-nanogpt, the same with a linear schedule",
    "build-nanogpt/log_no_warmup/log.txt": "build-nanogpt, the same without warm-up",
    "build-nanogpt/log_bigger/log.txt": "build-nanogpt, the run log_bigger of the same study",
    "modded-nanogpt/2024-06-06_AdamW": "modded-nanogpt records, 2024-06-06 AdamW, GPT-2 124M",
    "modded-nanogpt/2024-10-13_llmc": "modded-nanogpt records, 2024-10-13 llm.c, GPT-2 124M",
    "wandb-export/smollm3_part1.csv": "SmolLM3 3B, part 1 of stage 1, W&B export, every 13th step",
    "nemotron/super_release_nvfp4_100B.csv": "Nemotron 3 Super, 100B tokens in NVFP4, every 5th step",
    "torchtitan/losses/llama3_cuda.txt": "torchtitan, Llama 3 debug model, 100 steps",
    "marin": "Marin 535B-A23B, published tables, sampled unevenly",
}
"""Logs of which no fault is known, with what they are."""

MORE_HEALTHY = (
    "modded-nanogpt/2024-10-29_Optimizers", "modded-nanogpt/2024-12-04_ValueEmbed", "modded-nanogpt/2025-01-18",
    "multi-power-law", "olmo-ladder", "torchtitan", "nemotron", "lightning",
)  # fmt: skip
"""Folders of further logs of which no fault is known, for the false alarms only."""

PLANTED = 40
"""Events of each size and length in each log."""


def healthy_run(public: Path, place: str) -> Run:
    """The run at a place of `HEALTHY`; of several the one that the place names."""
    runs = read_logs(public / place).runs
    return next((run for run in runs if run.name == "marin-535b"), runs[0])


def reference_table(public: Path) -> str:
    """`reference_runs.yaml` as measured now."""
    table = {}
    for place, source in HEALTHY.items():
        lineage = flattened(healthy_run(public, place))
        loss = loss_of(lineage)
        if loss is None or loss.step[-1] < 1000:  # a hundred steps have no form yet
            continue
        values = measured(loss, curve_of(lineage, "grad_norm"))
        rounded = {name: float(f"{value:.4g}") for name, value in values.items() if value is not None}
        name = "marin-535b" if place == "marin" else place.removesuffix("/log.txt").removesuffix(".csv")
        table[name] = {"source": source, **rounded}
    return yaml.safe_dump(table, sort_keys=False, width=110)


def spikes_found(curve: Curve, size: float, length: int, rng: np.random.Generator) -> tuple[int, int, int]:
    """Plant spikes of `size` local standard deviations at the peak and `length` points, decaying; how many were
    planted, how many of them found, and how many findings are neither planted nor in the log as it is."""
    usable = np.arange(len(curve) // 20, len(curve) - 2 * length)
    at = np.sort(rng.choice(usable, min(PLANTED, len(usable) // (8 * length + 8)), replace=False))
    value = curve.value.copy()
    for i in at:
        value[i : i + length] += size * curve.noise[i] * np.exp(-2 * np.arange(length) / length)
    before = [(s.onset, s.end) for s in find_spikes(curve)]
    after = [(s.onset, s.end) for s in find_spikes(replace(curve, value=value))]
    hit = sum(any(lo <= i + length and i < hi for lo, hi in after) for i in at)
    known = [*before, *((int(i), int(i) + length) for i in at)]
    false = sum(not any(lo <= end and first < hi for lo, hi in known) for first, end in after)
    return len(at), hit, false


def steps_found(curve: Curve, size: float, rng: np.random.Generator) -> tuple[int, int, int]:
    """Plant one step up of `size` local standard deviations into each of `PLANTED // 4` copies, as `spikes_found`."""
    before = {f.onset_step for f in level_steps(curve, find_spikes(curve), None)}
    hit = false = 0
    places = rng.choice(np.arange(len(curve) // 5, 4 * len(curve) // 5), PLANTED // 4, replace=False)
    for i in places.tolist():
        value = curve.value.copy()
        value[i:] += size * curve.noise[i]
        changed = replace(curve, value=value)
        found = [f.onset_step for f in level_steps(changed, find_spikes(changed), None)]
        index = np.searchsorted(curve.step, [step for step in found if step not in before])
        hit += bool((np.abs(index - i) <= 16).any())
        false += int((np.abs(index - i) > 16).sum())
    return len(places), hit, false


def divergences_found(curve: Curve, lost: float, rng: np.random.Generator) -> tuple[int, int, int]:
    """End copies of the log with a rise that undoes the share `lost` of what was learned, within a twentieth."""
    hit = 0
    places = rng.choice(np.arange(len(curve) // 2, 9 * len(curve) // 10), PLANTED // 4, replace=False)
    learned = float(np.ptp(curve.trend))
    for i in places.tolist():
        rise = np.clip(np.arange(len(curve) - i) / max(1, len(curve) // 20), 0, 1)
        value = curve.value.copy()
        value[i:] += lost * learned * rise
        hit += divergence(replace(curve, value=value)) is not None
    return len(places), hit, int(divergence(curve) is not None)


def sensitivity(curves: list[Curve]) -> None:
    """Print the table of planted events."""
    plants: dict[str, Callable[..., tuple[int, int, int]]] = {
        f"spike of {length} points, {size} sd": partial(spikes_found, size=size, length=length)
        for length in (1, 8, 40)
        for size in (4, 6, 8, 12, 20)
    }
    plants |= {f"level step, {size} sd": partial(steps_found, size=size) for size in (0.5, 1, 2, 3)}
    plants |= {
        f"divergence, {lost:.0%} lost": partial(divergences_found, lost=lost) for lost in (0.1, 0.3, 0.5)
    }
    print("| planted | events | found | not planted, found |\n|---|---:|---:|---:|")
    for name, plant in plants.items():
        rng = np.random.default_rng(0)
        planted, hit, false = (sum(n) for n in zip(*(plant(curve, rng=rng) for curve in curves), strict=True))
        print(f"| {name} | {planted} | {hit / planted:.0%} | {false} |")


def false_alarms(runs: list[Run]) -> None:
    """Print what is found in logs with nothing wrong."""
    alarms: Counter[str] = Counter()
    notes: Counter[str] = Counter()
    points, wrong = 0, []
    for run in runs:
        document = diagnose(run)
        points += document["loss"]["points"] if document["loss"] else 0
        wrong += [run.name] * (document["verdict"] != "healthy")
        for finding in document["findings"]:
            (notes if finding["severity"] == "info" else alarms)[finding["kind"]] += 1
    print(f"\n{len(runs)} logs with no fault known, {points:,} points of the loss")
    print(f"Not called healthy: {len(wrong)} {wrong or ''}")
    print(f"Findings of severity warning or severe: {dict(alarms) or 'none'}")
    print(f"Notes: {', '.join(f'{n} {kind}' for kind, n in notes.most_common())}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("public", type=Path)
    parser.add_argument("--reference", action="store_true")
    arguments = parser.parse_args()
    if arguments.reference:
        print(reference_table(arguments.public), end="")
        return
    chosen = [healthy_run(arguments.public, place) for place in HEALTHY]
    losses = [loss for run in chosen if (loss := loss_of(flattened(run))) is not None and len(loss) >= 400]
    print(f"{len(losses)} logs, {sum(map(len, losses)):,} points\n")
    sensitivity(losses)
    more = [run for place in MORE_HEALTHY for run in read_logs(arguments.public / place).runs]
    false_alarms(chosen + [run for run in more if run.name not in {known.name for known in chosen}])


if __name__ == "__main__":
    main()
