"""Draws spread over the members of an ensemble, so that they vary in the parameters, too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from lacova.data.covariate_space import CovariateSpace
from lacova.inference.draws import Draws
from lacova.inference.vae import ConditionalVAE

T = TypeVar("T")


def spread(
    members: Sequence[ConditionalVAE], draws: int, draw: Callable[[int, int], Iterable[T]],
    merge: Callable[[Sequence[T]], T],
) -> Iterator[T]:  # fmt: skip
    """Yield draws part by part, as many from each member; of fewer draws than members, one from each of the first.

    Args:
        members: the models.
        draws: how many of each row.
        draw: returns so many draws of a member, given its place in `members`, part by part: the same parts for all.
        merge: joins the draws of one part.
    """
    used = min(len(members), draws)
    each = -(-draws // used)
    parts = [draw(place, each) for place in range(used)]
    if used == 1:
        yield from parts[0]
        return
    for part in zip(*parts, strict=True):
        yield merge(part)


def interleave(parts: Sequence[Tensor], draws: int | None = None) -> Tensor:
    """Join draws (draws×…) of several members: the first of each, then the second of each; the first `draws` of all."""
    return torch.stack(tuple(parts), dim=1).flatten(0, 1)[:draws]


def merge_draws(parts: Sequence[Draws], draws: int, space: CovariateSpace) -> Draws:
    """Join the draws of several members at the same rows, `draws` in all; weighted draws are kept whole."""
    first = parts[0]
    count = draws if first.weight is None else None

    def joined(values: Sequence[Tensor | None]) -> Tensor | None:
        known = [value for value in values if value is not None]
        return interleave(known, count) if known else None

    def averaged(values: Sequence[Tensor | None]) -> Tensor | None:
        known = [value for value in values if value is not None]
        return torch.stack(known).mean(0) if known else None

    probs = averaged([part.x_level_probabilities for part in parts])
    best = averaged([part.most_probable_x for part in parts])
    if best is not None and probs is not None and space.categorical:
        columns = space.on(best.device).categorical
        best = best.index_copy(1, columns, probs[:, columns].argmax(-1).to(best.dtype))
    weight = joined([part.weight for part in parts])
    return Draws(
        first.rows, interleave([part.location for part in parts], count),
        interleave([part.var.expand_as(part.location) for part in parts], count),
        interleave([part.y for part in parts], count), interleave([part.x for part in parts], count),
        outputs=joined([part.outputs for part in parts]),
        level_probabilities=averaged([part.level_probabilities for part in parts]),
        weight=None if weight is None else weight / len(parts), most_probable_x=best, x_level_probabilities=probs,
    )  # fmt: skip
