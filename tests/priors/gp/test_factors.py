"""Kernels other than `gp` and `cat`: against GPyTorch, and in a model."""

import subprocess
import sys

import gpytorch
import numpy as np
import pandas as pd
import pytest
import torch

from lacova import Dense, FormulaError, GPPriorVAE, Schema
from lacova.priors.gp.factors import Linear, Matern, Passed, Periodic

COLUMNS = [0, 2]
L = 2


def rows(n, seed):
    return torch.randn(n, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).requires_grad_()


def perturbed(kernel, seed=0):
    g = torch.Generator().manual_seed(seed)
    for p in kernel.parameters():
        p.data.add_(0.4 * torch.randn(p.shape, generator=g, dtype=p.dtype))
    return kernel.double()


def gradient_by_log(value, kernel, name):
    """Gradient by the logarithm of a parameter that GPyTorch holds as softplus of a raw one."""
    raw = getattr(kernel, f"raw_{name}")
    (slope,) = torch.autograd.grad(value, raw, retain_graph=True)
    return slope * getattr(kernel, name) / torch.sigmoid(raw)


def assert_same(ours, theirs, x1, x2, parameters):
    """Values, gradients by inputs and by log parameters: (ours, name of theirs, d log theirs / d log ours)."""
    # GPyTorch multiplies squared distances out, which costs half of the digits of a small one.
    tolerance = {"rtol": 1e-6, "atol": 1e-9}
    weight = torch.randn(len(x1), len(x2), dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    chosen = x1[:, COLUMNS], x2[:, COLUMNS]
    value = ours(x1, x2).expand(L, -1, -1)
    for l in range(L):
        kernel = theirs(l)
        expected = kernel(*chosen).to_dense()
        torch.testing.assert_close(value[l], expected, **tolerance)
        loss, reference = (value[l] * weight).sum(), (expected * weight).sum()
        for mine, yours in zip(
            torch.autograd.grad(loss, (x1, x2), retain_graph=True),
            torch.autograd.grad(reference, (x1, x2), retain_graph=True),
            strict=True,
        ):
            torch.testing.assert_close(mine, yours, **tolerance)
        for parameter, name, power in parameters:
            (mine,) = torch.autograd.grad(loss, parameter, retain_graph=True)
            torch.testing.assert_close(
                mine[:, l], power * gradient_by_log(reference, kernel, name).flatten(), **tolerance
            )


def test_linear_equals_gpytorch():
    def theirs(l):
        kernel = gpytorch.kernels.LinearKernel().double()
        kernel.variance = 1.0
        return kernel

    assert_same(Linear(COLUMNS), theirs, rows(5, 0), rows(4, 1), [])


@pytest.mark.parametrize("nu", [0.5, 1.5, None])
def test_matern_equals_gpytorch(nu):
    ours = perturbed(Matern(COLUMNS, L, torch.float64, nu))

    def theirs(l):
        kernel = gpytorch.kernels.MaternKernel(nu or 2.5, ard_num_dims=2).double()
        kernel.lengthscale = ours.log_lengthscale[:, l].exp().detach()
        return kernel

    assert_same(ours, theirs, rows(5, 0), rows(4, 1), [(ours.log_lengthscale, "lengthscale", 1.0)])


def test_periodic_equals_gpytorch():
    ours = perturbed(Periodic(COLUMNS, L, torch.float64))

    def theirs(l):
        kernel = gpytorch.kernels.PeriodicKernel(ard_num_dims=2).double()
        kernel.lengthscale = (2.0 * ours.log_lengthscale[:, l]).exp().detach()  # theirs is not squared
        kernel.period_length = ours.log_period[:, l].exp().detach()
        return kernel

    pairs = [(ours.log_lengthscale, "lengthscale", 2.0), (ours.log_period, "period_length", 1.0)]
    assert_same(ours, theirs, rows(5, 0), rows(4, 1), pairs)


@pytest.mark.parametrize("nu", [0.5, 1.5, 2.5])
def test_matern_has_finite_gradients_where_inputs_coincide(nu):
    x = rows(3, 0)
    kernel = Matern(COLUMNS, L, torch.float64, nu)
    kernel(x, x).sum().backward()
    assert torch.isfinite(x.grad).all()
    assert torch.isfinite(kernel.log_lengthscale.grad).all()
    torch.testing.assert_close(kernel(x, x).diagonal(dim1=-2, dim2=-1), torch.ones(L, 3, dtype=torch.float64))


@pytest.mark.parametrize(
    "kernel",
    [
        gpytorch.kernels.RQKernel(),
        gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(1.5, ard_num_dims=2)),
        gpytorch.kernels.PolynomialKernel(2),
        gpytorch.kernels.RBFKernel(active_dims=[0]) * gpytorch.kernels.LinearKernel(active_dims=[1]),
        gpytorch.kernels.CosineKernel() + gpytorch.kernels.ConstantKernel(),
    ],
    ids=lambda kernel: type(kernel).__name__,
)
def test_passed_kernel_has_a_copy_per_latent_dimension(kernel):
    before = {name: value.clone() for name, value in kernel.state_dict().items()}
    ours = perturbed(Passed(COLUMNS, L, torch.float64, kernel))
    x1, x2 = rows(5, 0), rows(4, 1)
    value = ours(x1, x2)
    for l in range(L):
        torch.testing.assert_close(value[l], ours.copies[l](x1[:, COLUMNS], x2[:, COLUMNS]).to_dense())
    assert not torch.allclose(value[0], value[1])
    diagonal = ours(x1, x1).diagonal(dim1=-2, dim2=-1)
    torch.testing.assert_close(ours.diagonal(x1), diagonal, rtol=1e-6, atol=1e-9)
    value.square().sum().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in (x1, x2, *ours.parameters()))
    for name, parameter in kernel.state_dict().items():
        torch.testing.assert_close(parameter, before[name], rtol=0, atol=0)


# In a model.

SCHEMA = Schema(["alt"], {"age": "continuous", "sex": "categorical"}, instance="id", time="day")
RQ = gpytorch.kernels.RQKernel


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (RQ, r"^kernel 'rough' is <class .*RQKernel'>; expected an instance such as gpytorch.kernels.RQKernel\(\)\.$"),
        (RQ(ard_num_dims=3), r"^rough\(day, age\) in term 'rough\(day, age\):cat\(sex\)': RQKernel cannot be "),
        (
            RQ(batch_shape=torch.Size([4])),
            r"shape \(4, 3, 3\) for 3 rows; expected \(3, 3\), so leave out its batch_shape",
        ),
        (torch.nn.Linear(2, 2), r"cannot be evaluated on 2 column\(s\): "),
    ],
)
def test_passed_kernel_that_cannot_be_used_is_refused(kernel, message):
    with pytest.raises(FormulaError, match=message):
        GPPriorVAE(SCHEMA, prior="gp(day) + cat(sex):rough(day, age)", kernels={"rough": kernel})


@pytest.mark.parametrize(
    "term", ["lin(day):cat(id)", "gp(age):matern(day, nu=0.5)", "periodic(day, period=7)", "rough(day)"]
)
def test_exact_expectation_names_the_term_it_cannot_integrate(term):
    kernels = {"rough": RQ()} if "rough" in term else None
    with pytest.raises(ValueError, match="exact") as caught:
        GPPriorVAE(SCHEMA, prior=f"gp(day) + {term}", kernels=kernels, expectation="exact")
    assert str(caught.value) == (
        'expectation="exact" is for terms of gp and cat, but the prior has the term '
        f"'{term}'; use expectation=\"sample\"."
    )


def visits(seed=0, patients=10, count=4):
    rng = np.random.default_rng(seed)
    who = np.repeat(np.arange(patients), count)
    table = pd.DataFrame({"id": who, "day": rng.uniform(0, 100, len(who)), "age": rng.normal(50, 10, patients)[who]})
    table["sex"] = np.where(who % 2, "f", "m")
    table["alt"] = 0.1 * table.day + rng.normal(0, 1, patients)[who]
    return table.mask((rng.random(table.shape) < 0.15) & (table.columns != "id"))


@pytest.mark.parametrize(
    "prior",
    [
        "gp(day) + rough(day, age):cat(sex)",
        "lin(day, age) + cat(id) + lin(day):cat(id)",
        "lin(day):cat(id) + rough(day):cat(id) + periodic(day, period=30):matern(age)",
        "lin(day)",
    ],
)
def test_model_fits_imputes_and_predicts(prior):
    table = visits()
    kernels = {"rough": RQ()} if "rough" in prior else None
    model = GPPriorVAE(SCHEMA, prior=prior, kernels=kernels, latent_dim=2, networks=Dense((8,), (8,)), inducing=6)
    assert model.formula == prior
    model.fit(table, table, max_epochs=3, batch_size=4)
    assert not model.impute(table).isna().any(axis=None)
    assert np.isfinite(model.predict(table[:3], history=table[3:]).to_numpy()).all()
    assert np.isfinite(model.log_likelihood(table, draws=5)).all()
    kernel = model.vae.prior.kernel
    for name, parameter in kernel.named_parameters():
        moved = parameter.detach() != torch.zeros(()) if "others" in name else torch.ones(1)
        assert moved.all(), name
    if kernels:
        start = RQ().raw_alpha.double()
        assert kernels["rough"].raw_alpha == start  # the passed instance is left as it is
        copies = [p for name, p in kernel.named_parameters() if "raw_alpha" in name]
        assert len(copies) == 2
        assert all(p != start for p in copies)


def extrapolation_error(truth, prior, seed=0):
    """Error beyond the training range, in standard deviations of the truth there."""
    rng = np.random.default_rng(seed)
    schema = Schema(["a", "b"], {}, time="day")
    day = rng.uniform(0, 100, 150)
    table = pd.DataFrame(
        {"day": day, "a": truth(day) + rng.normal(0, 0.1, 150), "b": -truth(day) + rng.normal(0, 0.1, 150)}
    )
    model = GPPriorVAE(schema, prior=prior, latent_dim=1, networks=Dense((), ()), inducing=20, covariates="oracle")
    model.fit(table, max_epochs=150, batch_size=150, learning_rate=2e-2, natural_rate=0.3)
    later = pd.DataFrame({"day": np.linspace(110, 200, 40)})
    error = model.predict(later).a - truth(later.day.to_numpy())
    return float(np.sqrt((error**2).mean()) / np.std(truth(later.day.to_numpy())))


@pytest.mark.parametrize(
    ("truth", "prior"),
    [
        (lambda day: 0.05 * day - 1, "lin(day)"),
        (lambda day: np.sin(2 * np.pi * day / 25), "periodic(day, period=25)"),
    ],
    ids=["linear", "periodic"],
)
def test_prior_with_the_shape_of_the_truth_extrapolates(truth, prior):
    shaped, plain = extrapolation_error(truth, prior), extrapolation_error(truth, "gp(day)")
    assert shaped < 0.25
    assert plain > 0.7


@pytest.mark.parametrize("prior", ["lin(age)", "lin(age):gp(day)"])
def test_linear_kernel_of_a_constant_column_is_zero(prior):
    table = visits().assign(age=50.0)
    model = GPPriorVAE(SCHEMA, prior=prior, latent_dim=1, networks=Dense((8,), (8,)), inducing=3)
    with pytest.warns(UserWarning, match="'age' are constant"):
        model.fit(table, max_epochs=2)
    assert np.isfinite(model.predict(table).to_numpy()).all()


WITHOUT_GPYTORCH = """
import sys
sys.modules["gpytorch"] = None  # importing it fails
import lacova
schema = lacova.Schema(["y"], {"a": "continuous"}, time="t")
model = lacova.GPPriorVAE(schema, prior="lin(t) + periodic(a):matern(t, a)")
from lacova.priors.gp.kernels import AdditiveKernel
from lacova.data.covariate_space import CovariateSpace
import torch
kernel = AdditiveKernel(model.components, CovariateSpace(("a", "t"), (0, 0), (False, False)), 1)
assert kernel(torch.randn(3, 2), torch.randn(3, 2), [0, 1]).shape == (1, 3, 3)
"""


def test_built_in_kernels_need_no_gpytorch():
    done = subprocess.run([sys.executable, "-c", WITHOUT_GPYTORCH], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
