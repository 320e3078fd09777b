"""Linear mixed model of one completed table, by restricted maximum likelihood (REML)."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import numpy as np

from lacova.analysis.design import Basis, Floats
from lacova.analysis.least_squares import Fit
from lacova.data.errors import DataError


class Reduced(NamedTuple):
    """The rows after a rotation within each cluster: q rows that the random effects reach, and the rest.

    Attributes:
        x: their design matrix (G×q×p).
        y: their outcome (G×q).
        z: design matrix of their random effects (G×q×q).
        rest: triangular factor of design matrix and outcome of all other rows ((p+1)×(p+1)), which have noise alone.
        rows: the number of all rows, N.
    """

    x: Floats
    y: Floats
    z: Floats
    rest: Floats
    rows: int


def mixed(y: Floats, basis: Basis, z: Floats, codes: Any, group: str) -> Fit:
    """Fit y = Xβ + Z b_g + ε with b_g ~ N(0, Σ) and ε ~ N(0, σ²) by REML.

    Degrees of freedom are those of Satterthwaite, one per coefficient, as in R's lmerTest.

    Args:
        y: outcome (N).
        basis: of the design matrix (N×p).
        z: design matrix of the random effects (N×q).
        codes: group of each row, 0..G−1.
        group: the name of the column of groups.
    """
    reduced = reduce_rows(y, basis.q, _scaled(z, group), codes, group)
    root = _best_root(reduced)
    gamma, factor, _ = _solve(reduced, root)
    noise = factor[-1, -1] ** 2 / (reduced.rows - len(gamma))
    dof = _satterthwaite(reduced, noise, noise * root @ root.T, basis.c)
    half = basis.c @ np.linalg.inv(factor[:-1, :-1])
    return Fit(basis.c @ gamma, noise * half @ half.T, dof)


def reduce_rows(y: Floats, x: Floats, z: Floats, codes: Any, group: str) -> Reduced:
    """Rotate the rows of each cluster so that its random effects reach q of them; no information is lost."""
    width, order = z.shape[1], np.argsort(codes, kind="stable")
    table = np.column_stack([x, y])[order]
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    if len(starts) == len(y):
        raise DataError(
            f"every {group!r} has one row, so its random effect and the noise cannot be told apart; "
            "give all rows, or leave the random effects out."
        )
    reached = np.zeros((len(starts), width, table.shape[1]))
    effects = np.zeros((len(starts), width, width))
    for g, (rows, own) in enumerate(
        zip(np.split(np.arange(len(y)), starts[1:]), np.split(z[order], starts[1:]), strict=True)
    ):
        q, r = np.linalg.qr(own)  # of a cluster with fewer rows than effects, the other reduced rows are 0
        reached[g, : len(r)] = q.T @ table[rows]
        effects[g, : len(r)] = r
        table[rows] -= q @ reached[g, : len(r)]
    rest = _triangle(np.vstack([table, np.zeros((table.shape[1],) * 2)]))
    if abs(rest[-1, -1]) < 1e-10 * np.linalg.norm(y):
        raise DataError(
            f"within each {group!r} the formula leaves nothing of the outcome, or the outcome does not change; "
            f"give one row per {group!r}, and no random effects."
        )
    return Reduced(reached[..., :-1], reached[..., -1], effects, rest, len(y))


def criterion(reduced: Reduced, root: Floats) -> float:
    """Return −2 log restricted likelihood, less a constant, at Σ = σ² L Lᵀ and the best σ² and β."""
    _, factor, log_det = _solve(reduced, root)
    diagonal = np.log(np.abs(np.diag(factor)))
    free = reduced.rows - len(factor) + 1
    return float(2.0 * free * diagonal[-1] + log_det + 2.0 * diagonal[:-1].sum())


def _solve(reduced: Reduced, root: Floats) -> tuple[Floats, Floats, float]:
    """Return β, the triangular factor of whitened X and y, and log |V/σ²|, given L."""
    effects = reduced.z @ root
    chol = np.linalg.cholesky(np.eye(len(root)) + effects @ effects.transpose(0, 2, 1))
    rows = np.linalg.solve(chol, np.concatenate([reduced.x, reduced.y[..., None]], axis=2))
    factor = _triangle(np.vstack([rows.reshape(-1, rows.shape[-1]), reduced.rest]))
    log_det = 2.0 * np.log(np.diagonal(chol, axis1=1, axis2=2)).sum()
    gamma = cast(Floats, np.linalg.solve(factor[:-1, :-1], factor[:-1, -1]))
    return gamma, factor, float(log_det)


def _best_root(reduced: Reduced) -> Floats:
    """Return L, the lower triangle at which the restricted likelihood is largest."""
    from scipy.optimize import minimize, minimize_scalar

    eye = np.eye(reduced.z.shape[1])
    # The relative standard deviation is u/(1 − u); there may be several optima, one of them at u = 0.
    grid = np.linspace(0.0, 0.99, 34)
    values = [criterion(reduced, u / (1.0 - u) * eye) for u in grid]
    best = int(np.argmin(values))
    if len(eye) == 1:
        ends = grid[max(best - 1, 0)], grid[best + 1] if best + 1 < len(grid) else 1.0 - 1e-9
        found = minimize_scalar(
            lambda u: criterion(reduced, u / (1.0 - u) * eye), bounds=ends, method="bounded", options={"xatol": 1e-10}
        )
        ratio = float(found.x / (1.0 - found.x))
        return ratio * eye
    below = np.tril_indices(2)

    def lower(entries: Floats) -> Floats:
        root = np.zeros((2, 2))
        root[below] = entries
        return root

    start = max(grid[best], 0.05)
    found = minimize(
        lambda entries: criterion(reduced, lower(entries)), (start / (1.0 - start) * eye)[below], method="L-BFGS-B",
        jac="3-point", options={"ftol": 1e-14, "gtol": 1e-8},
    )  # fmt: skip
    return lower(found.x) if found.fun < values[0] else 0.0 * eye


def _satterthwaite(reduced: Reduced, noise: float, effects: Floats, c: Floats) -> Floats:
    """Return the degrees of freedom 2 f²/(gᵀ I⁻¹ g) of each coefficient, f = its variance and g = ∇f.

    The gradient is in the variance parameters, the entries of Σ and σ², and I is their expected REML information,
    I_kl = ½ tr(P V_k P V_l) with V_k = ∂V/∂ψ_k and P = V⁻¹ − V⁻¹X Φ XᵀV⁻¹.
    """
    groups, width, columns = reduced.x.shape
    inverse = np.linalg.inv(noise * np.eye(width) + reduced.z @ effects @ reduced.z.transpose(0, 2, 1))
    gram = reduced.rest[:, :-1].T @ reduced.rest[:, :-1] / noise  # XᵀV⁻¹X of the rest, whose V is σ²
    weighted = inverse @ reduced.x  # V⁻¹X
    covariance = np.linalg.inv(_summed(reduced.x, weighted) + gram)  # Φ
    units = _derivatives(reduced.z)
    k = [_summed(weighted, unit @ weighted) for unit in units]  # K_k = XᵀV⁻¹ V_k V⁻¹X
    k[-1] = k[-1] + gram / noise
    others = reduced.rows - groups * width  # a cluster with fewer rows than effects has had rows of 0 added
    information = np.empty((len(k), len(k)))
    for i, first in enumerate(units):
        for j, second in enumerate(units):
            middle = _summed(weighted, first @ inverse @ second @ weighted)
            trace = float(np.einsum("gij,gji->", inverse @ first, inverse @ second))
            if i == j == len(k) - 1:
                middle, trace = middle + gram / noise**2, trace + others / noise**2
            information[i, j] = 0.5 * (
                trace - 2.0 * np.trace(covariance @ middle) + np.trace(covariance @ k[i] @ covariance @ k[j])
            )
    half = c @ covariance
    variance = np.einsum("ij,ij->i", half, c)
    gradient = np.stack([np.einsum("ip,pq,iq->i", half, part, half) for part in k])
    gradient = gradient / np.sqrt(np.diag(information))[:, None]
    information = information / np.sqrt(np.outer(np.diag(information), np.diag(information)))
    spread = np.einsum("ki,ki->i", gradient, np.linalg.pinv(information, hermitian=True) @ gradient)
    dof: Floats = 2.0 * variance**2 / np.maximum(spread, 1e-300)
    return np.clip(dof, 1.0, float(reduced.rows - columns))


def _derivatives(z: Floats) -> list[Floats]:
    """Return the derivatives of V in the entries of Σ and in σ², by cluster."""
    width = z.shape[2]
    derivatives = []
    for i, j in zip(*np.tril_indices(width), strict=True):
        unit = np.zeros((width, width))
        unit[i, j] = unit[j, i] = 1.0
        derivatives.append(z @ unit @ z.transpose(0, 2, 1))
    return [*derivatives, np.broadcast_to(np.eye(width), z.shape)]


def _summed(left: Floats, right: Floats) -> Floats:
    """Return Σ_g left_gᵀ right_g."""
    return left.reshape(-1, left.shape[-1]).T @ right.reshape(-1, right.shape[-1])


def _triangle(table: Floats) -> Floats:
    """Return the triangular factor R of a table QR."""
    return cast(Floats, np.linalg.qr(table, mode="r"))


def _scaled(z: Floats, group: str) -> Floats:
    """Return an orthonormal basis of the random effects' columns times √N, which changes no fit."""
    q, r = np.linalg.qr(z / np.maximum(np.abs(z).max(axis=0), 1e-300))
    if np.abs(np.diag(r)).min() < 1e-10 * np.abs(r).max():
        raise DataError(
            f"the random effects of {group!r} cannot be told apart: a slope's column is constant; take it out."
        )
    scaled: Floats = q * np.sqrt(len(z))
    return scaled
