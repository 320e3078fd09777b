import numpy as np
import pytest
import torch
from torch.testing import assert_close

from lacova.likelihoods.missingness import Missingness


def test_log_prob_of_a_mask_is_that_by_hand():
    y, mask = torch.tensor([[0.5, -2.0]]).double(), torch.tensor([[True, False]])
    own = Missingness("selfmasking", torch.tensor([0.5, 0.2]).double())
    own.raw.data = torch.tensor([3.0, -1.0]).double()
    log_odds = (3.0 * 0.5, -1.0 * -2.0 + np.log(0.25))
    expected = np.log(1 / (1 + np.exp(log_odds[0]))) + np.log(1 / (1 + np.exp(-log_odds[1])))
    assert_close(own.log_prob(y, mask).item(), float(expected))
    linear = Missingness("linear", torch.tensor([0.5, 0.5]).double())
    linear.raw.data = torch.tensor([[0.0, 2.0], [1.0, 0.0]]).double()
    expected = np.log(1 / (1 + np.exp(2.0 * -2.0))) + np.log(1 / (1 + np.exp(-0.5)))
    assert_close(linear.log_prob(y, mask).item(), float(expected))


def test_coefficients_have_the_stated_sign():
    low, high = (Missingness(f"selfmasking_{end}", torch.tensor([0.5])) for end in ("low", "high"))
    assert low.coefficients < 0 < high.coefficients


def test_other_mechanisms_are_refused():
    with pytest.raises(ValueError, match="mechanism is 'other'; expected one of selfmasking"):
        Missingness("other", torch.tensor([0.5]))
