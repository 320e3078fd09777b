"""Random batches, tables, mixtures and distributions with gaps, for the tests of this folder."""

from dataclasses import replace

import torch

from lacova.covariates.mixture import Mixture
from lacova.covariates.prior import FactorisedPrior
from lacova.data.batches import Batch, Batches
from lacova.data.covariate_space import CovariateSpace
from lacova.data.distributions import ConditionalPrior, FactorisedDistribution
from lacova.data.table import Table

# continuous, 3 levels, 2 levels, static 2 levels, static continuous
SPACE = CovariateSpace(("a", "c3", "c2", "s2", "sa"), (0, 3, 2, 2, 0), (False, False, False, True, True))
# Without static columns: both kinds, continuous ones only, categorical ones only.
MIXED = CovariateSpace(("a", "c3", "b", "c2", "d"), (0, 3, 0, 2, 0), (False,) * 5)
NUMBERS = CovariateSpace(("a", "b", "d"), (0, 0, 0), (False,) * 3)
CATEGORIES = CovariateSpace(("c3", "c2"), (3, 2), (False,) * 2)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def rows(space, n, missing, seed=0):
    """Rows x (N×Q) with gaps at random, and their mask."""
    g = generator(seed)
    x = torch.randn(n, len(space.names), generator=g, dtype=torch.float64)
    for q in space.categorical:
        x[:, q] = torch.randint(space.levels[q], (n,), generator=g).double()
    mask = torch.rand(x.shape, generator=g) >= missing
    return torch.where(mask, x, 0.0), mask


def rows_with_extremes(space, n=12, missing=0.5, seed=0):
    """As `rows`, with a complete first row and an empty second one."""
    x, _ = rows(space, n, 0.0, seed)
    mask = rows(space, n, missing, seed)[1]
    mask[0], mask[1] = True, False
    return torch.where(mask, x, 0.0), mask


def table(x, mask, patient=None):
    """A table of covariates without measurements."""
    y = torch.zeros(len(x), 1, dtype=x.dtype)
    return Table(y, y.bool(), torch.where(mask, x, 0.0), mask, patient, ())


def share_within_patients(values, patient, space):
    """Copy the static columns of each patient's first row to all its rows."""
    first = torch.stack([(patient == p).nonzero()[0, 0] for p in patient])
    return torch.where(torch.tensor(space.static), values[first], values)


def batch(visits=(2, 3, 1), missing=0.5, seed=0, space=SPACE, gaps=None):
    """Rows of patients with these numbers of visits; gaps at random, or the mask `gaps`."""
    g = generator(seed)
    patient = torch.repeat_interleave(torch.arange(len(visits)), torch.tensor(visits))
    n, q = len(patient), len(space.names)
    x = torch.randn(n, q, generator=g, dtype=torch.float64)
    for c in space.categorical:
        x[:, c] = torch.randint(space.levels[c], (n,), generator=g).double()
    mask = torch.rand(n, q, generator=g) > missing if gaps is None else ~torch.as_tensor(gaps)
    x, mask = (share_within_patients(values, patient, space) for values in (x, mask))
    y = torch.randn(n, 2, generator=g, dtype=torch.float64)
    return Batch(y, torch.ones(n, 2, dtype=torch.bool), torch.where(mask, x, 0.0), mask, patient)


def as_table(b, labels=()):
    """The rows of a batch as a table."""
    return Table(b.y, b.y_mask, b.x, b.x_mask, b.patient, labels)


def patients_table(patients, missing, seed=0):
    """A table of patients with three visits each."""
    return as_table(batch((3,) * patients, missing, seed), tuple(range(patients)))


def conditioned(t, prior, patients=None):
    """A batch of some patients (None: all) of a table, with its conditional prior."""
    batches = Batches(replace(t, conditional_prior=prior.condition(t)))
    return batches.batch(torch.arange(batches.units) if patients is None else patients)


def distribution(b, space=SPACE, seed=1):
    """A factorised distribution of the rows of a batch; static columns have one per patient."""
    g = generator(seed)
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


def parts(distribution):
    """Mean, variance and log probabilities of a distribution or a factorised prior."""
    return distribution.mean, distribution.var, distribution.log_prob


def with_prior(b, seed=1):
    """The batch with a random conditional prior."""
    return replace(b, conditional_prior=ConditionalPrior(distribution(b, seed=seed), b.x.new_zeros(len(b))))


def marginal():
    """The marginals of a larger table of SPACE."""
    return FactorisedPrior.learn(SPACE, as_table(batch((3,) * 30, 0.3, seed=9)))


def mixture(space, components=3, seed=0):
    g = generator(seed)
    k, j = len(space.continuous), len(space.categorical)
    root = torch.randn(components, k, k, generator=g, dtype=torch.float64)
    logits = torch.randn(components, j, space.max_levels, generator=g, dtype=torch.float64)
    for i, q in enumerate(space.categorical):
        logits[:, i, space.levels[q] :] = -torch.inf
    return Mixture(
        space, torch.randn(components, generator=g, dtype=torch.float64).log_softmax(0),
        1.5 * torch.randn(components, k, generator=g, dtype=torch.float64),
        root @ root.mT + 0.3 * torch.eye(k, dtype=torch.float64), logits.log_softmax(-1),
    )  # fmt: skip
