"""Sums and products of kernels; test_factors.py tests the kernels other than `gp` and `cat` one by one."""

import gpytorch
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lacova.priors.gp.formula import Component, Factor
from lacova.priors.gp.kernels import AdditiveKernel
from tests.priors.gp import toys
from tests.priors.gp.toys import close

PASSED = {"rough": gpytorch.kernels.RQKernel(), "square": gpytorch.kernels.PolynomialKernel(2)}


def check_kernel(kernel, x, s):
    """Sums and products equal loops; the diagonal is that of the matrix; no eigenvalue is negative."""
    every = range(len(kernel.components))
    dense = kernel(x, s, every)
    square = kernel(x, x, every)
    for l in range(toys.L):
        close(dense[l], toys.kernel_by_loops(kernel, x, s, every, l), rtol=1e-7)  # GPyTorch multiplies distances out
        close(square[l], square[l].mT)
        values = torch.linalg.eigvalsh(square[l])
        assert values[0] > -1e-7 * values[-1]
    close(kernel.diagonal(x, every), square.diagonal(dim1=-2, dim2=-1), rtol=1e-7)


@pytest.mark.parametrize("trends", [False, True])
def test_kernel_equals_loops(trends):
    t = toys.toy(trends=trends)
    check_kernel(t.kernel, t.x, t.inducing)


def test_gp_equals_gpytorch():
    t = toys.toy()
    rbf = gpytorch.kernels.RBFKernel().double()
    rbf.lengthscale = t.kernel.log_lengthscale[0][0, 0].exp().detach()
    theirs = t.kernel.log_variance[0, 0].exp() * rbf(t.x[:, :1], t.inducing[:, :1]).to_dense()
    close(t.kernel(t.x, t.inducing, [0])[0], theirs)


columns = st.sampled_from([("t",), ("age",), ("t", "age")])
factors = st.one_of(
    st.builds(Factor, st.sampled_from(["lin", "matern", "periodic", "rough", "square"]), columns),
    st.builds(Factor, st.just("matern"), columns, st.sampled_from([0.5, 1.5])),
    st.builds(Factor, st.just("periodic"), st.sampled_from([("t",), ("age",)]), st.sampled_from([0.3, 2.0])),
)
terms = st.builds(
    Component, st.just(()) | columns, st.sampled_from([(), ("sex",)]), st.booleans(),
    st.lists(factors, max_size=2, unique=True).map(tuple),
)  # fmt: skip


@settings(deadline=None, max_examples=40)
@given(st.lists(terms, min_size=1, max_size=3), st.integers(0, 10**6))
def test_any_formula_is_a_kernel(components, seed):
    g = torch.Generator().manual_seed(seed)
    kernel = AdditiveKernel(components, toys.SPACE, toys.L, passed=PASSED)
    for p in kernel.parameters():
        p.data.add_(0.5 * torch.randn(p.shape, generator=g, dtype=p.dtype))
    x = torch.randn(4, 3, generator=g, dtype=torch.float64)
    x[:, 2] = (x[:, 2] > 0).double()
    x[3, :2] = x[0, :2]
    check_kernel(kernel, x, x[:2] + torch.tensor([0.1, 0.1, 0.0]))


def test_batches_of_blocks_equal_blocks_one_by_one():
    terms = [*toys.TRENDS, Component(factors=(Factor("rough", ("t", "age")),))]
    kernel = AdditiveKernel(terms, toys.SPACE, toys.L, passed=PASSED)
    x = torch.randn(3, 4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x[..., 2] = (x[..., 2] > 0).double()
    dense, against, diagonal = (
        kernel(x, x, kernel.shared),
        kernel(x, x[0], kernel.shared),
        kernel.diagonal(x, [0, 2, 5]),
    )
    for v in range(3):
        close(dense[:, v], kernel(x[v], x[v], kernel.shared))
        close(against[:, v], kernel(x[v], x[0], kernel.shared))
        close(diagonal[:, v], kernel(x[v], x[v], [0, 2, 5]).diagonal(dim1=-2, dim2=-1), rtol=1e-7)


def test_initial_parameters():
    terms = [*toys.TRENDS, Component(factors=(Factor("periodic", ("t", "age")),))]
    kernel = AdditiveKernel(terms, toys.SPACE, toys.L)
    close(kernel.log_variance.exp(), torch.full((6, toys.L), 1 / 6, dtype=torch.float64))
    for name, parameter in kernel.named_parameters():
        if name != "log_variance":
            assert (parameter == 0).all(), name  # length-scales and periods of one standard deviation
    assert dict(kernel.named_parameters())["others.5.0.log_period"].shape == (2, toys.L)


def test_period_in_own_units_is_fixed():
    component = Component(factors=(Factor("periodic", ("t",), 365.0),))
    kernel = AdditiveKernel([component], toys.SPACE, toys.L, scale={"t": 100.0, "age": 5.0})
    assert [name for name, _ in kernel.named_parameters()] == [
        "log_variance",
        "log_lengthscale.0",
        "others.0.0.log_lengthscale",
    ]
    x = torch.tensor([[0.3], [0.3 + 3.65], [0.3 + 1.825]], dtype=torch.float64).expand(-1, 3)
    k = kernel(x, x, [0])[0]
    close(k[0, 1], k[0, 0])  # one period later
    close(k[0, 2], k[0, 0] * torch.tensor(-2.0, dtype=torch.float64).exp())  # half a period later, at ℓ = 1
