"""Families of counts against torch's distributions; parameters are taken by their definition."""

import pytest
import torch
from torch import distributions

from tests.likelihoods.cases import assert_log_prob_is_that_of_torch


def poisson(family, outputs, column):
    return distributions.Poisson((family.base[column] + 20 * torch.tanh(outputs[0] / 20)).exp())


def negative_binomial(family, outputs, column):
    size = (-8 * torch.tanh(family.raw[column] / 8)).exp()
    logits = family.base[column] + 20 * torch.tanh(outputs[0] / 20) - size.log()
    return distributions.NegativeBinomial(size, logits=logits)


@pytest.mark.parametrize("reference", [poisson, negative_binomial], ids=lambda function: function.__name__)
@pytest.mark.parametrize("column", [0, 1])
def test_log_prob_is_that_of_torch(reference, column):
    assert_log_prob_is_that_of_torch(reference.__name__, column, reference)
