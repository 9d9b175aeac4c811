"""Speed of fits against scipy: `OMP_NUM_THREADS=1 python -m benchmarks.fits [--chinchilla CSV]`.

(a) Approach 3 on Chinchilla's 240 points: our search and solver against 4,500 starts of L-BFGS with numeric
gradients, as Hoffmann et al. 2022 and Besiroglu et al. 2024 describe it. A sample of the starts is timed and multiplied
up, and the better objective of either side is stated: default tolerances stop early on this objective, so scipy gets
it times 1e3, which makes it slower and right.
(b) 4,000 bootstrap refits against a loop of scipy's with exact gradients, objective times 1e6, from the estimate;
again a sample, multiplied up. The same resamples must reach the same objectives.
(c) A table of 100,000 points, intervals included: time, and peak memory over that of the imports.

CPU times of this process, so that others on the machine weigh little; the points are simulated where the table of
Chinchilla's is not given.
"""

import argparse
import resource
from collections.abc import Callable
from itertools import product
from pathlib import Path
from time import process_time

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import minimize

from analysis.bootstrap import resample_counts
from analysis.fit import estimate
from analysis.fit.estimate import best_end
from analysis.fit.resampled import resample
from analysis.laws import find
from analysis.solver import huber, huber_weight

Numbers = NDArray[np.float64]

LAW, DELTA = find("chinchilla-approach-3"), 1e-3
AMOUNTS, FLOORS, EXPONENTS = range(0, 26, 5), np.arange(-1, 1.1, 0.5), np.arange(0, 2.1, 0.5)
STARTS = np.array(list(product(AMOUNTS, AMOUNTS, FLOORS, EXPONENTS, EXPONENTS)))
"""The 4,500 starts of Hoffmann et al. 2022, appendix D.3: log A, log B, log E, alpha, beta."""


def chinchilla_points(path: Path | None) -> tuple[Numbers, Numbers]:
    """`x [240, (N, D)]` and losses."""
    if path is not None:
        table = pd.read_csv(path).sort_values("loss").head(240)
        n, flops = table["Model Size"].to_numpy(), table["Training FLOP"].to_numpy()
        return np.stack([n, flops / 6 / n], axis=1), table["loss"].to_numpy()
    return simulated_points(240)


def simulated_points(count: int) -> tuple[Numbers, Numbers]:
    """`x [count, (N, D)]` and losses of a law like Chinchilla's, with noise of half a percent."""
    rng = np.random.default_rng(0)
    n = 10 ** rng.uniform(7.5, 10.2, count)
    x = np.stack([n, n * 10 ** rng.uniform(0, 2.2, count)], axis=1)
    theta = np.array([[np.log(480), np.log(2100), np.log(1.8), 0.345, 0.366]])
    return x, np.exp(LAW.log_loss(theta, x)[0] + rng.normal(0, 0.005, count))


def scipy_objective(x: Numbers, loss: Numbers, weight: Numbers) -> Callable[[Numbers], float]:
    """The objective as one would write it for scipy, for one theta, in plain numpy."""
    (log_n, log_d), log_loss = np.log(x.T), np.log(loss)

    def objective(theta: Numbers) -> float:
        a, b, e, alpha, beta = theta
        predicted = np.logaddexp(np.logaddexp(a - alpha * log_n, b - beta * log_d), e)
        return float(weight @ huber(predicted - log_loss, DELTA))

    return objective


def scipy_gradient(x: Numbers, loss: Numbers, weight: Numbers) -> Callable[[Numbers], tuple[float, Numbers]]:
    """Objective and exact gradient for one theta."""
    (log_n, log_d), log_loss = np.log(x.T), np.log(loss)

    def both(theta: Numbers) -> tuple[float, Numbers]:
        a, b, e, alpha, beta = theta
        first, second = a - alpha * log_n, b - beta * log_d
        predicted = np.logaddexp(np.logaddexp(first, second), e)
        residual = predicted - log_loss
        pull = weight * residual * huber_weight(residual, DELTA)
        shares = pull * np.exp(first - predicted), pull * np.exp(second - predicted)
        last = pull @ np.exp(e - predicted)
        slope = [shares[0].sum(), shares[1].sum(), last, -shares[0] @ log_n, -shares[1] @ log_d]
        return 1e6 * float(weight @ huber(residual, DELTA)), 1e6 * np.array(slope)

    return both


def search(x: Numbers, loss: Numbers, sample: int, rounds: int) -> list[str]:
    """(a): one row of the table."""
    ours = []
    for _ in range(rounds):
        begin = process_time()
        end = best_end(LAW, x, loss, DELTA)
        ours.append(process_time() - begin)
    objective = scipy_objective(x, loss, np.ones(len(x)))
    chosen = np.random.default_rng(1).choice(len(STARTS), sample, replace=False)
    begin = process_time()
    theirs = [
        minimize(lambda theta: 1e3 * objective(theta), STARTS[i], method="L-BFGS-B").fun / 1e3 for i in chosen
    ]
    peer = (process_time() - begin) * len(STARTS) / sample
    own = float(np.median(ours))
    return [
        f"approach 3, {len(x)} points / {len(STARTS)} L-BFGS starts with numeric gradients ({sample} timed)",
        f"{own:.3f} s / {peer:.0f} s",
        f"{peer / own:.0f}",
        f"objective {end.objective[0]:.10f} / {min(theirs):.10f}",
    ]


def bootstrap(x: Numbers, loss: Numbers, sample: int, resamples: int = 4_000) -> list[str]:
    """(b): one row of the table."""
    theta = best_end(LAW, x, loss, DELTA).theta[0]
    each = np.arange(len(x), dtype=np.intp)
    begin = process_time()
    found = resample(LAW, theta, x, loss, each, each, DELTA, resamples)
    own = process_time() - begin
    weights, _ = next(iter(resample_counts(len(x), resamples, min(500, max(1, 30_000 // x.size)))))
    weights = weights[:sample]
    begin = process_time()
    ends = [
        minimize(
            scipy_gradient(x, loss, weight), theta, jac=True, method="L-BFGS-B", options={"maxiter": 1000}
        )
        for weight in weights
    ]
    peer = (process_time() - begin) * resamples / len(weights)
    reached = [scipy_objective(x, loss, w)(t) for w, t in zip(weights, found.theta, strict=False)]
    worse = float(
        np.mean([ours > 1e-6 * end.fun * (1 + 1e-6) for ours, end in zip(reached, ends, strict=True)])
    )
    return [
        f"{resamples} bootstraps, {len(x)} points / a loop of L-BFGS with exact gradients ({len(weights)} timed)",
        f"{own:.1f} s / {peer:.0f} s",
        f"{peer / own:.1f}",
        f"share of resamples with a worse objective than scipy's: {worse:.2f}",
    ]


def large(count: int) -> list[str]:
    """(c): one row of the table."""
    x, loss = simulated_points(count)
    points = pd.DataFrame({"n": x[:, 0], "d": x[:, 1], "loss": loss})
    points["name"] = points["group"] = points.index
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = process_time()
    found = estimate(LAW, points, delta=DELTA)
    own = process_time() - begin
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    alpha = found.theta[3]
    return [
        f"a table of {count} points, 4000 resamples",
        f"{own:.0f} s",
        "",
        f"{grown:.0f} MB more, alpha {alpha:.4f}",
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chinchilla", type=Path, help="svg_extracted_data.csv of Besiroglu et al. 2024")
    parser.add_argument("--starts", type=int, default=60)
    parser.add_argument("--refits", type=int, default=60)
    parser.add_argument("--points", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    x, loss = chinchilla_points(arguments.chinchilla)
    print("| what / peer | CPU time | ratio | result |\n|---|---:|---:|---|")
    print("| " + " | ".join(search(x, loss, arguments.starts, arguments.rounds)) + " |", flush=True)
    print("| " + " | ".join(bootstrap(x, loss, arguments.refits)) + " |", flush=True)
    print("| " + " | ".join(large(arguments.points)) + " |", flush=True)


if __name__ == "__main__":
    main()
