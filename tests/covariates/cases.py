"""Batches and distributions with gaps, made at random."""

import torch

from lacova.data.batches import Batch
from lacova.data.covariate_space import CovariateSpace
from lacova.data.distributions import FactorisedDistribution

# continuous, 3 levels, 2 levels, static 2 levels, static continuous
SPACE = CovariateSpace(("a", "c3", "c2", "s2", "sa"), (0, 3, 2, 2, 0), (False, False, False, True, True))


def batch(visits=(2, 3, 1), missing=0.5, seed=0, space=SPACE, gaps=None):
    g = torch.Generator().manual_seed(seed)
    patient = torch.repeat_interleave(torch.arange(len(visits)), torch.tensor(visits))
    n, q = len(patient), len(space.names)
    x = torch.randn(n, q, generator=g, dtype=torch.float64)
    for c in space.categorical:
        x[:, c] = torch.randint(space.levels[c], (n,), generator=g).double()
    mask = torch.rand(n, q, generator=g) > missing if gaps is None else ~torch.as_tensor(gaps)
    first = torch.stack([(patient == p).nonzero()[0, 0] for p in patient])
    static = torch.tensor(space.static)
    x, mask = torch.where(static, x[first], x), torch.where(static, mask[first], mask)
    y = torch.randn(n, 2, generator=g, dtype=torch.float64)
    return Batch(y, torch.ones(n, 2, dtype=torch.bool), torch.where(mask, x, 0.0), mask, patient)


def distribution(b, space=SPACE, seed=1):
    g = torch.Generator().manual_seed(seed)
    n, q = b.x.shape
    mean = torch.randn(n, q, generator=g, dtype=torch.float64)
    var = torch.rand(n, q, generator=g, dtype=torch.float64) + 0.2
    logits = torch.randn(n, q, space.max_levels, generator=g, dtype=torch.float64)
    for c in space.categorical:
        logits[:, c, space.levels[c] :] = -torch.inf
    log_prob = torch.log_softmax(logits, -1)
    static = torch.tensor(space.static)
    return FactorisedDistribution(
        torch.where(static, mean[b.owner], mean), torch.where(static, var[b.owner], var),
        torch.where(static[:, None], log_prob[b.owner], log_prob),
    )  # fmt: skip
