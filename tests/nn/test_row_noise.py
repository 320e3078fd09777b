"""The network behind noise that depends on the row."""

import torch

from lacova.nn.row_noise import HIDDEN, LINEAR_PRECISION, NETWORK_PRECISION, RowNoise


def test_noise_starts_constant_and_its_penalty_is_that_of_a_normal_prior():
    torch.manual_seed(0)
    noise, inputs = RowNoise(3, 2), torch.randn(5, 3)
    assert torch.equal(noise(inputs), torch.zeros(5, 2))
    assert noise.penalty() == 0.0
    with torch.no_grad():
        for parameter in noise.parameters():
            parameter.normal_()
    assert noise(inputs).std(0).min() > 0.1
    expected, unit = 0.0, torch.cat([noise.hidden.weight, noise.hidden.bias[:, None]], 1).norm(dim=1)
    of_unit = noise.last.weight * unit / (4 / 9) ** 0.5  # of three inputs and a bias, each uniform in ±1/√3
    for precision, weight in ((LINEAR_PRECISION, noise.linear.weight), (NETWORK_PRECISION, of_unit)):
        density = torch.distributions.Normal(0.0, precision**-0.5)
        expected += (density.log_prob(torch.zeros(())) - density.log_prob(weight)).sum().item()
    torch.testing.assert_close(noise.penalty().item(), expected, rtol=1e-5, atol=0)


def test_the_penalty_is_of_the_function_whatever_the_lengths_of_hidden_units():
    torch.manual_seed(1)
    noise, inputs = RowNoise(3, 2).double(), torch.randn(50, 3).double()
    torch.nn.init.normal_(noise.last.weight)
    function, penalty = noise(inputs), noise.penalty()
    with torch.no_grad():
        noise.hidden.weight.mul_(100.0)
        noise.hidden.bias.mul_(100.0)
        noise.last.weight.div_(100.0)
    torch.testing.assert_close(noise(inputs), function)
    torch.testing.assert_close(noise.penalty(), penalty)
    many = [RowNoise(3, 2) for _ in range(400)]
    for one in many:
        torch.nn.init.ones_(one.last.weight)
    mean = sum(one.penalty().item() for one in many) / len(many)
    assert abs(mean / (0.5 * NETWORK_PRECISION * 2 * HIDDEN) - 1.0) < 0.05  # at first, lengths are 1 on average
