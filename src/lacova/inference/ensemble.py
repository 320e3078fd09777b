"""Draws spread over the members of an ensemble, so that they vary in the parameters, too.

A draw of a measurement or a covariate is that of its member. For means, which have no noise of their own, five members
would be five values, whose range is much narrower than the interval of which they are draws: `MemberDoubt` completes
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from lacova.data.covariate_space import CovariateSpace
from lacova.inference.draws import Draws
from lacova.inference.vae import ConditionalVAE
from lacova.likelihoods.moments import Moments

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


class MemberDoubt:
    """Draws of means that vary as the parameters do, although there are few members.

    m_k is the mean over the draws of member k, and M the mean of all. With each draw, m_k − M is replaced by a draw of
    the multivariate t distribution with K − 1 degrees of freedom and scale (1 + 1/K)/(K − 1) Σ_k (m_k − M)(m_k − M)ᵀ:
    that of the mean of a study whose members vary by this covariance. All parts of an answer have the same draws of it,
    so that they can be averaged over rows. The draws come in pairs of opposite sign, so that they add nothing to M.

    Args:
        members: K, the number of members.
        draws: how many draws there are, interleaved: the first of each member, then the second of each.
        generator: source of random numbers.
    """

    def __init__(self, members: int, draws: int, generator: torch.Generator) -> None:
        self.members = min(members, draws)
        if self.members > 1:
            shape = draws // 2, 2 * self.members - 1
            normal = torch.randn(shape, generator=generator, device=generator.device, dtype=torch.float64)
            scale = (1.0 + 1.0 / self.members) / normal[:, self.members :].square().sum(1)  # over χ² of K − 1
            half = normal[:, : self.members] * scale.sqrt()[:, None]
            unpaired = half.new_zeros(draws % 2, self.members)
            self.weights = torch.cat([half, -half, unpaired]) * (draws / (draws - draws % 2)) ** 0.5

    def estimate(self, values: Tensor) -> Tensor:
        """Return M of draws (draws×…): the mean over members of the means over their draws."""
        return values.mean(0) if self.members == 1 else self._means(values).mean(0)

    def __call__(self, values: Tensor, moments: Moments | None = None) -> Tensor:
        """Return draws (draws×…) with the doubt of the members completed.

        Args:
            values: the draws.
            moments: what they are means of, if they are: they are then completed on a scale that has no bounds, so that
                probabilities and positive means stay what they are. Their mean is not M where that scale is another.
        """
        if self.members == 1:
            return values
        values = values if moments is None else moments.unbounded(values)
        means = self._means(values)
        member = torch.arange(len(values), device=values.device) % self.members
        deviations = (means - means.mean(0)).flatten(1)
        doubt: Tensor = (self.weights.to(values) @ deviations).view_as(values)
        completed = doubt + values - means[member] + means.mean(0)
        return completed if moments is None else moments.bounded(completed)

    def _means(self, values: Tensor) -> Tensor:
        return torch.stack([values[k :: self.members].mean(0) for k in range(self.members)])
