"""How often 95 % intervals hold the truth: `python -m benchmarks.fit_coverage [--studies 100] [LAW...]`.

For each law runs are simulated from known parameters with noise, fitted, and the intervals of each parameter asked
whether they hold what they should. Prints one row per law, shares over studies and parameters.
"""

import argparse
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.fit import fit_law
from analysis.laws import Law, find

Numbers = NDArray[np.float64]

NOISE = 0.003
"""Standard deviation of log loss from run to run, as between seeds of small models."""


@dataclass(frozen=True)
class Design:
    """Which runs a study has (`points`, without the response) and the `truth` they are made from."""

    points: Callable[[], pd.DataFrame]
    truth: dict[str, float]
    noise: float = NOISE


def crossed(**axes: Numbers | list[float]) -> pd.DataFrame:
    """All combinations of the axes, one run each."""
    mesh = np.meshgrid(*axes.values(), indexing="ij")
    return named(pd.DataFrame({name: column.ravel() for name, column in zip(axes, mesh, strict=True)}))


def named(points: pd.DataFrame) -> pd.DataFrame:
    """Each row a run of its own."""
    names = [f"run {i}" for i in range(len(points))]
    return points.assign(name=names, group=names)


def sizes_and_tokens() -> pd.DataFrame:
    """48 runs: eight sizes by six numbers of tokens."""
    return crossed(n=np.geomspace(2e7, 2e10, 8), d=np.geomspace(2e8, 4e11, 6))


def repeated() -> pd.DataFrame:
    """120 runs that see 1 to 60 epochs of three amounts of unique tokens."""
    runs = crossed(n=np.geomspace(2e7, 2e10, 5), unique=[1e8, 1e9, 1e10], epochs=[1, 2, 3, 5, 9, 16, 30, 60])
    return runs.assign(d=runs["unique"] * runs["epochs"])


def triad() -> pd.DataFrame:
    """144 routed models: active size, tokens, sparsity and cost per active parameter."""
    runs = crossed(
        n=np.geomspace(5e7, 5e9, 4), d=np.geomspace(1e9, 4e11, 4), sparsity=[1, 4, 16], cost=[1, 1.4, 2]
    )
    return runs.assign(n_total=runs["n"] * runs["sparsity"], flops_per_token=6 * runs["n"] * runs["cost"])


def schedules() -> pd.DataFrame:
    """14 curves of 60 rows: constant, cosine, linear and sudden falls, of several lengths."""
    curves = []
    for length in (12_000, 24_000, 48_000):
        step = np.linspace(2_000, length, 60)
        done = (step - 2_000) / (length - 2_000)
        late = np.clip((done - 0.7) / 0.3, 0, 1)
        shapes = {
            "constant": np.ones_like(done),
            "cosine": 0.55 + 0.45 * np.cos(np.pi * done),
            "linear": 1 - 0.9 * done,
            "late": 1 - 0.9 * late,
        }
        if length > 12_000:
            shapes["fall"] = np.where(done > 0.4, 0.3, 1.0)
        for shape, factor in shapes.items():
            name = f"{shape} {length}"
            curves.append(pd.DataFrame({"step": step, "lr": 3e-4 * factor, "group": name, "name": name}))
    return pd.concat(curves, ignore_index=True)


def heuristic() -> pd.DataFrame:
    """48 sweeps: tokens, width and batch."""
    return crossed(d=np.geomspace(1e9, 1e12, 4), width=[512, 1024, 2048, 4096], batch=[2.5e5, 1e6, 4e6])


EXPERTS = [1.0, 2, 4, 8, 16, 32, 64, 128, 256, 512]
CHINCHILLA = {"A": 480.0, "B": 2100.0, "E": 1.8, "alpha": 0.345, "beta": 0.366}

DESIGNS = {
    "power-law": Design(lambda: crossed(flops=np.geomspace(1e17, 1e22, 16)), {"A": 85.0, "alpha": 0.09}),
    "power-law-floor": Design(
        lambda: crossed(flops=np.geomspace(1e15, 1e23, 32)), {"A": 90.0, "alpha": 0.1, "E": 1.6}
    ),
    "chinchilla-approach-3": Design(sizes_and_tokens, CHINCHILLA),
    "kaplan": Design(sizes_and_tokens, {"N_c": 8.8e13, "D_c": 5.4e13, "alpha_N": 0.076, "alpha_D": 0.095}),
    "over-training": Design(sizes_and_tokens, {"a": 770.0, "b": 2400.0, "E": 1.8, "eta": 0.178}),
    "data-constrained": Design(
        repeated, {"A": 521.0, "B": 1488.0, "E": 1.87, "alpha": 0.353, "beta": 0.353, "R_N": 5.31, "R_D": 15.4}
    ),
    "tissue": Design(schedules, {"L0": 2.8, "A": 0.6, "C": 0.5, "alpha": 0.45}, 0.001),
    "multi-power": Design(
        schedules,
        {"L0": 2.8, "A": 0.6, "B": 450.0, "C": 2.0, "alpha": 0.45, "beta": 0.6, "gamma": 0.6},
        0.001,
    ),
    "clark": Design(
        lambda: crossed(n=np.geomspace(1.5e7, 1.3e9, 6), experts=EXPERTS),
        {"a": -0.084, "b": -0.123, "c": 0.0104, "d": 1.12, "E_start": 2.4, "E_max": 218.0},
    ),
    "joint-moe": Design(
        lambda: crossed(n=np.geomspace(2e7, 3e9, 5), d=np.geomspace(1e9, 3e11, 5), experts=EXPERTS[:6]),
        {"a": 36.0, "b": 36.0, "c": 1.36, "alpha": 0.19, "beta": 0.18, "gamma": 0.01, "zeta": -0.026, "delta": 0.23,
         "omega": -0.55},
    ),
    "moe-triad": Design(triad, CHINCHILLA | {"gamma": 0.12, "mu": 0.05}),
    "step-law-lr": Design(sizes_and_tokens, {"c": 1.79, "alpha": -0.713, "beta": 0.307}, 0.1),
    "step-law-batch": Design(lambda: crossed(d=np.geomspace(1e9, 1e12, 16)), {"c": 0.58, "beta": 0.571}, 0.1),
    "marin-lr": Design(heuristic, {"c": 0.0876, "alpha": -0.3461, "beta": -0.3448}, 0.1),
}  # fmt: skip
"""By law: runs and published or plausible parameters. Approaches 1 and 2 give no parameters of a simulated truth."""


def theta_of(law: Law, truth: dict[str, float]) -> Numbers:
    """The internal parameters `[p]` of reported ones."""
    return np.array([np.log(truth[name]) if name in law.positive else truth[name] for name in law.parameters])


def simulated(name: str, seed: int, noise: float | None = None) -> pd.DataFrame:
    """A study of the law's design; `noise` other than the design's if given."""
    law, design = find(name), DESIGNS[name]
    points = design.points()
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    exact = law.log_loss(theta_of(law, design.truth)[None], law.x(points))[0]
    points[law.response] = np.exp(
        exact + rng.normal(0, design.noise if noise is None else noise, len(points))
    )
    return points


def coverage(name: str, studies: int, resamples: int, first: int = 0) -> dict[str, Numbers]:
    """Share of studies whose 95 % interval holds the truth, by kind of interval, for each parameter `[p]`."""
    law, truth = find(name), DESIGNS[name].truth
    held: dict[str, list[list[bool]]] = {"interval": [], "bca_interval": [], "t_interval": []}
    for seed in range(first, first + studies):
        found = fit_law(law, simulated(name, seed), resamples=resamples)["parameters"]
        for kind, rows in held.items():
            rows.append([found[p][kind][0] <= truth[p] <= found[p][kind][1] for p in law.parameters])
    return {kind: np.mean(rows, axis=0) for kind, rows in held.items()}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("laws", nargs="*", default=list(DESIGNS))
    parser.add_argument("--studies", type=int, default=100)
    parser.add_argument("--resamples", type=int, default=500)
    arguments = parser.parse_args()
    print(
        "| law | runs | percentile | BCa | Student | lowest percentile of a parameter |\n|---|---:|---:|---:|---:|---|"
    )
    for name in arguments.laws:
        shares = coverage(name, arguments.studies, arguments.resamples)
        lowest = int(shares["interval"].argmin())
        worst = f"{find(name).parameters[lowest]} {shares['interval'][lowest]:.2f}"
        runs = DESIGNS[name].points()["group"].nunique()
        means = " | ".join(
            f"{shares[kind].mean():.3f}" for kind in ("interval", "bca_interval", "t_interval")
        )
        print(f"| {name} | {runs} | {means} | {worst} |", flush=True)


if __name__ == "__main__":
    main()
