"""Contracts that parts of your own can be held against, and that lacova's own parts pass.

Each check builds the part on small made-up data and raises an AssertionError with a sentence where it breaks its
protocol. docs/bring-your-own.md has an example of each.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import asdict, is_dataclass, replace
from functools import partial
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from lacova.covariates import factorised
from lacova.covariates.prior import CovariatePrior
from lacova.covariates.scenarios import complete
from lacova.data.batches import Batch, Batches
from lacova.data.covariate_space import CovariateSpace
from lacova.data.distributions import FactorisedDistribution
from lacova.data.io.archive import pack, unpack
from lacova.data.measurement_space import NO_LIMITS, MeasurementSpace
from lacova.data.table import Table
from lacova.likelihoods.base import Family, FamilyColumns
from lacova.nn.latents import Latents
from lacova.nn.linalg import log_normal
from lacova.nn.networks import Networks
from lacova.priors.base import LatentPrior

__all__ = ["check_covariate_prior", "check_family", "check_kernel", "check_latent_prior", "check_networks"]

T = TypeVar("T")
DRAWS = 200_000
ROWS = CovariateSpace(("age", "dose", "sex"), (0, 0, 3), (False, False, False))
VISITS = CovariateSpace(("day", "age", "drug", "sex"), (0, 0, 2, 3), (False, True, False, True))


def check_family(family: type[Family], *, levels: int = 3) -> None:
    """Check an observation family: densities that integrate to 1, draws that follow them, masks, and its state.

    Args:
        family: the class.
        levels: number of levels of a column, where its `values` are "level".
    """
    is_level = family.values == "level"
    columns = FamilyColumns((levels if is_level else 0,) * 2, (NO_LIMITS,) * 2)
    generator = _generator()
    y, mask = _values(family, (60, 2), levels, generator), torch.rand(60, 2, generator=generator) < 0.8
    part, other = _twice(lambda: family.build(columns).double())
    part.initialise(y, mask)
    other.initialise(torch.where(mask, y, y.roll(7, 0)), mask)
    _check_same_state(part, other, "`initialise` depends on values behind the mask")

    shape = (2,) if family.outputs == 1 else (2, levels if family.outputs is None else family.outputs)
    outputs = (0.5 * torch.randn(5, *shape, generator=generator, dtype=torch.float64)).requires_grad_()
    value = part.log_prob(outputs, y[:5])
    _check(value.shape == (5, 2), f"`log_prob` has shape {tuple(value.shape)}; expected (5, 2), one number per entry")
    _check(value.isfinite().all(), "`log_prob` is not finite at ordinary values")
    (gradient,) = torch.autograd.grad(value.sum(), outputs)
    _check(gradient.isfinite().all() and gradient.abs().sum() > 0, "`log_prob` has no gradient in the outputs")
    many = part.log_prob(outputs.expand(3, *outputs.shape), y[:5])
    _check_close(many[1], value, "`log_prob` does not broadcast over draws")

    fixed = outputs.detach()
    total = _total_probability(part, family, fixed, levels)
    _check_close(total, torch.ones_like(total), "`log_prob` does not integrate to 1", 1e-3)
    draws = part.sample(fixed.expand(DRAWS, *fixed.shape), _generator(1))
    _check(draws.shape == (DRAWS, 5, 2), f"`sample` has shape {tuple(draws.shape[1:])}; expected (5, 2)")
    _check(torch.equal(draws[:3], part.sample(fixed.expand(DRAWS, *fixed.shape), _generator(1))[:3]),
           "`sample` does not depend on its generator alone")  # fmt: skip
    _check_values(family, draws, levels)
    if is_level:
        log_probs = part.log_probabilities(fixed)
        share = torch.stack([(draws == k).double().mean(0) for k in range(levels)], -1)
        _check_close(share, log_probs[..., :levels].exp(), "draws do not follow `log_probabilities`", 0.01)
        at = log_probs.gather(-1, y[:5].long()[..., None])[..., 0]
        _check_close(at, value.detach(), "`log_probabilities` and `log_prob` differ")
    else:
        mean, variance = part.mean(fixed), part.variance(fixed).expand(5, 2).double()
        error = 6.0 * (variance / DRAWS).sqrt() + 1e-9
        _check(((draws.mean(0) - mean).abs() < error).all(), "draws do not have the mean of `mean`")
        _check_close(draws.double().var(0) / variance, torch.ones_like(variance), "nor the variance of `variance`", 0.1)
    again = _twice(lambda: family.build(columns).double())[0]
    again.load_state_dict(part.state_dict())
    _check_close(again.log_prob(fixed, y[:5]), value.detach(), "its state does not restore `log_prob`")
    with torch.device("meta"):  # how a file is checked before it is trusted
        family.build(columns)


def check_networks(networks: Networks, *, measurements: int = 6, latent_dim: int = 2) -> None:
    """Check networks: shapes, masks, gradients, the configuration as JSON, and the state.

    Args:
        networks: an instance, with its configuration.
        measurements: D, where the networks demand a certain number.
        latent_dim: L.
    """
    _check(is_dataclass(networks), "networks must be a dataclass, whose fields are saved with the model")
    fields = {name: unpack(pack(value, name)) for name, value in asdict(cast(Any, networks)).items()}
    _check(type(networks)(**fields) == networks, "its fields do not come back from a file as they were")
    space, generator = MeasurementSpace.of(measurements), _generator()
    y = torch.randn(7, measurements, generator=generator)
    mask = torch.rand(7, measurements, generator=generator) < 0.6
    features, z = torch.randn(7, 4, generator=generator), torch.randn(7, latent_dim, generator=generator)

    def build() -> tuple[nn.Module, nn.Module]:
        return networks.build_encoder(space, 4, latent_dim), networks.build_decoder(latent_dim, measurements)

    (encoder, decoder), others = _twice(build, same=False)
    for part in (encoder, decoder, *others):
        part.eval()
    mean, var = encoder(y, mask, features)
    _check(mean.shape == var.shape == (7, latent_dim), f"the encoder gives {tuple(mean.shape)} and {tuple(var.shape)}; "
           f"expected mean and variance of {(7, latent_dim)}")  # fmt: skip
    _check(bool((var > 0).all()) and mean.isfinite().all(), "the encoder's variances must be positive, means finite")
    hidden = encoder(torch.where(mask, y, 1e3), mask, features)[0]
    _check_close(hidden, mean, "the encoder depends on values behind the mask")
    _check(not torch.equal(encoder(y + mask, mask, features)[0], mean), "the encoder ignores the measurements")
    outputs = decoder(z)
    _check(
        outputs.shape == (7, measurements), f"the decoder gives {tuple(outputs.shape)}; expected {(7, measurements)}"
    )
    (mean.sum() + var.sum() + outputs.sum()).backward()
    for part in (encoder, decoder):
        _check(all(p.grad is not None for p in part.parameters()), "a parameter does not enter the output")
    for part, other in zip((encoder, decoder), others, strict=True):
        other.load_state_dict(part.state_dict())
    _check_close(others[1](z), outputs.detach(), "the state does not restore the decoder")
    _check_close(others[0](y, mask, features)[0], mean.detach(), "the state does not restore the encoder")
    with torch.device("meta"):  # how a file is checked before it is trusted
        build()


def check_kernel(make: Callable[[], nn.Module], *, columns: int = 1) -> None:
    """Check a kernel with GPyTorch's interface: symmetric, positive semi-definite, consistent, differentiable.

    Args:
        make: the registered class or function, called without arguments.
        columns: how many covariates it takes.
    """
    kernel = copy.deepcopy(make()).double()
    x = torch.randn(6, columns, generator=_generator(), dtype=torch.float64)
    gram = _dense(kernel, x, x)
    _check(gram.shape == (6, 6), f"the kernel of 6 rows has shape {tuple(gram.shape)}; expected (6, 6)")
    _check_close(gram.mT, gram, "the kernel is not symmetric")
    fixed = gram.detach()
    least = float(torch.linalg.eigvalsh(fixed).min())
    _check(least > -1e-8 * float(fixed.diagonal().max()), f"the kernel is not positive semi-definite: {least}")
    _check_close(_dense(kernel, x[:3], x[3:]), gram[:3, 3:], "values depend on the other rows")
    _check_close(kernel(x).diagonal(dim1=-1, dim2=-2), gram.diagonal(), "its diagonal differs from its values")
    _check_close(_dense(kernel, x.expand(2, 6, columns), x.expand(2, 6, columns))[1], gram, "batches of rows differ")
    gram.sum().backward()
    _check(all(p.grad is not None for p in kernel.parameters()), "a parameter does not enter the kernel")
    again = copy.deepcopy(make()).double()
    again.load_state_dict(kernel.state_dict())
    _check_close(_dense(again, x, x), gram.detach(), "its state does not restore it")


def check_covariate_prior(prior: type[CovariatePrior] | partial[CovariatePrior], *, visits: bool = False) -> None:
    """Check a covariate prior: conditionals, draws, density and KL that agree with each other, and its state.

    Args:
        prior: the class, or `functools.partial` of it with its configuration.
        visits: whether it is for tables with patients, which have visit-constant columns and a time.
    """
    kind, configuration = (prior.func, prior.keywords) if isinstance(prior, partial) else (prior, {})
    space, time = (VISITS, 0) if visits else (ROWS, None)
    table, generator = _table(space, visits), _generator(2)
    part = cast(Any, kind).from_table(space, table, time, 0, **configuration)
    conditional = part.condition(table)
    p = conditional.distribution
    _check(p.mean.shape == p.var.shape == table.x.shape, "`condition` must give mean and variance of every entry")
    _check(bool((p.var > 0).all()), "`condition` gives a variance that is not positive")
    for q in space.categorical:
        total = p.log_prob[:, q, : space.levels[q]].exp().sum(-1)
        _check_close(total, torch.ones_like(total), "`condition` gives probabilities that do not sum to 1", 1e-4)
    garbled = replace(table, x=torch.where(table.x_mask, table.x, 1.0 - table.x))
    _check_close(part.condition(garbled).distribution.mean, p.mean, "`condition` depends on values behind the mask")

    batches = Batches(replace(table, conditional_prior=conditional))
    batch = batches.batch(torch.arange(batches.units))
    x = part.draw(batch, 4000, generator)
    _check(x.shape == (4000, *batch.x.shape), f"`draw` gives {tuple(x.shape)}; expected {(4000, *batch.x.shape)}")
    _check(bool((x[:, batch.x_mask] == batch.x[batch.x_mask]).all()), "`draw` changes observed entries")
    for q in space.categorical:
        codes = x[..., q]
        _check(bool(((codes == codes.round()) & (codes >= 0) & (codes < space.levels[q])).all()), "no level is drawn")
    _check_close(factorised.share_static(x, batch, space), x, "`draw` varies a visit-constant column within a patient")
    _check_kl(part, batch, space, generator)
    _check(not list(part.parameters()), "the state must be buffers: parameters would be moved by gradients")
    with torch.device("meta"):
        cast(Any, kind).empty(space, time, part.sizes(), **configuration)
    again = cast(Any, kind).empty(space, time, part.sizes(), **configuration)
    again.load_state_dict(part.state_dict())
    _check_close(again.condition(table).distribution.mean, p.mean, "its state does not restore `condition`")
    part.update(replace(table, x=_unsorted(x[0], batches, table), x_mask=torch.ones_like(table.x_mask)))
    _check(part.condition(table).distribution.mean.isfinite().all(), "after `update`, `condition` is not finite")


def check_latent_prior(prior: Any, *, latent_dim: int = 2) -> None:
    """Check a latent prior: a KL that bounds the true one, moments that fit its draws, and its state.

    Args:
        prior: the class, or `functools.partial` of it with its configuration.
        latent_dim: L.
    """
    kind: Any = prior.func if isinstance(prior, partial) else prior
    configuration = prior.keywords if isinstance(prior, partial) else {}
    part, other = _twice(lambda: cast(LatentPrior, kind.build(ROWS, latent_dim, **configuration)), same=False)
    table, generator = _table(ROWS, False), _generator(3)
    batch = Batches(replace(table, x_mask=torch.ones_like(table.x_mask))).batch(torch.arange(len(table)))
    q_x = FactorisedDistribution(batch.x, torch.ones_like(batch.x), torch.zeros(*batch.x.shape, ROWS.max_levels))
    mean = torch.randn(len(batch), latent_dim, generator=generator)
    q = Latents(mean, 0.1 + torch.rand(mean.shape, generator=generator))
    scenarios = complete(q_x, batch, ROWS, couple=part.couples_rows, samples=1, generator=generator)
    terms = part.kl(scenarios, batch, q, q_x)
    _check(terms.latent.shape == (), "`kl` must give one number for the batch")
    real = torch.ones(len(batch))
    real[-5:] = 0.0
    padded = replace(batch, real=real)
    weight = torch.where(scenarios.row >= len(batch) - 5, 0.0, scenarios.weight)
    some = torch.arange(len(batch)) < len(batch) - 5
    fewer = complete(q_x.take(some), batch.take(some), ROWS, couple=part.couples_rows, samples=1, generator=generator)
    expected = part.kl(fewer, replace(batch.take(some), scale=batch.scale), q.take(some), q_x.take(some)).latent
    if not part.couples_rows:
        value = part.kl(replace(scenarios, weight=weight), padded, q, q_x).latent
        _check_close(value, expected, "`kl` counts rows that batch.real marks as padding", 1e-4)
    twice = part.kl(scenarios, replace(batch, scale=2.0 * cast(float, batch.scale)), q, q_x).latent
    _check_close(twice, 2.0 * terms.latent, "`kl` does not scale with batch.scale")
    if terms.latent.requires_grad:
        terms.latent.backward()
        _check(all(p.grad is not None and p.grad.isfinite().all() for p in part.parameters()), "`kl` has no gradient")

    group = torch.arange(len(batch))
    centre, var = part.predict(batch.x, group)
    _check(centre.shape == var.shape == (len(batch), latent_dim), "`predict` must give mean and variance of every row")
    draws = part.sample(batch.x, group, _generator(4), times=4000).unflatten(0, (4000, -1))
    _check(draws.shape == (4000, len(batch), latent_dim), "`sample` must give all rows once, then again")
    error = 6.0 * (var / 4000).sqrt()
    _check(bool(((draws.mean(0) - centre).abs() < error + 1e-6).all()), "draws do not have the mean of `predict`")
    _check_close(draws.var(0) / var, torch.ones_like(var), "draws do not have the variance of `predict`", 0.25)
    if part.independent:
        z = q.draw(torch.randn(4000, *mean.shape, generator=generator))
        log_p = torch.stack([part.log_density(value, batch.x) for value in z])
        ratio = (log_normal(z, q.mean, q.var) - log_p).detach()
        true = float(ratio.mean(0).sum())
        slack = 6.0 * float(ratio.sum(1).std()) / math.sqrt(4000)
        _check(
            float(terms.latent.detach()) > true - slack,
            f"`kl` is {float(terms.latent.detach()):.4g}, below the true {true:.4g}",
        )
        # With draws z ~ p and any density r, E r(z)/p(z) = 1.
        drawn, rows = draws.flatten(0, 1), batch.x.repeat(4000, 1)
        log_r = log_normal(drawn, centre.repeat(4000, 1), 0.5 * var.repeat(4000, 1))
        mass = float((log_r - part.log_density(drawn, rows)).detach().exp().mean())
        _check(abs(mass - 1.0) < 0.1, f"`log_density` is not that of the draws: its mass is about {1.0 / mass:.3g}")
    other.load_state_dict(part.state_dict())
    _check_close(other.predict(batch.x, group)[0], centre, "its state does not restore `predict`")
    with torch.device("meta"):
        kind.build(ROWS, latent_dim, **configuration)


def _check_kl(prior: CovariatePrior, batch: Batch, space: CovariateSpace, generator: torch.Generator) -> None:
    """Check that KL[q ‖ p] is E_q[log q − log p], by draws from some q, and not negative."""
    shape = batch.x.shape
    log_prob = torch.randn(*shape, space.max_levels, generator=generator)
    for q in range(len(space.names)):
        log_prob[:, q, max(space.levels[q], 1) :] = -torch.inf
    mean, var = 0.3 * torch.randn(shape, generator=generator), 0.2 + torch.rand(shape, generator=generator)
    mean, var = (factorised.share_static(part, batch, space) for part in (mean, var))
    static = torch.tensor(space.static)[:, None]
    q_x = FactorisedDistribution(mean, var, torch.where(static, log_prob[batch.owner], log_prob).log_softmax(-1))
    estimates = [
        prior.kl(q_x, complete(q_x, batch, space, couple=False, samples=50, generator=generator), batch)
        for _ in range(20)
    ]
    kl, kl_error = torch.stack(estimates).mean(), torch.stack(estimates).std() / math.sqrt(20)
    entries = factorised.free_entries(batch, space)
    x = factorised.draw(q_x, batch, space, 4000, generator)
    ratio = (factorised.log_density(q_x, x, entries, space) - prior.log_density(x, batch, entries)).sum(1)
    slack = 6.0 * math.sqrt(float(kl_error) ** 2 + float(ratio.var()) / len(ratio)) + 1e-3
    _check(float(kl) > -slack, f"`kl` is negative: {float(kl):.4g}")
    difference = abs(float(kl) - float(ratio.mean()))
    _check(difference < slack, f"`kl` is {float(kl):.5g}, but E[log q − log_density] is {float(ratio.mean()):.5g}")


def _table(space: CovariateSpace, visits: bool) -> Table:
    """Return a table with gaps: 40 rows, or 12 patients with 3 visits each."""
    generator, n = _generator(5), 36 if visits else 40
    x = torch.randn(n, len(space.names), generator=generator)
    for q in space.categorical:
        x[:, q] = torch.randint(space.levels[q], (n,), generator=generator).float()
    x_mask = torch.rand(x.shape, generator=generator) < 0.75
    patient = torch.arange(n) // 3 if visits else None
    if patient is not None:
        first = 3 * patient
        static = torch.tensor(space.static)
        x, x_mask = torch.where(static, x[first], x), torch.where(static, x_mask[first], x_mask)
        x[:, 0], x_mask[:, 0] = torch.arange(n) % 3 - 1.0, True  # the time is known
    y = torch.randn(n, 2, generator=generator)
    labels = tuple(range(12)) if visits else ()
    return Table(y, torch.ones_like(y, dtype=torch.bool), x * x_mask, x_mask, patient, labels)


def _unsorted(x: Tensor, batches: Batches, table: Table) -> Tensor:
    """Return rows of a batch in the order of the table."""
    rows = batches.rows(torch.arange(batches.units))[0]
    return torch.empty_like(table.x).index_copy(0, rows, x)


def _values(family: type[Family], shape: tuple[int, int], levels: int, generator: torch.Generator) -> Tensor:
    normal = torch.randn(shape, generator=generator, dtype=torch.float64)
    if family.values == "positive":
        return normal.exp()
    if family.values == "count":
        return torch.poisson(torch.full(shape, 3.0, dtype=torch.float64), generator=generator)
    if family.values == "level":
        return torch.randint(levels, shape, generator=generator).double()
    return normal


def _check_values(family: type[Family], draws: Tensor, levels: int) -> None:
    if family.values in ("count", "level"):
        _check(bool((draws == draws.round()).all() and (draws >= 0).all()), "draws are not whole numbers from 0 on")
    if family.values == "positive":
        _check(bool((draws > 0).all()), "draws are not positive")
    if family.values == "level":
        _check(bool((draws < levels).all()), "draws hold codes beyond the levels")


def _total_probability(part: Family, family: type[Family], outputs: Tensor, levels: int) -> Tensor:
    """Return ∫ p(y) dy, or Σ p(y), of each entry: by substitution y = sinh(u) or exp(u) for numbers."""
    if family.values in ("count", "level"):
        y = torch.arange(levels if family.values == "level" else 3000, dtype=torch.float64)
        log_width = torch.zeros_like(y)
    elif family.values == "positive":
        u = torch.linspace(-40.0, 12.0, 20_001, dtype=torch.float64)
        y, log_width = u.exp(), u + math.log(52.0 / 20_000)
    else:
        u = torch.linspace(-14.0, 14.0, 20_001, dtype=torch.float64)
        y, log_width = u.sinh(), u.cosh().log() + math.log(28.0 / 20_000)
    value = part.log_prob(outputs.expand(len(y), *outputs.shape), y[:, None, None].expand(-1, 5, 2))
    return (value + log_width[:, None, None]).exp().sum(0)


def _dense(kernel: nn.Module, one: Tensor, two: Tensor) -> Tensor:
    value: Tensor = kernel(one, two).to_dense()
    return value


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _twice(build: Callable[[], T], same: bool = True) -> tuple[T, T]:
    """Build two objects from the same seed, or from two; the caller's random state stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        first = build()
        torch.default_generator.manual_seed(0 if same else 1)
        return first, build()


def _check_same_state(one: nn.Module, two: nn.Module, sentence: str) -> None:
    for name, value in one.state_dict().items():
        _check_close(two.state_dict()[name], value, sentence)


def _check_close(value: Tensor, expected: Tensor, sentence: str, tolerance: float = 1e-5) -> None:
    close = torch.allclose(value.double(), expected.double(), rtol=tolerance, atol=tolerance)
    _check(close, f"{sentence}: {value.flatten()[:3].tolist()} instead of {expected.flatten()[:3].tolist()}")


def _check(fine: bool | Tensor, sentence: str) -> None:
    if not bool(fine):
        raise AssertionError(sentence)
