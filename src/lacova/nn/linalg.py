"""Linear algebra of Gaussian models: one jitter policy, Cholesky factors, no inverses of kernel matrices."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# Added to the diagonal, relative to its mean. One policy for all, so that no bound depends on the caller.
JITTER = {torch.float32: 1e-4, torch.float64: 1e-8}


@lru_cache(maxsize=64)
def identity(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the identity matrix, cached: callers must not write into it."""
    return torch.eye(size, dtype=dtype, device=device)


def cholesky(matrix: Tensor, jitter: float | None = None) -> Tensor:
    """Compute the lower Cholesky factor of `matrix` + jitter · mean(diag) · I, over the last two dimensions.

    With a jittered K_SS the inducing values are f(S) plus independent noise, still a valid variational family:
    every bound stays a bound, for any jitter.
    """
    return _cholesky_or_nan(add_jitter(matrix, jitter))


def add_jitter(matrix: Tensor, jitter: float | None = None) -> Tensor:
    """Return `matrix` + jitter · mean(diag) · I."""
    if jitter is None:
        jitter = JITTER[matrix.dtype]
    size = matrix.shape[-1]
    if not jitter or not size:
        return matrix
    mean_diagonal = matrix.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]
    return torch.addcmul(matrix, mean_diagonal, identity(size, matrix.dtype, matrix.device), value=jitter)


def whiten(matrix: Tensor, right: Tensor) -> Tensor:
    """Compute C⁻¹ B with C Cᵀ = `matrix` and B = `right`: factor, solve and gradient in one operation."""
    solution: Tensor = _Whiten.apply(matrix, right)  # type: ignore[no-untyped-call]
    return solution


def whitener(matrix: Tensor) -> Tensor:
    """Compute the lower-triangular C⁻¹ with C Cᵀ = `matrix`; log |matrix| is −2 Σ log of its diagonal."""
    inverse: Tensor = _Whitener.apply(matrix)  # type: ignore[no-untyped-call]
    return inverse


def solve_lower(factor: Tensor, right: Tensor) -> Tensor:
    """Compute C⁻¹ B for lower-triangular C = `factor` and B = `right`."""
    solution: Tensor = torch.linalg.solve_triangular(factor, right, upper=False)
    return solution


def inverse_lower(factor: Tensor) -> Tensor:
    """Compute C⁻¹ for lower-triangular C = `factor`."""
    return solve_lower(factor, identity(factor.shape[-1], factor.dtype, factor.device).expand_as(factor))


def log_det(factor: Tensor) -> Tensor:
    """Compute log |C Cᵀ| from the Cholesky factor C."""
    return 2.0 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def gaussian_kl(mean_q: Tensor, var_q: Tensor, mean_p: Tensor, var_p: Tensor) -> Tensor:
    """Compute KL[N(mean_q, var_q) ‖ N(mean_p, var_p)] of scalar normals, elementwise."""
    ratio = var_q / var_p
    return 0.5 * (ratio - ratio.log() + (mean_q - mean_p).square() / var_p - 1.0)


def log_normal(z: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    """Compute log N(z; mean, diag(var)) over the last dimension."""
    return -0.5 * ((z - mean) ** 2 / var + var.log() + math.log(2.0 * math.pi)).sum(-1)


def _cholesky_or_nan(matrix: Tensor) -> Tensor:
    """Compute the Cholesky factor; a matrix without one raises an error, or gives NaN in a compiled or captured graph.

    Raising would make the host wait for the device, which a graph cannot do.
    """
    in_graph = matrix.is_cuda and (torch.compiler.is_compiling() or torch.cuda.is_current_stream_capturing())
    if not in_graph:
        factor: Tensor = torch.linalg.cholesky(matrix)
        return factor
    factor, info = torch.linalg.cholesky_ex(matrix)
    return torch.where((info == 0)[..., None, None], factor, torch.nan)


def _matrix_gradient(inverse: Tensor, outer: Tensor) -> Tensor:
    """Compute the gradient in K = C Cᵀ of a loss whose differential is −⟨outer, C⁻¹dC⟩, from `inverse` = C⁻¹.

    C⁻¹dC = Φ(X), the lower half of X = C⁻¹ dK C⁻ᵀ with its diagonal halved. ⟨outer, Φ(X)⟩ = ½⟨S, X⟩, where S is the
    lower half of `outer`, mirrored. So the gradient is −½ C⁻ᵀ S C⁻¹.
    """
    mirrored = torch.where(_lower_triangle(outer.shape[-1], outer.device), outer, outer.mT)
    return (inverse.mT @ (mirrored @ inverse)).mul_(-0.5)


@lru_cache(maxsize=64)
def _lower_triangle(size: int, device: torch.device) -> Tensor:
    """Return a cached mask of the lower triangle, diagonal included."""
    return torch.ones(size, size, dtype=torch.bool, device=device).tril()


class _Whiten(torch.autograd.Function):
    """C⁻¹ B with a gradient by hand: autograd would solve three more systems."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, right: Tensor) -> Tensor:
        inverse = inverse_lower(_cholesky_or_nan(matrix))
        solution = inverse @ right
        ctx.save_for_backward(inverse, solution)
        return solution

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        inverse, solution = ctx.saved_tensors
        left = _matrix_gradient(inverse, gradient @ solution.mT) if ctx.needs_input_grad[0] else None
        return left, inverse.mT @ gradient if ctx.needs_input_grad[1] else None


class _Whitener(torch.autograd.Function):
    """C⁻¹ with a gradient by hand."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor) -> Tensor:
        inverse = inverse_lower(_cholesky_or_nan(matrix))
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (inverse,) = ctx.saved_tensors
        return _matrix_gradient(inverse, gradient @ inverse.mT)
