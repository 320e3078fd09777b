"""Small Gaussian-process problems and slow, obvious references for them."""

import copy
import math
from dataclasses import dataclass, fields, replace

import pytest
import torch
from torch import Tensor

from lacova.data.batches import blocks
from lacova.data.covariate_space import CovariateSpace
from lacova.nn.linalg import cholesky
from lacova.priors.gp.bounds import patient_bound, project, row_bound
from lacova.priors.gp.formula import Component, Factor
from lacova.priors.gp.inducing import Whitened
from lacova.priors.gp.kernels import AdditiveKernel
from lacova.priors.gp.posterior import latent_posterior, patient_encoder_spread, row_encoder_spread

SPACE = CovariateSpace(names=("t", "age", "sex"), levels=(0, 0, 2), static=(False, False, False))
SHARED = (Component(("t",)), Component(("t", "age"), ("sex",)))
OWN = (Component(instance=True), Component(("t",), instance=True))
# lin(t) + gp(t):lin(t, age) + periodic(age, period=0.8):cat(sex) + matern(t, age, nu=1.5) + gp(age)
TRENDS = (
    Component(factors=(Factor("lin", ("t",)),)),
    Component(("t",), factors=(Factor("lin", ("t", "age")),)),
    Component((), ("sex",), factors=(Factor("periodic", ("age",), 0.8),)),
    Component(factors=(Factor("matern", ("t", "age"), 1.5),)),
    Component(("age",)),
)
# cat(id) + lin(t):cat(id) + periodic(t):matern(age):cat(id)
OWN_TRENDS = (
    Component(instance=True),
    Component(instance=True, factors=(Factor("lin", ("t",)),)),
    Component(instance=True, factors=(Factor("periodic", ("t",)), Factor("matern", ("age",)))),
)
L = 2
both_kinds = pytest.mark.parametrize("trends", [False, True], ids=["gp and cat", "other kernels"])


def close(actual, expected, rtol=1e-8, atol=1e-10):
    torch.testing.assert_close(torch.as_tensor(actual), torch.as_tensor(expected), rtol=rtol, atol=atol)


@dataclass
class Toy:
    """A kernel, rows x of patients `group`, q(Z), σ_z² and inducing inputs."""

    kernel: AdditiveKernel
    x: Tensor
    group: Tensor
    mean: Tensor
    var: Tensor
    noise: Tensor
    inducing: Tensor

    @property
    def n(self):
        return len(self.x)


def cast(t: Toy, dtype):
    """The same problem in another precision."""
    floats = {f.name: getattr(t, f.name).to(dtype) for f in fields(t) if f.name not in ("kernel", "group")}
    return replace(t, kernel=copy.deepcopy(t.kernel).to(dtype), **floats)


def toy(visits=(3, 1, 4, 2), own=True, inducing=5, seed=0, trends=False):
    """A random problem with so many visits per patient; `own` adds components with the instance."""
    dtype = torch.float64
    g = torch.Generator().manual_seed(seed)
    n = sum(visits)
    shared_terms, own_terms = (TRENDS, OWN_TRENDS) if trends else (SHARED, OWN)
    kernel = AdditiveKernel(shared_terms + (own_terms if own else ()), SPACE, L, dtype=dtype)
    for p in kernel.parameters():
        p.data.add_(0.3 * torch.randn(p.shape, generator=g, dtype=dtype))
    x = torch.randn(n, 3, generator=g, dtype=dtype)
    x[:, 2] = (x[:, 2] > 0).to(dtype)
    s = torch.randn(inducing, 3, generator=g, dtype=dtype)
    s[:, 2] = (s[:, 2] > 0).to(dtype)
    return Toy(
        kernel, x, torch.repeat_interleave(torch.arange(len(visits)), torch.tensor(visits)),
        torch.randn(L, n, generator=g, dtype=dtype), torch.rand(L, n, generator=g, dtype=dtype) * 0.5 + 0.1,
        torch.rand(L, generator=g, dtype=dtype) * 0.3 + 0.2, s,
    )  # fmt: skip


def kernel_by_loops(kernel, x1, x2, part, l):
    """The kernel matrix of the components in `part` for latent dimension l, entry by entry."""
    out = torch.zeros(len(x1), len(x2), dtype=x1.dtype)
    for i in range(len(x1)):
        for j in range(len(x2)):
            for r in part:
                c = kernel.components[r]
                value = kernel.log_variance[r, l].exp()
                for k, name in enumerate(c.continuous):
                    q = SPACE.names.index(name)
                    scale = kernel.log_lengthscale[r][k, l].exp()
                    value = value * torch.exp(-((x1[i, q] - x2[j, q]) ** 2) / (2 * scale**2))
                for name in c.categorical:
                    q = SPACE.names.index(name)
                    value = value * float(x1[i, q] == x2[j, q])
                for factor, parameters in zip(c.factors, kernel.factors(r), strict=True):
                    value = value * factor_by_hand(factor, parameters, x1[i], x2[j], l)
                out[i, j] += value
    return out


def factor_by_hand(factor, parameters, x1, x2, l):
    """One value of a kernel other than `gp` and `cat`, column by column."""
    columns = [SPACE.names.index(name) for name in factor.columns]
    if factor.kernel == "lin":
        return sum(x1[q] * x2[q] for q in columns)
    if factor.kernel == "periodic":
        value = 1.0
        for k, q in enumerate(columns):
            period = factor.option or parameters.log_period[k, l].exp()
            scale = parameters.log_lengthscale[k, l].exp()
            value = value * torch.exp(-2 * torch.sin(math.pi * (x1[q] - x2[q]) / period) ** 2 / scale**2)
        return value
    if factor.kernel == "matern":
        scales = parameters.log_lengthscale[:, l].exp()
        r = sum((x1[q] - x2[q]) ** 2 / scale**2 for q, scale in zip(columns, scales, strict=True)).sqrt()
        nu = factor.option or 2.5
        d = math.sqrt(2 * nu) * r
        return {0.5: 1.0, 1.5: 1 + d, 2.5: 1 + d + d**2 / 3}[nu] * torch.exp(-d)
    return parameters.copies[l](x1[None, columns], x2[None, columns]).to_dense()[0, 0]


def dense_covariance(t: Toy, l: int):
    """Σ = K^(A) + K^(R) 1[same patient] + σ_z² I, by loops."""
    same = (t.group[:, None] == t.group[None, :]).to(t.x.dtype)
    shared = kernel_by_loops(t.kernel, t.x, t.x, t.kernel.shared, l)
    own = kernel_by_loops(t.kernel, t.x, t.x, t.kernel.own, l) * same
    return shared + own + t.noise[l] * torch.eye(t.n, dtype=t.x.dtype)


def dense_kl(mean, var, covariance):
    """KL[N(mean, diag var) ‖ N(0, covariance)]."""
    q = torch.distributions.MultivariateNormal(mean, torch.diag(var))
    return torch.distributions.kl_divergence(
        q, torch.distributions.MultivariateNormal(torch.zeros_like(mean), covariance)
    )


def d3_as_printed(t: Toy, l: int, m, H):
    """Eq. 11 of the paper with all rows, for u (not whitened), explicit inverse."""
    kss = kernel_by_loops(t.kernel, t.inducing, t.inducing, t.kernel.shared, l)
    kxs = kernel_by_loops(t.kernel, t.x, t.inducing, t.kernel.shared, l)
    kxx = kernel_by_loops(t.kernel, t.x, t.x, t.kernel.shared, l)
    inv = torch.linalg.inv(kss)
    total = 0.0
    for i in range(t.n):
        k = kxs[i]
        total += ((k @ inv @ m - t.mean[l, i]) ** 2 + t.var[l, i] + kxx[i, i] - k @ inv @ k) / t.noise[l]
        total += torch.trace(inv @ H @ inv @ torch.outer(k, k)) / t.noise[l] - t.var[l, i].log()
    total = 0.5 * total + 0.5 * t.n * t.noise[l].log() - 0.5 * t.n
    q = torch.distributions.MultivariateNormal(m, H)
    return total + torch.distributions.kl_divergence(
        q, torch.distributions.MultivariateNormal(torch.zeros_like(m), kss)
    )


def d4_as_printed(t: Toy, l: int, m, H):
    """The paper's supplementary bound with all patients, by a loop over them."""
    kss = kernel_by_loops(t.kernel, t.inducing, t.inducing, t.kernel.shared, l)
    inv = torch.linalg.inv(kss)
    total = 0.0
    for p in range(int(t.group.max()) + 1):
        rows = t.group == p
        x, mu, w = t.x[rows], t.mean[l, rows], t.var[l, rows]
        kxs = kernel_by_loops(t.kernel, x, t.inducing, t.kernel.shared, l)
        kxx = kernel_by_loops(t.kernel, x, x, t.kernel.shared, l)
        block = kernel_by_loops(t.kernel, x, x, t.kernel.own, l) + t.noise[l] * torch.eye(len(x), dtype=x.dtype)
        bi = torch.linalg.inv(block)
        r = kxs @ inv @ m - mu
        total += r @ bi @ r + (bi.diagonal() * w).sum() + torch.logdet(block)
        total += torch.trace(bi @ (kxx - kxs @ inv @ kxs.T))
        total += torch.trace(inv @ H @ inv @ kxs.T @ bi @ kxs) - w.log().sum()
    q = torch.distributions.MultivariateNormal(m, H)
    kl = torch.distributions.kl_divergence(q, torch.distributions.MultivariateNormal(torch.zeros_like(m), kss))
    return 0.5 * total - 0.5 * t.n + kl


def random_q(t: Toy, seed=1):
    """Some q(v)."""
    g = torch.Generator().manual_seed(seed)
    m = torch.randn(L, len(t.inducing), generator=g, dtype=t.x.dtype)
    root = torch.randn(L, len(t.inducing), len(t.inducing), generator=g, dtype=t.x.dtype)
    precision = root @ root.mT + torch.eye(len(t.inducing), dtype=t.x.dtype)
    return Whitened(m, cholesky(precision, jitter=0.0))


def unwhiten(t: Toy, q, l):
    """Mean and covariance of u = C v."""
    c = torch.linalg.cholesky(kernel_by_loops(t.kernel, t.inducing, t.inducing, t.kernel.shared, l))
    h = torch.cholesky_inverse(q.precision_factor[l])
    return c @ q.mean[l], c @ h @ c.T


def optimum(statistics):
    """The q(v) with the lowest bound: H⁻¹ = I + A, H⁻¹m = b."""
    eye = torch.eye(statistics.precision.shape[-1], dtype=statistics.precision.dtype)
    factor = cholesky(eye + statistics.precision, jitter=0.0)
    return Whitened(torch.cholesky_solve(statistics.shift[..., None], factor)[..., 0], factor)


def all_rows(t: Toy):
    return torch.ones(t.n, dtype=torch.bool)


def d3(t: Toy, rows, q, scale=1.0, jitter=0.0):
    """D̂³ of the rows in a mask."""
    a = project(t.kernel, t.inducing, t.x[rows], jitter)
    count = int(rows.sum())
    return row_bound(
        a, t.kernel.diagonal(t.x[rows], t.kernel.shared), q, t.noise, t.mean[:, rows], t.var[:, rows],
        torch.ones(count, dtype=t.x.dtype), scale,
    )  # fmt: skip


def d4(t: Toy, patients, q, scale=1.0, jitter=0.0):
    """D̂⁴ of some patients."""
    rows = torch.isin(t.group, torch.tensor(patients))
    group = torch.unique_consecutive(t.group[rows], return_inverse=True)[1]
    x = t.x[rows]
    weight = torch.ones(len(patients), dtype=t.x.dtype)
    return patient_bound(
        t.kernel, project(t.kernel, t.inducing, x, jitter), x, blocks(group), q, t.noise,
        t.mean[:, rows], t.var[:, rows], weight, scale,
    )  # fmt: skip


def posterior_of(t: Toy):
    """The posterior of v given all rows."""
    q = random_q(t)  # the statistics do not depend on it
    a = project(t.kernel, t.inducing, t.x)
    if not t.kernel.own:
        one = torch.ones(t.n, dtype=t.x.dtype)
        statistics = d3(t, all_rows(t), q, jitter=None).statistics
        return latent_posterior(statistics, row_encoder_spread(a, t.noise, t.var, one))
    patients = int(t.group.max()) + 1
    weight = torch.ones(patients, dtype=t.x.dtype)
    statistics = d4(t, list(range(patients)), q, jitter=None).statistics
    return latent_posterior(
        statistics, patient_encoder_spread(t.kernel, a, t.x, blocks(t.group), t.noise, t.var, weight)
    )
