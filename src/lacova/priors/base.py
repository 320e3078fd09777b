"""The protocol of latent priors p_θ(Z | X), and what passes between them and the rest of the model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn

from lacova.covariates.scenarios import Scenarios
from lacova.data.batches import Batch
from lacova.data.covariate_space import CovariateSpace
from lacova.data.distributions import FactorisedDistribution
from lacova.nn.latents import Chain, Latents
from lacova.nn.linalg import log_normal


class NaturalStatistics(NamedTuple):
    """The likelihood of the inducing values v in natural form, scaled to the whole table.

    Attributes:
        precision: A (L×M×M), the precision that the rows add to that of p(v).
        shift: b (L×M), the product of precision and mean that the rows add.
    """

    precision: Tensor
    shift: Tensor


class PriorTerms(NamedTuple):
    """The terms of the bound that a latent prior adds for a batch.

    Attributes:
        latent: E KL[q(Z) ‖ p(Z | X)], or a bound on it without `inducing`, scaled to the whole table.
        inducing: KL[q(v) ‖ p(v)] of the inducing values; zero if there are none.
        statistics: the statistics by which a natural-gradient step moves q(v); None if there is no q(v).
    """

    latent: Tensor
    inducing: Tensor
    statistics: NaturalStatistics | None = None


class Encoded(NamedTuple):
    """Scenarios and q(Z) of one batch of training rows, for `LatentPrior.cache_posterior`.

    Mean and variance are those of the rows (N̂×L), or of the completed rows (K×L) for a prior that is `by_scenario`.
    """

    scenarios: Scenarios
    batch: Batch
    mean: Tensor
    var: Tensor


class Density(NamedTuple):
    """log p(z | x) of K draws of the rows of a batch.

    Attributes:
        value: log p(z | x) (K×N̂). Where the rows of a patient are coupled, the first row holds the value of all of
            them and the others hold zero. For a GP prior it is a lower bound, without `inducing`.
        inducing: KL[q(v) ‖ p(v)] of the inducing values; None if there are none.
        statistics: function of the weight of each draw of each row (K×N̂) that returns the statistics by which a
            natural-gradient step moves q(v); None if there is no q(v).
    """

    value: Tensor
    inducing: Tensor | None = None
    statistics: Callable[[Tensor], NaturalStatistics] | None = None


class History(NamedTuple):
    """Earlier visits of the patients whose new rows are predicted.

    Attributes:
        x: completed covariates (K×Q).
        mean, var: q(z) of the visits (K×L each).
        group: patient of each visit (K,), numbered as the new rows are.
        trained: whether the visits of each patient were training rows, so that the posterior of v includes them (P,).
        chain: how q(Z) couples the visits, with one line per patient; None if they are independent.
    """

    x: Tensor
    mean: Tensor
    var: Tensor
    group: Tensor
    trained: Tensor
    chain: Chain | None = None


class LatentPrior(nn.Module, ABC):
    """A latent prior p_θ(Z | X): the protocol that a prior of one's own implements.

    A subclass must define two methods:

        kl: E KL[q(Z) ‖ p(Z | X)] of a batch, which training minimises.
        predict: mean and variance of z at given covariates.

    The class method `build` makes the prior of a model. The other methods have defaults, which are right where z is
    normal and rows are independent given x:

        sample: draw z. Default: independent normals with the moments of `predict`.
        log_density: log p(z | x), each row by itself. Default: the normal density with the moments of `predict`.
        density: log p(z | x) of several draws of a batch, for importance weights. Default: `log_density` of each row.
        sample_both: draw z at two versions of x with the same random numbers. Default: `sample` twice, from the same
            state of the generator.
        draw_shared: draw what is uncertain and common to all rows, once for all batches. Default: None.
        natural_step: move q(v) by the statistics that `kl` returned. Default: there is no q(v).
        cache_posterior: keep what prediction needs of the training rows. Default: keep nothing.

    Class attributes, which an instance may override, describe the prior to the rest of the model:

        independent: whether rows are independent given x and the trained parameters. Default: True.
        couples_rows: whether the rows of a patient are coupled, so that scenarios complete whole patients and
            prediction uses their history. Default: False.
        width: numbers per row and draw that `predict` and `sample` hold at a time; it limits the size of batches.
            Default: 1.
        integrates: whether `kl` integrates over q(x_u) in closed form where scenarios leave gaps. Default: False.
        by_scenario: whether `kl` takes q(Z) of each completed row, so that q(z) can depend on the covariates of the
            scenario. Default: False, q(Z) of each row.
        scenario_columns: columns of X whose gaps scenarios must complete; None for all. Default: None.
        fast: whether Adam moves its parameters at `fast_learning_rate`, as it does kernel parameters. Default: False.

    Shapes: N̂ rows of the batch, K completed rows, L latent dimensions, Q covariates.
    """

    part_kind: ClassVar[str] = "latent prior"
    independent: bool = True
    couples_rows: bool = False
    width: int = 1
    integrates: bool = False
    by_scenario: bool = False
    scenario_columns: Sequence[int] | None = None
    fast: bool = False
    inducing_count: int = 0  # M of a GP prior, by which its state is stored

    @classmethod
    def build(cls, space: CovariateSpace, latent_dim: int, **configuration: Any) -> Self:
        """Build the prior for a layout of X; by default, `cls(space, latent_dim, **configuration)`."""
        return cls(space, latent_dim, **configuration)

    @abstractmethod
    def kl(self, scenarios: Scenarios, batch: Batch, q: Latents, q_x: FactorisedDistribution) -> PriorTerms:
        """Compute E_{x_u} KL[q(Z) ‖ p(Z | X)], scaled to the whole table by `batch.scale`.

        Args:
            scenarios: completions of the batch with their probabilities, over which the expectation is taken.
            batch: the rows.
            q: q(Z), of each row (N̂×L) or, for a prior that is `by_scenario`, of each completed row (K×L). Rows are
                independent, unless the model's encoder couples them by a chain.
            q_x: q(x_u), from which the scenarios come, for a prior that `integrates`.
        """

    @abstractmethod
    def predict(self, x: Tensor, group: Tensor, history: History | None = None) -> tuple[Tensor, Tensor]:
        """Return mean and variance (K×L each) of z at completed covariates x (K×Q).

        Args:
            x: completed covariates.
            group: patient of each row (K,).
            history: earlier visits of the same patients, for a prior that couples rows.
        """

    def sample(
        self, x: Tensor, group: Tensor, generator: torch.Generator, history: History | None = None, times: int = 1
    ) -> Tensor:
        """Draw z (times·K×L): all rows once, then all rows again, jointly within a group where rows are coupled."""
        mean, var = (part.repeat(times, 1) for part in self.predict(x, group, history))
        return mean + var.sqrt() * torch.randn(mean.shape, generator=generator, device=mean.device, dtype=mean.dtype)

    def log_density(self, z: Tensor, x: Tensor) -> Tensor:
        """Return log p(z | x) (K,) of each row by itself, for z (K×L) and x (K×Q)."""
        return log_normal(z, *self.predict(x, torch.arange(len(x), device=x.device)))

    def density(self, z: Tensor, x: Tensor, batch: Batch, chain: Chain | None = None) -> Density:
        """Return log p(z | x) of draws of z (K×N̂×L) at completed covariates x (K×N̂×Q).

        `chain` holds the rows of each patient that q(Z) couples, for a prior that couples them as well.
        """
        del chain
        return Density(self.log_density(z.flatten(0, 1), x.flatten(0, 1)).unflatten(0, x.shape[:2]))

    def sample_both(
        self, x: Tensor, other: Tensor, group: Tensor, generator: torch.Generator, shared: Tensor | None,
        history: History | None = None, times: int = 1,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Draw z (times·K×L each) at x and at `other` covariates of the same rows, with the same random numbers.

        `shared` comes from `draw_shared`, so that batches have it in common. The other arguments are those of `sample`.
        """
        state = generator.get_state()
        z = self.sample(x, group, generator, history, times)
        generator.set_state(state)
        return z, self.sample(other, group, generator, history, times)

    def draw_shared(self, draws: int, generator: torch.Generator) -> Tensor | None:
        """Draw what is uncertain about p(z | x) and common to all rows; None if there is nothing."""
        return None

    def natural_step(self, statistics: NaturalStatistics, rate: float | Tensor) -> None:
        """Take a natural-gradient step of q(v), if `kl` returned statistics."""
        raise NotImplementedError(f"{type(self).__name__} has no q(v)")

    def cache_posterior(self, encoded: Iterable[Encoded]) -> None:
        """Keep what prediction needs of all training rows, once training is over."""
        del encoded
