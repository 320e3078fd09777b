"""Least squares on one completed table, with independent rows or with rows that belong to clusters."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lacova.analysis.design import Basis, Floats
from lacova.data.errors import DataError, listed

LEAST = 1e-10  # share of a direction of the design that a cluster must leave to the others


class Fit(NamedTuple):
    """Coefficients of one table and their uncertainty.

    Attributes:
        coefficients: estimates (p).
        covariance: of the estimates (p×p).
        dof: degrees of freedom of each standard error (p).
        wishart: the degrees of freedom of the covariance of some coefficients, given their columns, where it varies
            like a Wishart matrix; None where a joint test has the F distribution with `dof`.
    """

    coefficients: Floats
    covariance: Floats
    dof: Floats
    wishart: Callable[[list[int]], float] | None = None

    def joint(self, columns: list[int]) -> tuple[Floats, float]:
        """Return covariance and degrees of freedom with which a Wald statistic over k has the F distribution."""
        covariance = self.covariance[np.ix_(columns, columns)]
        if self.wishart is None:
            return covariance, float(self.dof[columns].min())
        eta = self.wishart(columns)  # Hotelling: (η − k + 1)/(η k) times the statistic is F(k, η − k + 1)
        dof = eta - len(columns) + 1
        if dof <= 1e-6:
            raise DataError(
                f"there are too few clusters to test {len(columns)} coefficients together: their covariance has "
                f"{eta:.1f} degrees of freedom; test fewer at once, or, in a linear regression, use random effects."
            )
        return covariance * eta / dof, dof


def least_squares(y: Floats, basis: Basis) -> Fit:
    """Fit by least squares; rows are independent and vary alike."""
    q, c = basis
    rows, columns = q.shape
    gamma = q.T @ y
    variance = float(np.square(y - q @ gamma).sum()) / (rows - columns)
    return Fit(c @ gamma, variance * c @ c.T, np.full(columns, float(rows - columns)))


def clustered(y: Floats, basis: Basis, codes: npt.NDArray[np.intp], names: list[str], cluster: str) -> Fit:
    """Fit by least squares; rows of different clusters are independent, those of a cluster need not be.

    The variance is CR2 of Bell and McCaffrey (2002), which has no bias if rows are independent and vary alike, and the
    degrees of freedom are theirs. CR1 with G − 1 degrees of freedom rejects too often where clusters are few, differ in
    size, or few of them have a treatment.

    Args:
        y: outcome (N).
        basis: of the design matrix (N×p).
        codes: cluster of each row, 0..G−1.
        names: of the coefficients.
        cluster: the name of the column of clusters.
    """
    gamma = basis.q.T @ y
    return robust(basis.c @ gamma, y - basis.q @ gamma, basis, codes, names, cluster)


def robust(
    coefficients: Floats, residuals: Floats, basis: Basis, codes: npt.NDArray[np.intp], names: list[str], cluster: str
) -> Fit:
    """Return the fit with the variance CR2, given its residuals; of weighted least squares, all on the weighted scale.

    Args:
        coefficients: β̂ (p).
        residuals: e (N).
        basis: of the design matrix (N×p).
        codes: cluster of each row, 0..G−1.
        names: of the coefficients.
        cluster: the name of the column of clusters.
    """
    q, c = basis
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    m = np.stack([part.T @ part for part in np.split(q[order], starts[1:])])  # M_g = Q_gᵀ Q_g
    scores = np.add.reduceat((q * residuals[:, None])[order], starts)  # Q_gᵀ e_g
    # Q_gᵀ (I − Q_g Q_gᵀ)^(−1/2) = B_g Q_gᵀ with B_g = (I − M_g)^(−1/2)
    values, vectors = np.linalg.eigh(np.eye(len(c)) - m)
    _refuse_single(vectors.transpose(0, 2, 1)[values < LEAST] @ c.T, np.linalg.norm(c, axis=1), names, cluster)
    b = np.einsum("gij,gj,gkj->gik", vectors, 1.0 / np.sqrt(np.maximum(values, LEAST)), vectors)
    adjusted = np.einsum("gij,gj->gi", b, scores)
    dof = np.array([wishart_dof(m, b, row[None]) for row in c])
    covariance = c @ (adjusted.T @ adjusted) @ c.T
    return Fit(coefficients, covariance, dof, lambda columns: wishart_dof(m, b, c[columns]))


def _refuse_single(only: Floats, lengths: Floats, names: list[str], cluster: str) -> None:
    """Refuse coefficients that load on a direction of the design that a single cluster has (directions×p)."""
    alone = [names[j] for j in np.unique(np.nonzero(np.abs(only) > 1e-8 * lengths)[1])]
    if alone:
        raise DataError(
            f"the coefficient(s) of {listed(alone)} rest on one {cluster!r} alone, so nothing shows how they vary "
            f"between several; take the term out, merge levels, or, in a linear regression, give random effects: "
            f"(1 | {cluster})."
        )


def wishart_dof(m: Floats, b: Floats, contrasts: Floats) -> float:
    """Return the degrees of freedom η of the Wishart matrix that the CR2 variance of some coefficients resembles.

    Of one coefficient, η is Bell and McCaffrey's; of several, Tipton and Pustejovsky's (2015). Were rows independent
    with variance 1, the variance is D = Σ_g u_g u_gᵀ with normal u_g = L B_g Q_gᵀ e_g. On the scale where E D = I,
    η = k(k + 1)/Σ_st Var(D_st).

    Args:
        m: Q_gᵀ Q_g of each cluster (G×p×p).
        b: (I − M_g)^(−1/2) (G×p×p).
        contrasts: L, the coefficients in terms of the basis (k×p).
    """
    mean = _moments(m, b, contrasts)[0]
    own, a, n = _moments(m, b, np.linalg.solve(np.linalg.cholesky(mean), contrasts))[1:]
    inner = np.einsum("gsi,gti->gst", a, a)
    # Cov(u_gs, u_ht) = [g = h] w_gsᵀ M_g w_gt − a_gsᵀ a_ht, and Var(D_st) by Isserlis' theorem
    first = np.einsum("gs,gt->st", *[np.einsum("gss->gs", own)] * 2)
    cross = np.einsum("gs,gt->st", np.einsum("gss->gs", own), np.einsum("gss->gs", inner))
    both = np.einsum("stij,stij->st", n, n) + np.einsum("stij,stji->st", n, n)
    variance = first - 2.0 * cross + np.square(own).sum(0) - 2.0 * (own * inner).sum(0) + both
    k = len(contrasts)
    return float(k * (k + 1) / max(variance.sum(), 1e-300))


def _moments(m: Floats, b: Floats, contrasts: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """Return E D (k×k), and with w_gs = B_g ℓ_s and a_gs = M_g w_gs: w_gsᵀ a_gt (G×k×k), a (G×k×p), Σ_g a_gs a_gtᵀ."""
    w = np.einsum("gij,sj->gsi", b, contrasts)
    a = np.einsum("gij,gsj->gsi", m, w)
    own = np.einsum("gsi,gti->gst", w, a)
    n = np.einsum("gsi,gtj->stij", a, a)
    return own.sum(0) - np.einsum("gsi,gti->st", a, a), own, a, n
