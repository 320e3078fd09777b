"""Linear algebra shared by everything Gaussian: one jitter policy, Cholesky factors, no inverses of kernels."""

from __future__ import annotations

import torch
from torch import Tensor

# Added to the diagonal, relative to its mean. Chosen once, so that no bound depends on who factorised.
JITTER = {torch.float32: 1e-4, torch.float64: 1e-8}


def cholesky(matrix: Tensor, jitter: float | None = None) -> Tensor:
    """Lower Cholesky factor of `matrix` + jitter · mean(diag) · I, over the last two dimensions.

    With jittered K_SS the inducing values are u = f(S) + noise, which is still a valid variational
    family: every bound stays a bound, for any jitter.
    """
    if jitter is None:
        jitter = JITTER[matrix.dtype]
    if jitter:
        size = matrix.shape[-1]
        level = matrix.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None] if size else matrix.new_zeros(())
        matrix = matrix + jitter * level * torch.eye(size, dtype=matrix.dtype, device=matrix.device)
    factor: Tensor = torch.linalg.cholesky(matrix)
    return factor


def solve_lower(factor: Tensor, right: Tensor) -> Tensor:
    """C⁻¹ B for lower-triangular C."""
    solution: Tensor = torch.linalg.solve_triangular(factor, right, upper=False)
    return solution


def log_det(factor: Tensor) -> Tensor:
    """log |C Cᵀ| from its Cholesky factor."""
    return 2.0 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def gaussian_kl(mean_q: Tensor, var_q: Tensor, mean_p: Tensor, var_p: Tensor) -> Tensor:
    """KL[N(mean_q, var_q) ‖ N(mean_p, var_p)] elementwise, for scalar normals."""
    return 0.5 * (var_q / var_p + (mean_q - mean_p) ** 2 / var_p - 1.0 + (var_p / var_q).log())
