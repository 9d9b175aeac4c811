"""Newton-Schulz iteration: an approximate polar factor of many matrices at once, by matrix products only."""

from typing import Final

import torch
from torch import Tensor

Coefficients = tuple[tuple[float, float, float], ...]

# By name, one (a, b, c) per iteration. `quintic`: the five published for the Marin 535B-A23B run, for its five
# iterations of a polynomial of degree five (grugmuon_hero.py).
COEFFICIENTS: Final[dict[str, Coefficients]] = {
    "quintic": (
        (4.0848, -6.8946, 2.9270),
        (3.9505, -6.3029, 2.6377),
        (3.7418, -5.5913, 2.3037),
        (2.8769, -3.1427, 1.2046),
        (2.8366, -3.0525, 1.2012),
    ),
}

PRECISIONS: Final[dict[str, torch.dtype]] = {
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}

_CACHED_ELEMENTS: Final = 2**17  # of a part; measured on 32 to 128 rows


def newton_schulz(
    matrices: Tensor,
    coefficients: Coefficients = COEFFICIENTS["quintic"],
    dtype: torch.dtype = torch.bfloat16,
) -> Tensor:
    """Push all singular values of each matrix towards 1, keeping its singular vectors.

    X = N / (|N|_F + 1e-8), then per iteration A = X X^T, X <- a X + (b A + c A^2) X. The iteration commutes
    with transposition, so tall matrices are turned to keep the Gram matrix A small, and [out, in] and
    [in, out] storage give the same result.

    Args:
        matrices: `[..., rows, columns]`, every leading index one matrix; fp32 or fp64.
        coefficients: one (a, b, c) per iteration; see `COEFFICIENTS`.
        dtype: precision of the products. The published run used bfloat16.

    Returns:
        The factors, shape and dtype of `matrices`. A zero matrix stays zero.

    Source: the MuonH update of the Marin 535B-A23B run (grugmuon_hero.py); Muon, Jordan et al. 2024.
    """
    if not matrices.numel():
        return matrices  # a rank may have been given no matrix of these
    norms = torch.linalg.vector_norm(matrices, dim=(-2, -1), keepdim=True)
    tall = matrices.shape[-2] > matrices.shape[-1]
    X = (matrices / (norms + 1e-8)).to(dtype)
    X = (X.mT if tall else X).reshape(-1, min(matrices.shape[-2:]), max(matrices.shape[-2:]))
    # On a CPU, all iterations over a part that stays in cache take two thirds of the time of all at once.
    part = max(1, _CACHED_ELEMENTS // X[0].numel()) if X.device.type == "cpu" else len(X)
    X = torch.cat([_iterate(some, coefficients) for some in X.split(part)])
    X = X.view(*matrices.shape[:-2], *X.shape[-2:])
    return (X.mT if tall else X).to(matrices.dtype)


def _iterate(X: Tensor, coefficients: Coefficients) -> Tensor:
    """The iterations on `X` `[count, rows, columns]`, rows <= columns."""
    for a, b, c in coefficients:
        A = X @ X.mT
        X = torch.baddbmm(X, torch.baddbmm(A, A, A, beta=b, alpha=c), X, beta=a)
    return X
