"""Teaching q(x_u | ·) by recall: observed covariates are hidden from it, and it is asked for them.

The bound moves q away from the prior only as far as the model can explain y by x. Where the latent variables explain y
first, as with sex and a few dozen laboratory values, q then never learns to look at y at all. Recall asks directly:
log q at the hidden values, the classifier's term of semi-supervised VAEs. Its gradient reaches q alone.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from lacova.covariates import factorised
from lacova.data.batches import Batch
from lacova.data.covariate_space import CovariateSpace
from lacova.data.distributions import FactorisedDistribution
from lacova.data.encoder import Table

# Share of a column's observed entries that are hidden at a time: as many as are missing, within these limits.
LEAST, MOST = 0.1, 0.5


def hide(table: Table, space: CovariateSpace, share: Tensor, generator: torch.Generator) -> Table:
    """The table with more gaps, not prepared; visit-constant columns lose the value of a whole patient.

    Hidden entries keep their values in `x`, behind the mask. The prior must be asked again: what it says of the
    table's own gaps may rest on entries that are now hidden.

    Args:
        table: the rows, on the host.
        space: layout of X.
        share: of each column's entries that are hidden (Q,).
        generator: source of the choice.
    """
    lot = torch.rand(table.x.shape, generator=generator)
    if table.patient is not None:
        lot = torch.where(torch.tensor(space.static), lot[table.patient], lot)  # row p speaks for patient p
    return replace(table, x_mask=table.x_mask & (lot >= share), conditional_prior=None)


def hidden_share(table: Table) -> Tensor:
    """Per column (Q,), the share of entries to hide."""
    return (~table.x_mask).float().mean(0).clamp(LEAST, MOST)


def masked_log_prob(q: FactorisedDistribution, batch: Batch, hidden: Batch, space: CovariateSpace) -> Tensor:
    """Σ log q over the entries that `batch` shows and `hidden` does not; a visit-constant one counts once."""
    asked = factorised.free_entries(hidden, space) & batch.x_mask
    return factorised.log_density(q, batch.x[None], asked, space).sum()
