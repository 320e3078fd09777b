"""The masked-covariate loss: observed covariates are masked, and q(x_u | ·) is trained to predict them.

The bound moves q away from the prior only as far as x explains y beyond the latent variables. Where the latent
variables explain y on their own, as with sex and a few dozen laboratory values, q never learns to depend on y. The
masked loss trains q directly: −log q at the masked values, like the classification term of semi-supervised VAEs. Its
gradient reaches the parameters of q only.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from lacova.covariates import factorised
from lacova.data.batches import Batch
from lacova.data.covariate_space import CovariateSpace
from lacova.data.distributions import FactorisedDistribution
from lacova.data.table import Table

# Limits on the share of a column's observed entries that are masked at a time.
MIN_RATE, MAX_RATE = 0.1, 0.5
# A model that is learnt from poorly completed numbers takes their effects for small, and the bound draws q to what the
# model takes for true. What q foretells of observed values is right from the start.
REGRESSED_WEIGHT = 5.0


def mask_more(table: Table, space: CovariateSpace, rate: Tensor, generator: torch.Generator) -> Table:
    """Mask some observed covariates at random; in visit-constant columns, those of whole patients.

    Of other columns, too, as many patients lose all values as have none, within the rate: a run of gaps over all visits
    is another task for q than a gap between observed visits.

    Masked entries keep their values in `x`. The result has no conditional prior: that of `table` may depend on
    entries that are now masked, so the caller must condition again.

    Args:
        table: the rows, on the host.
        space: layout of X.
        rate: probability with which each column's entries are masked (Q,).
        generator: random numbers.
    """
    uniform = torch.rand(table.x.shape, generator=generator)
    if table.patient is None:
        kept = uniform >= rate
    else:
        static = torch.tensor(space.static)
        throughout = torch.where(static, rate, _missing_throughout(table, table.patient).minimum(rate))
        left = (rate - throughout) / (1.0 - throughout).clamp_min(1e-6)
        of_patient = torch.rand(table.x.shape, generator=generator)
        of_patient = torch.where(static, uniform, of_patient)[table.patient]  # row p decides for patient p
        kept = (of_patient >= throughout) & (static | (uniform >= left))
    return replace(table, x_mask=table.x_mask & kept, conditional_prior=None)


def _missing_throughout(table: Table, patient: Tensor) -> Tensor:
    """Return the share of the patients who have no value of a column at any visit (Q,)."""
    visits = torch.bincount(patient)
    seen = torch.zeros(len(visits), table.x_mask.shape[1]).index_add(0, patient, table.x_mask.float())
    return (seen[visits > 0] == 0).float().mean(0)


def masking_rate(table: Table) -> Tensor:
    """Return the share of entries to mask in each column (Q,): as many as are missing, within MIN_RATE and MAX_RATE."""
    return (~table.x_mask).float().mean(0).clamp(MIN_RATE, MAX_RATE)


def masked_log_prob(
    q: FactorisedDistribution, batch: Batch, masked: Batch, space: CovariateSpace, regressed: Tensor | None = None
) -> Tensor:
    """Compute Σ log q over the entries observed in `batch` but not in `masked`; a visit-constant one counts once.

    Entries of columns whose q starts from a regression on visits (a mask `regressed`, Q,) count REGRESSED_WEIGHT times.
    """
    entries = factorised.free_entries(batch, space, masked.x_mask) & batch.x_mask
    total = factorised.log_density(q.by_entry(), batch.x[None], entries, space).sum()
    if regressed is None:
        return total
    again = factorised.log_density(q.by_entry(), batch.x[None], entries & regressed, space).sum()
    return total + (REGRESSED_WEIGHT - 1.0) * again
