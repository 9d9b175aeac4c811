"""Runs with known properties, made for the tests of `analysis`, and the published ones."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from logs.ingest import ingest
from logs.schema import Run, RunFacts, Schedule, make_table, unit_of
from logs.store import read_run, write_run

DOMAINS = ("code", "docs", "books", "math", "multilingual")


def build_run(name: str, columns: dict[str, object], facts: RunFacts | None = None) -> Run:
    """A run of one segment with these columns (`step` and metrics)."""
    table = make_table(pd.DataFrame(columns), name)
    metrics = [c for c in columns if c not in ("step", "tokens", "samples", "wall_time")]
    return Run(name=name, table=table, units={m: unit_of(m) for m in metrics}, facts=facts or RunFacts())


def build_training_run(
    name: str,
    params: int = 48_000,
    steps: int = 600,
    tokens_per_step: int = 2_048,
    floor: float = 1.9,
    seed: int = 0,
    shift: dict[str, float] | None = None,
    noise: float = 0.03,
    mixture: dict[str, float] | None = None,
    evaluated: int = 12,
) -> Run:
    """A small training run like those of the ladder: noisy power-law loss, linear schedule, evaluations
    per domain."""
    rng = np.random.default_rng(seed + 1000 * len(name))
    step = np.arange(steps)
    tokens = (step + 1) * tokens_per_step
    loss = (
        floor + 2.2 * (params / 5e4) ** -0.08 * (1 + tokens / 60_000) ** -0.45 + rng.normal(0, noise, steps)
    )
    warmup = steps // 100
    rise, fall = step / max(1, warmup), 1 - 0.95 * (step - warmup) / (steps - warmup)
    lr = 0.02 * np.where(step < warmup, rise, fall)
    norm = (0.3 + 0.9 * np.exp(-step / 15) + 0.2 * step / steps) * np.exp(rng.normal(0, 0.1, steps))
    columns: dict[str, object] = {
        "step": step,
        "tokens": tokens,
        "train/loss": loss,
        "grad_norm": norm,
        "lr": lr,
    }
    columns["train/loss_bpb"] = loss / np.log(2) / 2.9
    at = np.unique(np.linspace(steps // evaluated, steps, evaluated).astype(int) - 1)
    total = np.full(steps, np.nan)
    total[at] = 0
    for i, domain in enumerate(DOMAINS):
        curve = np.full(steps, np.nan)
        offset = 0.05 * i + (shift or {}).get(domain, 0.0) + rng.normal(0, 0.002)
        curve[at] = (loss - rng.normal(0, noise, steps) * 0)[at] * 0.5 + offset
        columns[f"eval/{domain}/loss_bpb"] = curve
        total[at] += curve[at] / len(DOMAINS)
    columns["eval/mean/loss_bpb"] = total
    columns["eval/mean/loss"] = total * 2
    facts = RunFacts(
        title=name.rsplit("/", 1)[-1],
        architecture="GrugMoE",
        params_total=4 * params,
        params_active=params,
        train_flops_per_token=7.0 * params,
        tokens_per_step=tokens_per_step,
        seq_len=128,
        steps_planned=steps,
        tokens_planned=steps * tokens_per_step,
        schedule=Schedule(
            shape="linear", peak_lr=0.02, warmup_steps=warmup, total_steps=steps, final_fraction=0.05
        ),
        vocab_size=1024,
        tokenizer="byte-level BPE, 1024",
        data="five-domain corpus",
        mixture=mixture,
        optimizer="MuonH, AdamH, Adam",
        precision="fp32",
        z_loss_in_loss=True,
        drops_in_training=False,
        evaluation_set="held-out documents of five domains",
        seed=seed,
    )
    return build_run(name, columns, facts)


def build_ladder() -> list[Run]:
    """Three rungs of the same study."""
    sizes = {"small": 24_000, "medium": 72_000, "large": 210_000}
    return [
        build_training_run(f"own/ladder/{rung}", params=params, steps=max(200, params // 100))
        for rung, params in sizes.items()
    ]


def build_ablation() -> list[Run]:
    """Three mixtures with two seeds each; code-heavy helps code and hurts books."""
    shifts: dict[str, dict[str, float]] = {
        "balanced": {},
        "code-heavy": {"code": -0.08, "books": 0.03},
        "books-heavy": {"books": -0.05, "code": 0.06, "math": 0.02},
    }
    return [
        build_training_run(
            f"own/ablation/{mixture}/seed-{seed}",
            params=24_000,
            steps=240,
            seed=seed,
            shift=shift,
            noise=0.01,
        )
        for mixture, shift in shifts.items()
        for seed in (0, 1)
    ]


@pytest.fixture(scope="session")
def make_run() -> Callable[..., Run]:
    """`build_run`."""
    return build_run


@pytest.fixture(scope="session")
def ladder() -> list[Run]:
    """`build_ladder`."""
    return build_ladder()


@pytest.fixture(scope="session")
def ablation() -> list[Run]:
    """`build_ablation`."""
    return build_ablation()


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory, ladder: list[Run], ablation: list[Run]) -> Path:
    """A store with the published runs, read from the carried tables, and the made-up own ones."""
    root = tmp_path_factory.mktemp("runs")
    ingest("logs/published/marin", root=root)
    for run in [*ladder, *ablation]:
        write_run(run, root)
    return root


@pytest.fixture(scope="session")
def marin(store: Path) -> Run:
    """The published 535B-A23B run."""
    return read_run("marin-535b", store)
