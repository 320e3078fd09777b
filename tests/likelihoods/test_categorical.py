"""Families of levels against torch's categorical distribution; parameters are taken by their definition."""

import pytest
import torch
from torch.distributions import Categorical

from tests.likelihoods.cases import assert_log_prob_is_that_of_torch, space


def bernoulli(family, outputs, column):
    second = (family.base[column] + outputs[0]).sigmoid()
    return Categorical(torch.stack([1 - second, second]))


def categorical(family, outputs, column):
    return Categorical(logits=family.base[column][: len(outputs)] + outputs)


def ordinal(family, outputs, column):
    thresholds = family.thresholds[column][: space("ordinal").levels[column] - 1]
    cumulative = torch.cat([torch.zeros(1).double(), (thresholds - outputs[0]).sigmoid(), torch.ones(1).double()])
    return Categorical(cumulative.diff())


@pytest.mark.parametrize("reference", [bernoulli, categorical, ordinal], ids=lambda function: function.__name__)
@pytest.mark.parametrize("column", [0, 1])
def test_log_probabilities_are_those_of_torch(reference, column):
    probs, expected = assert_log_prob_is_that_of_torch(reference.__name__, column, reference)
    torch.testing.assert_close(probs[column, : len(expected)], expected.exp())
    assert (probs[column, len(expected) :] == 0).all()
