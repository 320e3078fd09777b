"""The network behind noise that depends on the row."""

import torch

from lacova.nn.row_noise import LINEAR_PRECISION, NETWORK_PRECISION, RowNoise


def test_noise_starts_constant_and_its_penalty_is_that_of_a_normal_prior():
    torch.manual_seed(0)
    noise, inputs = RowNoise(3, 2), torch.randn(5, 3)
    assert torch.equal(noise(inputs), torch.zeros(5, 2))
    assert noise.penalty() == 0.0
    with torch.no_grad():
        for parameter in noise.parameters():
            parameter.normal_()
    assert noise(inputs).std(0).min() > 0.1
    expected = 0.0
    for precision, weight in ((LINEAR_PRECISION, noise.linear.weight), (NETWORK_PRECISION, noise.last.weight)):
        density = torch.distributions.Normal(0.0, precision**-0.5)
        expected += (density.log_prob(torch.zeros(())) - density.log_prob(weight)).sum().item()
    torch.testing.assert_close(noise.penalty().item(), expected, rtol=1e-5, atol=0)
