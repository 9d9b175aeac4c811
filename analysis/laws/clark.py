"""Loss of routed models: log L = a log N + b log E^ + c log N log E^ + d, with logarithms to base 10.

E^ saturates in the number of experts E: 1 / E^ = 1 / (E - 1 + (1/E_start - 1/E_max)^-1) + 1 / E_max; N is the size of
the dense model that is routed.

Clark et al. 2022 (arXiv 2202.01169, eq. 1 and 2).
"""

import numpy as np

from analysis.laws.forms.projection import grid
from analysis.laws.law import Law, Numbers

# theta = (a, b, c, d, log E_start, log E_max)

LN10 = np.log(10.0)


def log_loss(theta: Numbers, x: Numbers) -> Numbers:
    """log L `[batch, n]` for theta `[batch, 6]` and `x [n, (N, experts)]`."""
    return linearised(theta, x)[0]


def linearised(theta: Numbers, x: Numbers) -> tuple[Numbers, Numbers]:
    """log L `[batch, n]` and its derivative `[batch, 6, n]`."""
    log_n = np.log10(x[:, 0])
    log_e, by_start, by_max = _saturated(theta[:, 4:5], theta[:, 5:], x[:, 1])
    a, b, c, d = (theta[:, i : i + 1] for i in range(4))
    turn = b + c * log_n
    slopes = [np.broadcast_to(log_n, log_e.shape), log_e, log_n * log_e, np.ones_like(log_e)]
    slopes += [turn * by_start, turn * by_max]
    return LN10 * (a * log_n + turn * log_e + d), LN10 * np.stack(slopes, axis=1)


def _saturated(log_start: Numbers, log_max: Numbers, experts: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """log10 of E^ `[batch, n]`, and its derivatives by log E_start and log E_max."""
    e_start, e_max = np.exp(log_start), np.exp(log_max)
    shift = 1 / (1 / e_start - 1 / e_max)
    reach = experts - 1 + shift
    inverse = 1 / reach + 1 / e_max
    by_start = shift**2 / (e_start * reach**2) / inverse
    by_max = (1 / e_max - shift**2 / (e_max * reach**2)) / inverse
    return -np.log10(inverse), by_start / LN10, by_max / LN10


def start(x: Numbers, loss: Numbers) -> Numbers:
    """Least squares for a to d, which are linear, over a grid of E_start and E_max: the best few `[starts, 6]`."""
    log_n, target = np.log10(x[:, 0]), np.log10(loss)
    saturations = np.log(
        grid(np.array([1.0, 1.5, 2.5, 5.0, 10.0]), np.array([64.0, 128, 256, 512, 2048, 8192]))
    )
    found = []
    for log_start, log_max in saturations:
        log_e = _saturated(np.array([[log_start]]), np.array([[log_max]]), x[:, 1])[0][0]
        design = np.stack([log_n, log_e, log_n * log_e, np.ones_like(log_n)], axis=1)
        coefficients = np.linalg.lstsq(design, target, rcond=None)[0]
        error = float(np.sum((design @ coefficients - target) ** 2))
        found.append((error, [*coefficients, log_start, log_max]))
    return np.array([theta for _, theta in sorted(found)[:8]])


LAW = Law(
    name="clark",
    variables=("n", "experts"),
    parameters=("a", "b", "c", "d", "E_start", "E_max"),
    positive=("E_start", "E_max"),
    log_loss=log_loss,
    linearised=linearised,
    start=start,
    source="Clark et al. 2022, arXiv 2202.01169, eq. 1 and 2",
    scale=("n",),
    bounds={"E_start": (1.0, 32.0), "E_max": (40.0, 1e6)},
)
