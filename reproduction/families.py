"""Comparison of families for the posterior of missing covariates: independent normals, a full covariance, mixtures.

    python -m reproduction.families --images mnist.npz

Each family's network is trained by the masked-covariate loss alone on rotated digits. It then predicts the missing
covariates of test rows given the observed part of their images. The program prints the mean log density per missing
entry (higher is better) and the mean squared error.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from lacova.covariates.masked_loss import mask_more, masking_rate
from lacova.covariates.mixture import Conditional
from lacova.covariates.prior import JointPrior
from lacova.data.table_encoder import TableEncoder
from lacova.nn.networks import mlp
from reproduction.config import read
from reproduction.data import Sources, study

FAMILIES = ("independent", "full covariance", "mixture of 2", "mixture of 4", "prior's components")


class Family:
    """A density of some entries of x, parametrised by the output of a network."""

    def __init__(self, name: str, columns: int, components: int) -> None:
        self.name, self.columns = name, columns
        self.components = {"mixture of 2": 2, "mixture of 4": 4, "prior's components": components}.get(name, 1)
        scales = columns * (columns + 1) // 2 if name == "full covariance" else columns
        self.outputs = self.components * (1 + columns + scales)

    def parts(self, out: Tensor, prior: Conditional) -> tuple[Tensor, Tensor, Tensor]:
        """Return log weights (N×C), means (N×C×Q) and raw scales."""
        weight, mean, scale = out.view(len(out), self.components, -1).tensor_split([1, 1 + self.columns], -1)
        if self.name == "prior's components":
            mean = mean + prior.mean.float()
            own = prior.covariance.diagonal(dim1=-2, dim2=-1)[prior.pattern].float().clamp_min(1e-6)
            return (weight[..., 0] + prior.log_weight.float()).log_softmax(1), mean, own.log() + squash(scale)
        return weight[..., 0].log_softmax(1), mean, scale if self.name == "full covariance" else squash(scale)

    def log_density(self, out: Tensor, x: Tensor, entries: Tensor, prior: Conditional) -> Tensor:
        weight, mean, scale = self.parts(out, prior)
        if self.name == "full covariance":
            return self._full(mean[:, 0], scale[:, 0], x, entries.float())
        log_density = -0.5 * ((x[:, None] - mean) ** 2 / scale.exp() + scale + math.log(2.0 * math.pi))
        return (weight + (log_density * entries[:, None]).sum(-1)).logsumexp(1)

    def _full(self, mean: Tensor, raw: Tensor, x: Tensor, entries: Tensor) -> Tensor:
        below = torch.tril_indices(self.columns, self.columns)
        factor = torch.zeros(len(x), self.columns, self.columns)
        factor[:, below[0], below[1]] = raw
        factor = factor.tril(-1) + torch.diag_embed((0.5 * squash(factor.diagonal(dim1=-2, dim2=-1))).exp())
        covariance = factor @ factor.mT * entries[:, :, None] * entries[:, None] + torch.diag_embed(1.0 - entries)
        factor = torch.linalg.cholesky(covariance)
        white = torch.linalg.solve_triangular(factor, ((x - mean) * entries)[..., None], upper=False)[..., 0]
        log_det = 2.0 * factor.diagonal(dim1=-2, dim2=-1).log().sum(1)
        return -0.5 * (white.square().sum(1) + log_det + entries.sum(1) * math.log(2.0 * math.pi))

    def mean(self, out: Tensor, prior: Conditional) -> Tensor:
        weight, mean, _ = self.parts(out, prior)
        return (weight.exp()[..., None] * mean).sum(1)


def squash(value: Tensor) -> Tensor:
    return 8.0 * torch.tanh(value / 8.0)


def compare(dataset: int, missing: float, sources: Sources, epochs: int, seed: int) -> None:
    data = study(dataset, read("lvae")["rows"], missing, seed, sources)
    complete, masked, schema = data.complete, data.masked, data.schema
    encoder = TableEncoder.learn(schema, masked["train"], "none")
    train, test, truth = (
        encoder.encode(masked["train"]),
        encoder.encode(masked["test"]),
        encoder.encode(complete["test"]).x,
    )
    mixture = JointPrior.learn(encoder.space, train, seed).mixture
    gaps = ~test.x_mask

    def inputs(table):
        prior = mixture.condition(table.x.double(), table.x_mask)
        distribution = mixture.distribution(prior)
        seen = table.x_mask.float()
        parts = (
            table.x * seen,
            seen,
            distribution.mean.float(),
            distribution.var.float().log(),
            table.y * table.y_mask,
            table.y_mask,
        )
        return torch.cat(parts, 1), prior

    test_features, test_prior = inputs(test)
    for name in FAMILIES:
        torch.manual_seed(seed)
        generator = torch.Generator().manual_seed(seed)
        family = Family(name, len(encoder.space.names), len(mixture))
        network = mlp([test_features.shape[1], 128, 64, family.outputs])
        optimiser = torch.optim.Adam(network.parameters(), 1e-3)
        for _ in range(epochs):
            hidden = mask_more(train, encoder.space, masking_rate(train), generator)
            features, prior = inputs(hidden)
            entries = train.x_mask & ~hidden.x_mask
            for rows in torch.randperm(len(features), generator=generator).split(100):
                batch_prior = replace(
                    prior, log_weight=prior.log_weight[rows], mean=prior.mean[rows], pattern=prior.pattern[rows]
                )
                density = family.log_density(network(features[rows]), train.x[rows], entries[rows], batch_prior)
                optimiser.zero_grad()
                (-density.sum() / entries[rows].sum()).backward()
                optimiser.step()
        with torch.no_grad():
            out = network(test_features)
            density = float(family.log_density(out, truth, gaps, test_prior).sum() / gaps.sum())
            error = float((family.mean(out, test_prior) - truth)[gaps].square().mean())
        print(f"set {dataset}, {missing:.0%}, {name}: log density {density:.3f}, squared error {error:.4f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, help="MNIST, as for `python -m reproduction run`")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    options = parser.parse_args()
    torch.set_num_threads(1)
    sources = Sources(options.images)
    for seed in options.seeds:
        for dataset in (1, 2, 3):
            for missing in (0.2, 0.4):
                compare(dataset, missing, sources, options.epochs, seed)


if __name__ == "__main__":
    main()
