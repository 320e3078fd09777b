"""The terms that couple a patient's rows, against dense loops; their gradients by hand against autograd's."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from lacova.data.batches import Blocks, blocks, rectangle
from lacova.priors.gp.inducing import Whitened
from lacova.priors.gp.patient_terms import patient_terms
from tests.priors.gp.toys import close

L, M = 2, 3
# Rows of each scenario: patients of 3, 1, 4 and 2 visits, and one without any. Rows 4 and 11 are in no scenario.
RAGGED = [[2, 3, 5], [0], [6, 7, 1, 8], [], [10, 9]]
ROWS = 12
DIFFERENTIABLE = ("a", "covariance", "shared", "target", "var", "mean", "root")


class Inputs(NamedTuple):
    """The differentiable inputs of `patient_terms`; `matrices` makes Σ̂ and K^(A) of any two matrices."""

    a: Tensor
    covariance: Tensor
    shared: Tensor
    target: Tensor
    var: Tensor
    mean: Tensor
    root: Tensor


def ragged(rows=RAGGED, longest=5, spare=0):
    """Return places of rows by scenario, where padding points to the row `spare`."""
    places = torch.tensor([[*line, *[spare] * (longest - len(line))] for line in rows])
    return Blocks(places, torch.tensor([[k < len(line) for k in range(longest)] for line in rows]))


def random_inputs(pad, rows=ROWS, seed=0, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=g, dtype=torch.float64).to(dtype)

    square = (L, *pad.places.shape, pad.places.shape[-1])
    return Inputs(
        normal(L, M, rows), normal(*square), normal(*square), normal(L, rows), normal(L, rows).square(),
        normal(L, M), normal(L, M, M).tril(),
    )  # fmt: skip


def q_of(inputs):
    """Return q(v) by its mean and root, which are all that the terms take of it."""
    q = Whitened(inputs.mean, torch.empty(0))
    q.__dict__["root"] = inputs.root  # fills the cached property
    return q


def matrices(inputs, pad):
    """Return Σ̂ and K^(A): symmetric, positive definite, the identity and zero where padded."""
    both = pad.filled[:, :, None] & pad.filled[:, None, :]
    eye = torch.eye(pad.places.shape[-1], dtype=inputs.a.dtype)
    covariance = inputs.covariance @ inputs.covariance.mT / len(eye) + 0.5 * eye
    return torch.where(both, covariance, eye), torch.where(both, inputs.shared + inputs.shared.mT, 0.0)


def terms(inputs, pad, with_var=True):
    covariance, shared = matrices(inputs, pad)
    var = inputs.var if with_var else None
    return patient_terms(inputs.a, covariance, shared, inputs.target, var, q_of(inputs), pad)


def visits_of(pad, v):
    """Return the rows of a scenario, and its places that hold them."""
    filled = [k for k in range(pad.places.shape[1]) if pad.filled[v, k]]
    return [int(pad.places[v, k]) for k in filled], filled


def terms_by_loops(inputs, pad):
    """rᵀPr + tr(PW) + log|Σ̂| + tr(PK^(A)) − tr(P aᵀ(I − H)a), one patient and latent dimension after the other."""
    covariance, shared = matrices(inputs, pad)
    lines = []
    for l in range(L):
        line = []
        for v in range(len(pad.places)):
            rows, at = visits_of(pad, v)
            a, sigma = inputs.a[l][:, rows], covariance[l, v][at][:, at]
            p = torch.linalg.inv(sigma)
            r = a.T @ inputs.mean[l] - inputs.target[l, rows]
            h = inputs.root[l].T @ inputs.root[l]
            value = r @ p @ r + torch.trace(p @ torch.diag(inputs.var[l, rows])) + torch.logdet(sigma)
            value = value + torch.trace(p @ shared[l, v][at][:, at])
            line.append(value - torch.trace(p @ a.T @ (torch.eye(M, dtype=a.dtype) - h) @ a))
        lines.append(torch.stack(line))
    return torch.stack(lines)


def statistics_by_loops(inputs, pad, weight):
    """A = Σ_v w_v a P aᵀ, b = Σ_v w_v a P target."""
    covariance, _ = matrices(inputs, pad)
    precision, shift = torch.zeros(L, M, M, dtype=torch.float64), torch.zeros(L, M, dtype=torch.float64)
    for l in range(L):
        for v in range(len(pad.places)):
            rows, at = visits_of(pad, v)
            p = torch.linalg.inv(covariance[l, v][at][:, at])
            for i, row in enumerate(rows):
                for j, other in enumerate(rows):
                    precision[l] += weight[v] * p[i, j] * torch.outer(inputs.a[l, :, row], inputs.a[l, :, other])
                    shift[l] += weight[v] * p[i, j] * inputs.a[l, :, row] * inputs.target[l, other]
    return precision, shift


CASES = {
    "ragged": (ragged(), ROWS),
    "without padding": (ragged([[0, 1, 2], [3, 4, 5]], longest=3), 6),
    "one visit each": (ragged([[k] for k in range(4)], longest=1), 4),
    "adjacent rows": (blocks(torch.tensor([0, 0, 1, 2, 2, 2])), 6),
    "empty lines, rows to spare": (rectangle(torch.tensor([2, 1, 3, 0, 0]), 4), 9),
}
every_case = pytest.mark.parametrize(("pad", "rows"), CASES.values(), ids=CASES)


@every_case
@pytest.mark.parametrize("seed", range(3))
def test_terms_equal_loops(pad, rows, seed):
    inputs = random_inputs(pad, rows, seed)
    close(terms(inputs, pad).value, terms_by_loops(inputs, pad))


@every_case
def test_gradients_equal_those_of_autograd_through_loops(pad, rows):
    inputs = Inputs(*(part.requires_grad_() for part in random_inputs(pad, rows)))
    weight = torch.linspace(-1.0, 2.0, L * len(pad.places), dtype=torch.float64).view(L, -1)
    ours = torch.autograd.grad((terms(inputs, pad).value * weight).sum(), inputs)
    theirs = torch.autograd.grad((terms_by_loops(inputs, pad) * weight).sum(), inputs)
    for name, one, other in zip(DIFFERENTIABLE, ours, theirs, strict=True):
        assert one.abs().max() > 0, name
        close(one, other)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_equal_finite_differences(name):
    pad = ragged()
    inputs = random_inputs(pad)
    one = getattr(inputs, name).requires_grad_()
    assert torch.autograd.gradcheck(lambda value: terms(inputs._replace(**{name: value}), pad).value, one)


def test_gradients_of_all_inputs_at_once_equal_finite_differences():
    pad = ragged([[3, 0], [1]], longest=2)
    inputs = Inputs(*(part.requires_grad_() for part in random_inputs(pad, 5)))
    assert torch.autograd.gradcheck(lambda *parts: terms(Inputs(*parts), pad).value, tuple(inputs))


def test_gradients_of_a_batch_add_up_over_the_scenarios_that_share_a_row():
    """Completed rows 0 to 2 and 3 to 5 are the same three rows of the batch under two scenarios."""
    pad, row = blocks(torch.tensor([0, 0, 0, 1, 1, 1])), torch.tensor([0, 1, 2, 0, 1, 2])
    inputs = random_inputs(pad, 6)
    found = []
    for compute in (lambda one: terms(one, pad).value, lambda one: terms_by_loops(one, pad)):
        mean, var = (part[:, :3].clone().requires_grad_() for part in (inputs.target, inputs.var))
        found.append(
            torch.autograd.grad(compute(inputs._replace(target=mean[:, row], var=var[:, row])).sum(), (mean, var))
        )
    for one, other in zip(*found, strict=True):
        close(one, other)


@every_case
def test_statistics_equal_loops(pad, rows):
    inputs = Inputs(*(part.requires_grad_() for part in random_inputs(pad, rows)))
    weight = torch.linspace(0.5, 2.0, len(pad.places), dtype=torch.float64)
    statistics = terms(inputs, pad).statistics(weight)
    with torch.no_grad():
        precision, shift = statistics_by_loops(inputs, pad, weight)
    close(statistics.precision, precision)
    close(statistics.shift, shift)
    assert not statistics.precision.requires_grad
    assert not statistics.shift.requires_grad


def test_the_terms_are_quadratic_in_v_with_these_statistics():
    """With H = RᵀR: terms(m, R) − terms(0, 0) = mᵀAm − 2mᵀb + tr(AH), summed over patients."""
    pad = ragged()
    inputs = random_inputs(pad)
    nothing = inputs._replace(mean=torch.zeros_like(inputs.mean), root=torch.zeros_like(inputs.root))
    difference = (terms(inputs, pad).value - terms(nothing, pad).value).sum(-1)
    a, b = terms(inputs, pad).statistics(torch.ones(len(pad.places), dtype=torch.float64))
    for l in range(L):
        m, h = inputs.mean[l], inputs.root[l].T @ inputs.root[l]
        close(difference[l], m @ a[l] @ m - 2 * m @ b[l] + torch.trace(a[l] @ h))


def test_draws_are_rows_without_variance():
    pad = ragged()
    inputs = random_inputs(pad)
    certain = inputs._replace(var=torch.zeros_like(inputs.var))
    assert torch.equal(terms(inputs, pad, with_var=False).value, terms(certain, pad).value)
    assert not torch.allclose(terms(inputs, pad, with_var=False).value, terms(inputs, pad).value)
    names = [name for name in DIFFERENTIABLE if name != "var"]
    found = []
    for one, with_var in ((inputs, False), (certain, True)):
        parts = Inputs(*(part.clone().requires_grad_() for part in one))
        value = terms(parts, pad, with_var).value.sum()
        found.append(torch.autograd.grad(value, [getattr(parts, name) for name in names]))
    for one, other in zip(*found, strict=True):
        close(one, other)


def test_padding_and_rows_of_no_scenario_change_nothing():
    inputs = random_inputs(ragged())
    weight = torch.ones(len(RAGGED), dtype=torch.float64)
    one = terms(inputs, ragged(spare=0))
    parts = Inputs(*(part.clone() for part in inputs))
    for part in (parts.a, parts.target, parts.var):
        part[..., [4, 11]] = 1e3
        part.requires_grad_()
    other = terms(parts, ragged(spare=11))
    assert torch.equal(one.value, other.value)
    for actual, expected in zip(other.statistics(weight), one.statistics(weight), strict=True):
        close(actual, expected)
    for gradient in torch.autograd.grad(other.value.sum(), (parts.a, parts.target, parts.var)):
        assert (gradient[..., [4, 11]] == 0).all()
        assert (gradient[..., [k for k in range(ROWS) if k not in (4, 11)]] != 0).all()


def test_a_scenario_without_rows_adds_nothing():
    value = terms(random_inputs(ragged()), ragged()).value
    assert (value[:, 3] == 0).all()
    assert (value[:, [0, 1, 2, 4]] != 0).all()


def test_float32_stays_close_and_statistics_are_in_float64():
    pad = ragged()
    wide, narrow = (terms(random_inputs(pad, dtype=dtype), pad) for dtype in (torch.float64, torch.float32))
    assert narrow.value.dtype == torch.float32
    close(narrow.value.double(), wide.value, rtol=1e-4, atol=1e-4)
    weight = torch.ones(len(pad.places), dtype=torch.float64)
    for one, other in zip(narrow.statistics(weight.float()), wide.statistics(weight), strict=True):
        assert one.dtype == torch.float64
        close(one, other, rtol=1e-4, atol=1e-4)
