"""Numbers that a row lacks together: their correlation, in the prior and in the posterior.

Mean and variance of a gap are those of the entry by itself. What is here says how the gaps of a row go together: the
standardised numbers e of a row are N(0, R), with R the identity where a number is observed. Along paths
(`paths.py`), e are the innovations, what is new at a visit.

Λ is a precision matrix of all numbers. Given the observed ones, the precision of the gaps is the part of Λ that belongs
to them, Λ_u. The prior's R is its inverse, scaled to a diagonal of 1; Λ_u is scaled along, to the standard deviations
of the gaps. For the posterior, the Gaussian measurements add their information: with y = B x + W z + ε, z ~ N(0, I) and
ε_d ~ N(0, ψ_d), gaps and z have the joint precision

    [Λ_u 0; 0 I] + Σ_d m_d (B_d, W_d)ᵀ(B_d, W_d)/ψ_d

with m_d = 1 where y_d is observed. Its inverse has the covariance of the gaps, z integrated out. Two numbers whose sum
is measured go against each other then, however independent they are in the prior. Without measurements R is the
prior's.

Visit-constant numbers and those that vary are two groups, which are independent of each other. The measurements of the
first are patients' averages.
"""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lacova.covariates.linear_model import LinearModel, fit_linear_model, of_gaps
from lacova.covariates.paths import along, before, correlations_before, memory
from lacova.data.batches import Batch
from lacova.data.covariate_space import CovariateSpace
from lacova.data.distributions import Dependence, FactorisedDistribution
from lacova.nn.linalg import cholesky, identity, inverse_lower, solve_lower

PRIOR_VISITS = 0.5  # pseudo-visits at the mean, which shrink the average of a patient with few visits
MIN_PAIRS = 20  # rows that show two numbers, for these to have a correlation
MOST_OFF = 0.98  # most of what an eigenvalue of the correlation may lie below 1
TINY = 1e-3


class Group(NamedTuple):
    """Numbers that may depend on each other.

    Attributes:
        columns: indices in X (k,).
        static: whether they are constant within patients.
    """

    columns: list[int]
    static: bool


def groups_of(space: CovariateSpace, without: int | None = None) -> list[Group]:
    """Return the groups of two numbers or more, the column `without` aside."""
    groups = (
        Group([q for q in space.continuous if space.static[q] == static and q != without], static)
        for static in (False, True)
    )
    return [group for group in groups if len(group.columns) > 1]


def coupled(space: CovariateSpace, x_mask: Tensor) -> bool:
    """Return whether a row lacks two numbers of a group; True where to ask would make the host wait."""
    if x_mask.device.type != "cpu":
        return bool(groups_of(space))
    return any(bool(((~x_mask[:, group.columns]).sum(1) > 1).any()) for group in groups_of(space))


def of_precision(precision: Tensor, space: CovariateSpace) -> Dependence:
    """Return the dependence of numbers with these precision matrices (N×K×K), up to the scale of each number."""
    return scaled(precision, covariance_of(precision), space)


def covariance_of(precision: Tensor) -> Tensor:
    """Return the inverses of precision matrices (N×K×K)."""
    root = inverse_lower(cholesky(precision, 0.0))
    return root.mT @ root


def scaled(precision: Tensor, covariance: Tensor, space: CovariateSpace) -> Dependence:
    """Return the dependence of numbers with these precision matrices and their inverses, the variances scaled to 1."""
    sd = covariance.diagonal(dim1=-2, dim2=-1).sqrt()
    scale = sd[:, :, None] * sd[:, None, :]
    return Dependence(
        cholesky(covariance / scale, 0.0), precision * scale, space.on(precision.device).continuous
    )  # fmt: skip


def without_factors(information: Tensor, gradient: Tensor, numbers: int) -> tuple[Tensor, Tensor]:
    """Integrate z ~ N(0, I) out of what measurements say of numbers and z.

    Args:
        information: their part of the joint precision (N×(K+r)×(K+r)).
        gradient: of the log-likelihood at 0 (N×(K+r)).
        numbers: K.

    Returns:
        The same of the numbers alone (N×K×K, N×K).
    """
    k, own = numbers, information[:, :numbers, :numbers]
    factors = information.shape[1] - k
    if not factors:
        return own, gradient
    of_z = information[:, k:, k:] + identity(factors, information.dtype, information.device)
    root = solve_lower(cholesky(of_z, 0.0), torch.cat([information[:, k:, :k], gradient[:, k:, None]], 2))
    of_x, of_gradient = root[:, :, :k], root[:, :, k:]
    return own - of_x.mT @ of_x, gradient[:, :k] - (of_x.mT @ of_gradient)[..., 0]


class NumberDependence(nn.Module):
    """Λ, of the numbers of a covariate prior, in the scale of single entries.

    What the patient's other visits leave of two numbers may go together otherwise than the numbers do as a whole: such
    as two blood pressures whose noise is independent. So there are two matrices, and a row has a mixture of them: the
    less its gaps are told by other visits, the more of the second.

    Args:
        space: layout of X.
    """

    precision: Tensor
    alone: Tensor
    left: Tensor
    marginal: Tensor

    def __init__(self, space: CovariateSpace) -> None:
        super().__init__()
        self.space = space
        k = len(space.continuous)
        self.register_buffer("precision", torch.eye(k, dtype=torch.float64))
        self.register_buffer("alone", torch.eye(k, dtype=torch.float64))
        self.register_buffer("left", torch.ones(k, dtype=torch.float64))  # share of the variance that visits leave
        self.register_buffer("marginal", torch.ones(k, dtype=torch.float64))  # variance

    @torch.no_grad()
    def learn(self, group: Group, left: Tensor, alone: Tensor) -> None:
        """Fit the matrices of a group by EM.

        Args:
            group: the numbers.
            left: what other visits and categories leave of each (n×k), in standard deviations; NaN where missing.
            alone: what categories leave of it.
        """
        place = torch.tensor([self.space.continuous.index(q) for q in group.columns])
        for precision, values in ((self.precision, left), (self.alone, alone)):
            precision[place[:, None], place] = torch.linalg.inv(_correlation(values))

    def of_rows(self, gaps: Tensor, var: Tensor) -> Tensor:
        """Return Λ_u of rows (N×K×K), whose inverse has a diagonal of 1, given gaps and their prior variances (N×K)."""
        told = 1.0 - self.left
        share = ((var / self.marginal - self.left) / told.clamp_min(TINY)).clamp(0.0, 1.0)
        share = torch.where(gaps & (told > TINY), share, 0.0).sum(1) / (gaps & (told > TINY)).sum(1).clamp_min(1)
        mixed = self.precision + share[:, None, None] * (self.alone - self.precision)
        return of_precision(of_gaps(mixed, gaps), self.space).precision

    @torch.no_grad()
    def given(self, batch: Batch, prior: FactorisedDistribution) -> Dependence | None:
        """Return the dependence of the gaps of a batch; None if no row has two.

        Args:
            batch: the rows.
            prior: p(x_u | x_o) of single entries.
        """
        if not coupled(self.space, batch.x_mask):
            return None
        at = self.space.on(batch.x.device).continuous
        gaps, var = ~batch.x_mask.index_select(1, at), prior.var.index_select(1, at).double()
        return of_precision(self.of_rows(gaps, var), self.space).to(batch.x.dtype)


def _correlation(values: Tensor) -> Tensor:
    """Return the correlation of columns with gaps (n×k, NaN), 0 of pairs that few rows show together."""
    known = values.isfinite().double()
    several = known.sum(1) > 1
    enough = known[several].mT @ known[several] >= MIN_PAIRS
    if not (enough & ~torch.eye(len(enough), dtype=torch.bool)).any():
        return torch.eye(values.shape[1], dtype=values.dtype)
    covariance = fit_linear_model(values[several], values[several][:, :0], 0).covariance
    sd = covariance.diagonal().sqrt()
    off = torch.where(enough, covariance / sd / sd[:, None], 0.0).fill_diagonal_(0.0)
    least = float(torch.linalg.eigvalsh(off)[0])
    # Zeros in place of correlations may leave no positive matrix: the others shrink until there is one.
    return torch.eye(len(off), dtype=off.dtype) + min(1.0, MOST_OFF / max(-least, TINY)) * off


class PosteriorDependence(nn.Module):
    """R of the posterior of patients' numbers, given which covariates and which measurements a row has.

    It starts as that of the prior. Of independent rows, `LinearPosterior` has it.

    Args:
        prior: the dependence of the covariate prior.
        measurements: D, the number of Gaussian measurements.
        factors: r, the number of factors.
    """

    loadings: Tensor

    def __init__(self, prior: NumberDependence, measurements: int, factors: int) -> None:
        super().__init__()
        self.space, self.factors = prior.space, factors
        self.prior = copy.deepcopy(prior)
        k = len(self.space.continuous)
        # (B_d, W_d)/√ψ_d of numbers that vary, and of visit-constant ones.
        self.register_buffer("loadings", torch.zeros(2, measurements, k + factors, dtype=torch.float64))

    @torch.no_grad()
    def set_loadings(self, group: Group, model: LinearModel) -> None:
        """Take over what measurements say of a group."""
        place = torch.tensor([self.space.continuous.index(q) for q in group.columns])
        k, per_noise = len(group.columns), model.loadings / model.noise.sqrt()[:, None]
        own = self.loadings[int(group.static)]
        own[:, place] = per_noise[:, :k]
        own[:, len(self.space.continuous) :] = per_noise[:, k:]

    @torch.no_grad()
    def forward(self, batch: Batch, measured: Tensor, prior: FactorisedDistribution) -> Dependence | None:
        """Return the dependence of the gaps of a batch; None if no row has two.

        Args:
            batch: the rows.
            measured: which Gaussian measurements are observed (N×D).
            prior: p(x_u | x_o) of the rows.
        """
        if not coupled(self.space, batch.x_mask):
            return None
        at = self.space.on(batch.x.device).continuous
        gaps, k = ~batch.x_mask.index_select(1, at), len(at)
        total = self.prior.of_rows(gaps, prior.var.index_select(1, at).double())
        outer = self.loadings[:, :, :, None] * self.loadings[:, :, None, :]  # 2×D×(k+r)×(k+r)
        static = self.space.on(batch.x.device).static.index_select(0, at)
        sd = (prior.var * memory(prior).remainder).sqrt().index_select(1, at).double()
        shown = measured.double()
        observed = [(~static, shown)]
        if any(self.space.static):
            count = shown.new_zeros(batch.patients, shown.shape[1]).index_add(0, batch.patient, shown)
            observed.append((static, (count / (count + PRIOR_VISITS)).index_select(0, batch.patient)))
        for own_outer, (columns, seen) in zip(outer, observed, strict=False):
            information = torch.tensordot(seen, own_outer, dims=1)
            own, _ = without_factors(information, seen.new_zeros(len(seen), k + self.factors), k)
            scale = torch.where(gaps & columns, sd, 0.0)
            total = total + scale[:, :, None] * own * scale[:, None]
        return of_precision(total, self.space).to(batch.x.dtype)


# Draws, densities and divergences


def correlated(eps: Tensor, distribution: FactorisedDistribution, batch: Batch) -> Tensor:
    """Turn independent standard normals (…×N×Q) into standardised draws, correlated within rows and along paths."""
    dependence = distribution.dependence
    if dependence is not None:
        own = eps.index_select(-1, dependence.columns)
        eps = eps.index_copy(-1, dependence.columns, (dependence.factor @ own[..., None])[..., 0])
    return along(eps, distribution, batch)


def log_determinant(dependence: Dependence | None, free: Tensor) -> Tensor:
    """Return ½ log |R| of each row (N,), over the numbers in a mask (N×K), which has all of a group or none."""
    if dependence is None:
        return torch.zeros(len(free), device=free.device)
    return torch.where(free, dependence.factor.diagonal(dim1=-2, dim2=-1).log(), 0.0).sum(1)


def log_density_of_rows(dependence: Dependence, e: Tensor, free: Tensor) -> Tensor:
    """Return log N(e; 0, R) − log N(e; 0, I) of each row (draws×N), over the numbers in a mask (N×K)."""
    e = torch.where(free, e, 0.0)
    quadratic = torch.einsum("snk,nkl,snl->sn", e, dependence.precision, e) - e.square().sum(-1)
    return -0.5 * quadratic - log_determinant(dependence, free)


def kl_of_numbers(
    q: FactorisedDistribution, p: FactorisedDistribution, free: Tensor, batch: Batch, space: CovariateSpace
) -> Tensor:
    """Compute KL[q ‖ p] of the numbers of all rows (N,), for distributions with dependence within rows.

    With v = (x − μ_p)/s_p, the innovations of p are w_i = (v_i − ρ_p v_{i−1})/r_p with r_p² = 1 − ρ_p², and under p
    they are N(0, R_p). Under q they have the means (u_i − ρ_p u_{i−1})/r_p, u = (μ_q − μ_p)/s_p, and, with s = s_q/s_p,
    g_i = s_i ρ_q − ρ_p s_{i−1} and P_i the correlation of x_i under q, the covariance

        (g gᵀ ∘ P_{i−1} + (s r_q)(s r_q)ᵀ ∘ R_q)/(r_p r_pᵀ)

    P_i = ρ_q ρ_qᵀ ∘ P_{i−1} + r_q r_qᵀ ∘ R_q is a sum along the run.
    """
    at = space.on(batch.x.device).continuous
    q_own, p_own = q.columns(at), p.columns(at)
    u, s = (q_own.mean - p_own.mean) * p_own.var.rsqrt(), (q_own.var / p_own.var).sqrt()
    eye = torch.eye(len(at), dtype=u.dtype, device=u.device)
    of_q = eye if q.dependence is None else q.dependence.factor @ q.dependence.factor.mT
    of_p = eye if p.dependence is None else p.dependence.precision
    prior, own = memory(p_own), memory(q_own)
    spread = s * own.remainder.sqrt()
    mean, covariance = u, spread[:, :, None] * of_q * spread[:, None]
    if p_own.paths is not None and p_own.paths.numbers:
        u0, s0 = before(u, p_own.paths), before(s, p_own.paths)
        mean = (u - u0 + prior.loss * u0).where(p_own.paths.before != 0, u)
        g = torch.where(p_own.paths.before != 0, s - s0 - s * own.loss + s0 * prior.loss, 0.0)
        covariance = covariance + g[:, :, None] * correlations_before(own, of_q, p_own.paths, batch) * g[:, None]
    whole = (mean[:, :, None] * mean[:, None] + covariance) / (
        prior.remainder.sqrt()[:, :, None] * prior.remainder.sqrt()[:, None]
    )
    both = free[:, :, None] & free[:, None]
    quadratic = torch.where(both, of_p * whole, 0.0).sum((1, 2))
    single = 1.0 + 2.0 * s.log() + own.remainder.log() - prior.remainder.log()
    return (
        0.5 * (quadratic - torch.where(free, single, 0.0).sum(1))
        - log_determinant(q.dependence, free)
        + log_determinant(p.dependence, free)
    )
