"""Sums and products of kernels; test_factors.py tests the kernels other than `gp` and `cat` one by one."""

from itertools import product

import gpytorch
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import functional_call

from lacova.data.covariate_space import CovariateSpace
from lacova.priors.gp.formula import Component, Factor
from lacova.priors.gp.kernels import AdditiveKernel
from tests.priors.gp import toys
from tests.priors.gp.toys import close

TWO_CATEGORIES = CovariateSpace(("t", "age", "sex", "arm"), (0, 0, 2, 3), (False,) * 4)
# Components with the same numbers have 0, 1 or 2 categories, and are not next to each other.
MIXED = (
    Component(("t",), ("sex",)),
    Component(("t", "age"), ("arm",)),
    Component(("t",)),
    Component((), ("sex",)),
    Component(("t",), instance=True),
    Component(("age",), ("sex", "arm")),
    Component(("t",), ("sex", "arm")),
    Component(("t", "age")),
    Component(instance=True),
    Component(("t",), factors=(Factor("lin", ("age",)),)),
    Component(("t",), ("arm",), instance=True),
    Component((), ("arm", "sex")),
)
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


def mixed(tied, components=MIXED, seed=0):
    """Return a kernel with two categories, and parameters drawn at random."""
    g = torch.Generator().manual_seed(seed)
    kernel = AdditiveKernel(components, TWO_CATEGORIES, toys.L, tied=tied)
    for p in kernel.parameters():
        p.data.add_(0.4 * torch.randn(p.shape, generator=g, dtype=p.dtype))
    return kernel


def mixed_rows(*shape, seed=0):
    """Return rows in which every pair of levels occurs."""
    g = torch.Generator().manual_seed(seed)
    levels = [torch.randint(n, (*shape, 1), generator=g).double() for n in TWO_CATEGORIES.levels[2:]]
    return torch.cat([torch.randn(*shape, 2, generator=g, dtype=torch.float64), *levels], -1)


def untied_copy(kernel):
    """Return an untied kernel with the parameters of a tied one: each component has a copy of its length-scales."""
    other = AdditiveKernel(kernel.components, TWO_CATEGORIES, toys.L)
    other.log_variance.data.copy_(kernel.log_variance.data)
    for r in range(len(kernel.components)):
        for (column, own), (same, shared) in zip(other.scales(r), kernel.scales(r), strict=True):
            assert column == same
            own.data.copy_(shared.data)
    return other


def gradients(kernel, x, s, part, weight):
    """Return the gradients of a weighted sum of the kernel matrix by name; None where it does not depend on it."""
    x, s = x.clone().requires_grad_(), s.clone().requires_grad_()
    inputs = {"x": x, "s": s, **dict(kernel.named_parameters())}
    total = (kernel(x, s, part) * weight).sum()
    return dict(zip(inputs, torch.autograd.grad(total, list(inputs.values()), allow_unused=True), strict=True))


# For each set of length-scales of MIXED, in order, the components that use it.
SETS = [[0, 2, 6, 9], [1, 7], [3], [4, 10], [5], [8], [11]]
PARTS = {
    "shared": (0, 1, 2, 3, 5, 6, 7, 9, 11),
    "own": (4, 8, 10),
    "all": tuple(range(len(MIXED))),
    "in another order": (7, 6, 2, 1, 5, 0),
    "one of each set": (5, 2, 1),
    "one": (6,),
}
every_part = pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)


@every_part
@pytest.mark.parametrize("shape", [(6,), (3, 4)], ids=["rows", "blocks"])
def test_a_tied_kernel_is_an_untied_one_with_equal_length_scales(part, shape):
    tied = mixed(tied=True)
    untied = untied_copy(tied)
    x, s = mixed_rows(*shape), mixed_rows(5, seed=1)
    close(tied(x, s, part), untied(x, s, part))
    close(tied(x, x, part), untied(x, x, part))
    close(tied.diagonal(x, part), untied.diagonal(x, part))
    weight = torch.randn(toys.L, *shape, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    ours, theirs = (gradients(kernel, x, s, part, weight) for kernel in (tied, untied))
    for name in ("x", "s", "log_variance"):
        close(ours[name], theirs[name])
    for k, members in enumerate(SETS):
        used = [theirs[f"log_lengthscale.{r}"] for r in members if r in part]
        if used:
            close(ours[f"log_lengthscale.{k}"], sum(used))
            assert (ours[f"log_lengthscale.{k}"] != 0).all()
        else:
            assert ours[f"log_lengthscale.{k}"] is None


@every_part
def test_an_untied_kernel_of_mixed_components_equals_loops(part):
    kernel, x, s = mixed(tied=False), mixed_rows(6), mixed_rows(5, seed=1)
    numbers = {name: TWO_CATEGORIES.names.index(name) for name in TWO_CATEGORIES.names}
    expected = torch.zeros(toys.L, 6, 5, dtype=torch.float64)
    for l, i, j, r in product(range(toys.L), range(6), range(5), part):
        component, value = kernel.components[r], kernel.log_variance[r, l].exp().detach()
        for k, name in enumerate(component.continuous):
            gap = x[i, numbers[name]] - s[j, numbers[name]]
            value = value * torch.exp(-0.5 * gap**2 / torch.exp(2 * kernel.log_lengthscale[r][k, l].detach()))
        for name in component.categorical:
            value = value * float(x[i, numbers[name]] == s[j, numbers[name]])
        for factor in component.factors:  # lin
            value = value * sum(x[i, numbers[name]] * s[j, numbers[name]] for name in factor.columns)
        expected[l, i, j] += value
    close(kernel(x, s, part), expected)


@every_part
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_gradients_equal_finite_differences(part, tied):
    kernel, x, s = mixed(tied), mixed_rows(4), mixed_rows(3, seed=1)
    names = [name for name, _ in kernel.named_parameters()]

    def matrix(x_numbers, s_numbers, *parameters):
        rows = (torch.cat([one, other[:, 2:]], 1) for one, other in ((x_numbers, x), (s_numbers, s)))
        return functional_call(kernel, dict(zip(names, parameters, strict=True)), (*rows, part))

    values = [part.detach().clone().requires_grad_() for part in (x[:, :2], s[:, :2], *kernel.parameters())]
    assert torch.autograd.gradcheck(matrix, values)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_components_may_come_in_any_order(order, tied):
    """Their numbers (0, 1) equal flags (False, True) in Python, so that a cache could take one for the other."""
    terms = [Component(("t",), ("sex",)), Component(("t",))]
    first, second = (mixed(tied, [terms[k] for k in places]) for places in ((0, 1), order))
    x, s = mixed_rows(6), mixed_rows(5, seed=1)
    for place, k in enumerate(order):
        second.log_variance.data[place] = first.log_variance.data[k]
        for (_, one), (_, other) in zip(second.scales(place), first.scales(k), strict=True):
            one.data.copy_(other.data)
    for part in ((0, 1), (1, 0)):
        close(second(x, s, part), first(x, s, part))
        weight = torch.ones(toys.L, 6, 5, dtype=torch.float64)
        ours, theirs = (gradients(kernel, x, s, part, weight) for kernel in (second, first))
        close(ours["log_variance"], theirs["log_variance"][list(order)])
        close(ours["x"], theirs["x"])


def test_components_with_the_same_numbers_share_one_set_of_length_scales():
    untied, tied = mixed(tied=False), mixed(tied=True)
    assert len(untied.log_lengthscale) == len(MIXED)
    assert [len(scale) for scale in tied.log_lengthscale] == [1, 2, 0, 1, 1, 0, 0]
    for members in SETS:
        for _, scale in tied.scales(members[0]):
            scale.data.fill_(7.0)
        changed = [r for r in range(len(MIXED)) if any((scale == 7.0).all() for _, scale in tied.scales(r))]
        assert changed == (members if MIXED[members[0]].continuous else [])
        for _, scale in tied.scales(members[0]):
            scale.data.fill_(0.0)


def test_components_of_the_instance_have_their_own_length_scales():
    kernel, x = mixed(tied=True), mixed_rows(6)
    shared, own = kernel(x, x, kernel.shared), kernel(x, x, kernel.own)
    kernel.scales(0)[0][1].data.add_(0.5)
    close(kernel(x, x, kernel.own), own)
    assert (kernel(x, x, kernel.shared) - shared).abs().max() > 0.01
    shared = kernel(x, x, kernel.shared)
    kernel.scales(4)[0][1].data.add_(0.5)
    close(kernel(x, x, kernel.shared), shared)
    assert (kernel(x, x, kernel.own) - own).abs().max() > 0.01
