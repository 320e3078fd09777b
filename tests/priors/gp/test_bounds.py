"""The exact KL and the two bounds against dense algebra, the paper's formulas and GPyTorch."""

from dataclasses import replace

import gpytorch
import pytest
import torch

from lacova.data.batches import blocks
from lacova.data.covariate_space import CovariateSpace
from lacova.priors.gp.bounds import exact_kl, project, row_bound
from lacova.priors.gp.formula import Component
from lacova.priors.gp.inducing import Whitened
from lacova.priors.gp.kernels import AdditiveKernel
from tests.priors.gp import toys
from tests.priors.gp.toys import all_rows, both_kinds, close, d3, d4, optimum, random_q, unwhiten


@both_kinds
def test_exact_kl_equals_torch_distributions(trends):
    t = toys.toy(trends=trends)
    covariance = torch.stack([toys.dense_covariance(t, l) for l in range(toys.L)])
    for l in range(toys.L):
        close(exact_kl(t.mean, t.var, covariance)[l], toys.dense_kl(t.mean[l], t.var[l], covariance[l]))


@both_kinds
def test_d3_equals_the_printed_formula(trends):
    t = toys.toy(own=False, trends=trends)
    q = random_q(t)
    printed = sum(toys.d3_as_printed(t, l, *unwhiten(t, q, l)) for l in range(toys.L))
    close(d3(t, all_rows(t), q).value + q.kl(), printed)


@both_kinds
def test_d4_equals_the_printed_formula(trends):
    t = toys.toy(trends=trends)
    q = random_q(t)
    printed = sum(toys.d4_as_printed(t, l, *unwhiten(t, q, l)) for l in range(toys.L))
    close(d4(t, [0, 1, 2, 3], q).value + q.kl(), printed)


@both_kinds
def test_d4_without_instance_component_is_d3(trends):
    t = toys.toy(own=False, trends=trends)
    q = random_q(t)
    close(d4(t, [0, 1, 2, 3], q).value, d3(t, all_rows(t), q).value)


def test_d3_agrees_with_gpytorch_svgp():
    t = toys.toy(own=False)
    kernel = AdditiveKernel([Component(("t", "age"))], toys.SPACE, 1, dtype=torch.float64)
    kernel.log_lengthscale[0].data[:] = torch.tensor([[0.2], [-0.1]])
    kernel.log_variance.data[:] = 0.3
    x, s, mu, w, noise = t.x[:, :2], t.inducing[:, :2], t.mean[:1], t.var[:1], t.noise[:1]
    q = Whitened(random_q(t).mean[:1], random_q(t).precision_factor[:1])

    class SVGP(gpytorch.models.ApproximateGP):
        def __init__(self):
            dist = gpytorch.variational.CholeskyVariationalDistribution(len(s))
            super().__init__(
                gpytorch.variational.VariationalStrategy(self, s, dist, learn_inducing_locations=False, jitter_val=0.0)
            )
            self.mean_module = gpytorch.means.ZeroMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=2))

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    model, likelihood = SVGP().double(), gpytorch.likelihoods.GaussianLikelihood().double()
    model.covar_module.base_kernel.lengthscale = kernel.log_lengthscale[0][:, 0].exp().detach()
    model.covar_module.outputscale = kernel.log_variance[0, 0].exp().detach()
    likelihood.noise = noise[0]
    model.variational_strategy.variational_params_initialized.fill_(1)
    model.variational_strategy._variational_distribution.variational_mean.data = q.mean[0]
    h = torch.cholesky_inverse(q.precision_factor[0])
    model.variational_strategy._variational_distribution.chol_variational_covar.data = torch.linalg.cholesky(h)
    elbo = t.n * gpytorch.mlls.VariationalELBO(likelihood, model, num_data=t.n)(model(x), mu[0])

    full = torch.cat([x, torch.zeros(t.n, 1, dtype=x.dtype)], 1), torch.cat([s, torch.zeros(len(s), 1)], 1)
    ours = row_bound(
        project(kernel, full[1].double(), full[0], 0.0), kernel.diagonal(full[0], [0]), q, noise, mu, w,
        torch.ones(t.n, dtype=x.dtype), 1.0,
    ).value + q.kl()  # fmt: skip
    # −E_q log p(z | S) for q(z) = N(μ, W) is −SVGP's bound at μ plus ½tr(W)/σ²; then the entropy of q(z).
    entropy = 0.5 * torch.log(2 * torch.pi * torch.e * w).sum()
    # GPyTorch adds its own 1e-8 to the diagonal of K_SS in float64 whatever jitter_val says.
    close(ours, -elbo + 0.5 * (w / noise).sum() - entropy, rtol=1e-6)


@both_kinds
def test_gap_of_d3_when_inducing_inputs_are_the_data(trends):
    t = toys.toy(own=False, trends=trends)
    t.inducing = t.x
    best = optimum(d3(t, all_rows(t), random_q(t), jitter=1e-14).statistics)
    bound = d3(t, all_rows(t), best, jitter=1e-14).value + best.kl()
    exact = gap = 0.0
    for l in range(toys.L):
        covariance = toys.dense_covariance(t, l)
        exact += toys.dense_kl(t.mean[l], t.var[l], covariance)
        eye = torch.eye(t.n, dtype=t.x.dtype)
        gap += 0.5 * torch.trace((eye / t.noise[l] - torch.linalg.inv(covariance)) @ torch.diag(t.var[l]))
    close(bound - exact, gap)


@pytest.mark.parametrize("seed", range(5))
@both_kinds
def test_bounds_are_ordered_at_their_optima(seed, trends):
    t = toys.toy(visits=(4, 2, 5, 1, 3), seed=seed, trends=trends)
    exact = sum(toys.dense_kl(t.mean[l], t.var[l], toys.dense_covariance(t, l)) for l in range(toys.L))
    start = random_q(t)
    patients = list(range(5))
    best = optimum(d4(t, patients, start).statistics)
    best_d4 = d4(t, patients, best).value + best.kl()
    assert best_d4 >= exact
    # D³ of the same prior: the instance component joins the shared part, with the patient as a category.
    assert exact <= best_d4 <= best_d3_with_instance_as_category(t)
    assert d4(t, patients, start).value + start.kl() > best_d4  # any other q(v) is worse


def best_d3_with_instance_as_category(t):
    space = CovariateSpace((*toys.SPACE.names, "id"), (*toys.SPACE.levels, 5), (False,) * 4)
    components = [
        replace(c, categorical=(*c.categorical, "id"), instance=False) if c.instance else c for c in t.kernel.components
    ]
    kernel = AdditiveKernel(components, space, toys.L)
    kernel.load_state_dict(t.kernel.state_dict())
    s = torch.cat([t.inducing, torch.arange(len(t.inducing), dtype=t.x.dtype)[:, None] % 5], 1)
    x = torch.cat([t.x, t.group[:, None].to(t.x.dtype)], 1)
    a = project(kernel, s, x)
    args = (t.noise, t.mean, t.var, torch.ones(t.n, dtype=t.x.dtype), 1.0)
    start = Whitened(torch.zeros_like(random_q(t).mean), torch.eye(len(s), dtype=t.x.dtype).repeat(toys.L, 1, 1))
    best = optimum(row_bound(a, kernel.diagonal(x, kernel.shared), start, *args).statistics)
    return row_bound(a, kernel.diagonal(x, kernel.shared), best, *args).value + best.kl()


def test_row_batches_average_to_the_whole():
    t = toys.toy(visits=(12,), own=False)
    q = random_q(t)
    whole = d3(t, all_rows(t), q)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    parts = [d3(t, torch.isin(torch.arange(12), part), q, scale=3.0) for part in order.split(4)]
    close(torch.stack([p.value for p in parts]).mean(), whole.value)
    close(torch.stack([p.statistics.precision for p in parts]).mean(0), whole.statistics.precision)
    close(torch.stack([p.statistics.shift for p in parts]).mean(0), whole.statistics.shift)


@both_kinds
def test_patient_batches_average_to_the_whole_with_ragged_visits(trends):
    t = toys.toy(visits=(3, 1, 4, 2, 5, 2), trends=trends)
    q = random_q(t)
    whole = d4(t, list(range(6)), q)
    parts = [d4(t, sorted(chosen), q, scale=3.0) for chosen in ([0, 4], [1, 2], [3, 5])]
    close(torch.stack([p.value for p in parts]).mean(), whole.value)
    close(torch.stack([p.statistics.precision for p in parts]).mean(0), whole.statistics.precision)
    close(torch.stack([p.statistics.shift for p in parts]).mean(0), whole.statistics.shift)


@both_kinds
@pytest.mark.parametrize("kind", ["rows", "patients"])
def test_float32_is_finite_and_ordered_with_near_duplicate_inducing_points(kind, trends):
    t = toys.toy(visits=(6, 5, 7), seed=3, own=kind == "patients", trends=trends)
    t.inducing = torch.cat([t.x[:9], t.x[:9] + 1e-6, t.x[:9]])
    exact = sum(toys.dense_kl(t.mean[l], t.var[l], toys.dense_covariance(t, l)) for l in range(toys.L))
    values = {}
    for dtype in (torch.float64, torch.float32):
        cast = toys.cast(t, dtype)

        def bound(q, t=cast):
            return d3(t, all_rows(t), q, jitter=None) if kind == "rows" else d4(t, [0, 1, 2], q, jitter=None)

        q = optimum(bound(random_q(cast)).statistics)
        values[dtype] = bound(q.to(dtype)).value.double() + q.kl()
        assert values[dtype] >= exact
    # The jitter of float32 is 1e-4 of the prior variance.
    torch.testing.assert_close(values[torch.float32], values[torch.float64], rtol=1e-3, atol=0.0)


@both_kinds
@pytest.mark.parametrize("which", ["rows", "patients", "exact"])
def test_gradients(which, trends):
    t = toys.toy(visits=(2, 1, 3), inducing=3, own=which != "rows", trends=trends)
    q = random_q(t)
    names = [name for name, _ in t.kernel.named_parameters()]

    def value(mean, var, noise, inducing, *parameters):
        kernel = _KernelWith(t.kernel, dict(zip(names, parameters, strict=True)))
        other = toys.Toy(kernel, t.x, t.group, mean, var, noise, inducing)
        if which == "rows":
            return d3(other, all_rows(t), q).value
        if which == "patients":
            return d4(other, [0, 1, 2], q).value
        same = (t.group[:, None] == t.group).double()
        dense = kernel(t.x, t.x, kernel.shared) + kernel(t.x, t.x, kernel.own) * same
        return exact_kl(mean, var, dense + torch.diag_embed(noise[:, None].expand(-1, t.n))).sum()

    inputs = [t.mean, t.var, t.noise, t.inducing, *(p.detach().clone() for p in t.kernel.parameters())]
    assert torch.autograd.gradcheck(value, tuple(i.clone().requires_grad_() for i in inputs))


class _KernelWith:
    """The kernel with other parameters, as a function of them."""

    def __init__(self, kernel, parameters):
        self.kernel, self.parameters, self.shared, self.own = kernel, parameters, kernel.shared, kernel.own

    def __call__(self, *args):
        return torch.func.functional_call(self.kernel, self.parameters, args)

    def diagonal(self, *args):
        inner = {f"kernel.{name}": value for name, value in self.parameters.items()}
        return torch.func.functional_call(_Diagonal(self.kernel), inner, args)


class _Diagonal(torch.nn.Module):
    def __init__(self, kernel):
        super().__init__()
        self.kernel = kernel

    def forward(self, *args):
        return self.kernel.diagonal(*args)


def test_permuting_rows_within_patients_and_patients_changes_nothing():
    t = toys.toy(visits=(3, 1, 4, 2))
    q = random_q(t)
    order = torch.tensor([5, 4, 7, 6, 3, 2, 0, 1, 9, 8])
    # rows 4..7 (patient 2), 3 (patient 1), 0..2 (patient 0), 8..9 (patient 3), each reshuffled
    moved = toys.Toy(
        t.kernel,
        t.x[order],
        torch.tensor([0, 0, 0, 0, 1, 2, 2, 2, 3, 3]),
        t.mean[:, order],
        t.var[:, order],
        t.noise,
        t.inducing,
    )
    close(d4(moved, [0, 1, 2, 3], q).value, d4(t, [0, 1, 2, 3], q).value)


def test_blocks_pad_and_gather():
    pad = blocks(torch.tensor([0, 0, 1, 2, 2, 2]))
    assert pad.filled.tolist() == [[True, True, False], [True, False, False], [True, True, True]]
    assert pad.gather(torch.arange(1.0, 7.0)).tolist() == [[1, 2, 0], [3, 0, 0], [4, 5, 6]]


def test_no_shared_component_needs_no_inducing_points():
    t = toys.toy(visits=(3, 2))
    kernel = AdditiveKernel(toys.OWN, toys.SPACE, toys.L)
    own = toys.Toy(kernel, t.x, t.group, t.mean, t.var, t.noise, t.x[:0])
    q = Whitened(torch.zeros(toys.L, 0).double(), torch.zeros(toys.L, 0, 0).double())
    exact = sum(toys.dense_kl(t.mean[l], t.var[l], toys.dense_covariance(own, l)) for l in range(toys.L))
    close(d4(own, [0, 1], q).value + q.kl(), exact)


def test_permuting_covariate_columns_changes_nothing():
    t = toys.toy()
    order = [2, 0, 1]
    space = CovariateSpace(
        *(tuple(part[c] for c in order) for part in (toys.SPACE.names, toys.SPACE.levels, toys.SPACE.static))
    )
    kernel = AdditiveKernel(t.kernel.components, space, toys.L)
    kernel.load_state_dict(t.kernel.state_dict())
    moved = toys.Toy(kernel, t.x[:, order], t.group, t.mean, t.var, t.noise, t.inducing[:, order])
    q = random_q(t)
    close(d4(moved, [0, 1, 2, 3], q).value, d4(t, [0, 1, 2, 3], q).value)
