"""Jitter, whitening and its gradients, against plain linear algebra."""

import pytest
import torch
from torch.distributions import MultivariateNormal, Normal, kl_divergence
from torch.testing import assert_close

from lacova.nn import linalg


def positive_definite(size=4, batch=(2,), seed=0):
    root = torch.randn(*batch, size, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return root @ root.mT + 0.5 * torch.eye(size, dtype=torch.float64)


def test_jitter_is_relative_to_the_mean_of_the_diagonal():
    matrix = positive_definite()
    mean_diagonal = matrix.diagonal(dim1=-2, dim2=-1).mean(-1)
    expected = matrix + 0.1 * mean_diagonal[:, None, None] * torch.eye(4, dtype=torch.float64)
    assert_close(linalg.add_jitter(matrix, 0.1), expected, rtol=1e-12, atol=0)
    factor = linalg.cholesky(matrix, 0.1)
    assert_close(factor @ factor.mT, expected, rtol=1e-10, atol=1e-12)
    assert linalg.add_jitter(matrix, 0.0) is matrix
    default = linalg.add_jitter(matrix) - matrix
    assert_close(default.diagonal(dim1=-2, dim2=-1).mean(-1), 1e-8 * mean_diagonal, rtol=1e-6, atol=0)


def test_whitening_is_by_the_cholesky_factor():
    matrix, right = positive_definite(), torch.randn(2, 4, 3, dtype=torch.float64)
    inverse = torch.linalg.inv(torch.linalg.cholesky(matrix))
    assert_close(linalg.whitener(matrix), inverse, rtol=1e-8, atol=1e-12)
    assert_close(linalg.whiten(matrix, right), inverse @ right, rtol=1e-8, atol=1e-12)
    assert_close(linalg.log_det(torch.linalg.cholesky(matrix)), torch.logdet(matrix), rtol=1e-8, atol=0)


def test_gradients_by_hand_equal_finite_differences():
    root, right = torch.randn(2, 4, 4, dtype=torch.float64), torch.randn(2, 4, 3, dtype=torch.float64)

    def matrix(root):
        return root @ root.mT + torch.eye(4, dtype=torch.float64)

    inputs = (root.requires_grad_(), right.requires_grad_())
    assert torch.autograd.gradcheck(lambda root, right: linalg.whiten(matrix(root), right), inputs)
    assert torch.autograd.gradcheck(lambda root: linalg.whitener(matrix(root)), (root,))


def test_a_matrix_that_is_not_positive_definite_is_refused():
    with pytest.raises(torch.linalg.LinAlgError):
        linalg.whitener(-positive_definite())


def test_densities_and_kl_equal_those_of_torch():
    mean, var = torch.randn(2, 5, dtype=torch.float64), torch.rand(2, 5, dtype=torch.float64) + 0.1
    z = torch.randn(5, dtype=torch.float64)
    expected = MultivariateNormal(mean[0], torch.diag(var[0])).log_prob(z)
    assert_close(linalg.log_normal(z, mean[0], var[0]), expected, rtol=1e-8, atol=0)
    q, p = (Normal(m, v.sqrt()) for m, v in zip(mean, var, strict=True))
    assert_close(linalg.gaussian_kl(mean[0], var[0], mean[1], var[1]), kl_divergence(q, p), rtol=1e-8, atol=1e-12)
