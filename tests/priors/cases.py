"""Small batches, latents and networks for the tests of latent priors."""

import torch
from torch import nn

from lacova.covariates.scenarios import Scenarios
from lacova.data.batches import Batch
from lacova.nn.latents import Latents


class Given(nn.Module):
    """A network with a given output: a tensor, or a function of the inputs."""

    def __init__(self, output):
        super().__init__()
        self.output = output

    def forward(self, *inputs):
        return self.output(*inputs) if callable(self.output) else self.output


def batch_of(count, real=None):
    """Rows by themselves; a prior with independent rows needs their number only, and which of them are real."""
    x = torch.zeros(count, 1)
    return Batch(x, x > 0, x, x == 0, torch.arange(count), 1.0, None, count, real)


def some_latents(count=6, latent=2):
    """q(Z) of independent rows."""
    generator = torch.Generator().manual_seed(0)
    mean, log_var = torch.randn(2, count, latent, generator=generator, dtype=torch.float64)
    return Latents(mean, log_var.exp())


def each_row(count, weight=None):
    """Scenarios of rows without gaps; padding has weight 0."""
    number, zero = torch.arange(count), torch.zeros(count, dtype=torch.long)
    weight = torch.ones(count, dtype=torch.float64) if weight is None else weight
    return Scenarios(torch.zeros(count, 1), number, number, zero, weight, number, zero, count, 1)


def kl_without_x(prior, q, rows=slice(None)):
    """The KL of some rows under a prior that does not depend on x."""
    q = Latents(q.mean[rows], q.var[rows])
    return prior.kl(each_row(len(q.mean)), batch_of(len(q.mean)), q, None).latent
