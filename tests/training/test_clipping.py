"""A batch with outliers moves parameters no further than others do."""

from __future__ import annotations

import pytest
import torch

from lacova.training.clipping import MOST, clip_gradients

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]


def trained(steps: int, device: str = "cpu") -> tuple[list[torch.nn.Parameter], torch.optim.AdamW]:
    """Return parameters of two groups and types, and Adam after steps on gradients of ones: their norm is √5."""
    weights = torch.nn.Parameter(torch.zeros(3, device=device))
    rates = torch.nn.Parameter(torch.zeros(2, device=device, dtype=torch.float64))
    optimiser = torch.optim.AdamW([{"params": [weights]}, {"params": [rates], "lr": 0.1}], lr=0.01, fused=True)
    for _ in range(steps):
        set_gradients([weights, rates], 1.0)
        optimiser.step()
    return [weights, rates], optimiser


def set_gradients(parameters, value):
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, value)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("steps", [1, 7])
@pytest.mark.parametrize(("value", "kept"), [(0.1, 0.1), (-1.9, -1.9), (50.0, MOST), (-50.0, -MOST)])
def test_gradients_are_cut_to_a_multiple_of_the_typical_norm(value, kept, steps, device):
    parameters, optimiser = trained(steps, device)
    set_gradients(parameters, value)
    clip_gradients(optimiser)
    for parameter in parameters:
        torch.testing.assert_close(parameter.grad, torch.full_like(parameter, kept), rtol=1e-4, atol=0.0)


def test_one_factor_keeps_the_direction():
    (weights, rates), optimiser = trained(3)
    weights.grad, rates.grad = torch.tensor([30.0, 0.0, -40.0]), torch.zeros(2, dtype=torch.float64)
    clip_gradients(optimiser)
    expected = MOST * 5**0.5 * torch.tensor([0.6, 0.0, -0.8])
    torch.testing.assert_close(weights.grad, expected, rtol=1e-4, atol=0.0)


def test_the_first_step_and_parameters_without_gradient_stay_as_they_are():
    parameters, optimiser = trained(0)
    clip_gradients(optimiser)
    set_gradients(parameters, 50.0)
    clip_gradients(optimiser)
    assert parameters[0].grad.tolist() == [50.0] * 3
    parameters, optimiser = trained(2)
    parameters[0].grad = None
    parameters[1].grad.fill_(50.0)
    clip_gradients(optimiser)
    assert parameters[0].grad is None
    torch.testing.assert_close(parameters[1].grad, torch.full_like(parameters[1], MOST), rtol=1e-4, atol=0.0)


def test_moments_that_were_put_back_to_zero_are_no_typical_norm():
    parameters, optimiser = trained(2)
    for state in optimiser.state.values():
        for value in state.values():
            value.zero_()
    set_gradients(parameters, 50.0)
    clip_gradients(optimiser)
    assert parameters[0].grad.tolist() == [50.0] * 3
