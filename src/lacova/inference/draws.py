"""Draws for some rows of a table, and the batches in which rows are drawn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from lacova.data.batches import Batch, Batches
from lacova.data.table import Table
from lacova.inference.vae import ConditionalVAE, Observed

# Numbers per array that are held at a time, of those decoded (rows × draws × D) or of the prior's; bounds memory.
CHUNK = 4_000_000


class Draws(NamedTuple):
    """Draws for some rows of a table.

    Attributes:
        rows: the rows (n,).
        location: mean of y given z and x per draw (draws×n×D); its mean over draws is the mean of y.
        var: variance of y given z and x, of Gaussian columns; broadcasts to the shape of `location`.
        y: draws of y itself (draws×n×D).
        x: the completed covariates behind each draw (draws×n×Q).
        outputs: decoder outputs per draw, where some columns are not Gaussian; None if all are.
        level_probabilities: probability of each level of categorical measurements (n×D×K); None if there are none.
        weight: of each draw of each row (draws×n), which sum to one over the draws; None where draws count equally.
        most_probable_x: completed covariates with means and most probable levels (n×Q); of imputations.
        x_level_probabilities: probability of each level of categorical covariates (n×Q×K); of imputations.
    """

    rows: Tensor
    location: Tensor
    var: Tensor
    y: Tensor
    x: Tensor
    outputs: Tensor | None = None
    level_probabilities: Tensor | None = None
    weight: Tensor | None = None
    most_probable_x: Tensor | None = None
    x_level_probabilities: Tensor | None = None

    def average(self, values: Tensor) -> Tensor:
        """Return the mean over draws of some values (draws×n×…)."""
        return values.mean(0) if self.weight is None else (self.weight[..., None] * values).sum(0)


def chunks(
    table: Table, draws: int, generator: torch.Generator | None = None, width: int = 1
) -> Iterator[tuple[Tensor, Batch]]:
    """Yield batches of rows or whole patients, and their rows, such that about CHUNK numbers are held at a time.

    Args:
        table: the rows.
        draws: how many of each row.
        generator: if given, batches have one row or patient each, and this generator is in the same state before each.
        width: numbers per draw of a row, where they are more than the D that are decoded.
    """
    if generator is None:
        rows_per_unit = 1 if table.patient is None else -(-len(table) // len(table.labels))
        yield from Batches(table, max(1, CHUNK // (draws * max(width, table.y.shape[1]) * rows_per_unit))).in_order()
        return
    state = generator.get_state()
    for rows, batch in Batches(table, 1).in_order():
        generator.set_state(state)
        yield rows, batch


def to_draws(
    vae: ConditionalVAE, rows: Tensor, observed: Observed, x: Tensor, chosen: Tensor | slice = slice(None),
    weight: Tensor | None = None,
) -> Draws:  # fmt: skip
    """Return draws for those of the observed rows that are chosen, with their weights if they have any."""
    var = observed.var if observed.var.dim() == 1 else observed.var[:, chosen]
    outputs = None if observed.outputs is None else observed.outputs[:, chosen]
    own = Observed(observed.mean[:, chosen], var, observed.y[:, chosen], outputs)
    return Draws(rows, own.mean, own.var, own.y, x, outputs, vae.level_probabilities(own, weight), weight)


def standard_normal(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=generator, device=like.device, dtype=like.dtype)
