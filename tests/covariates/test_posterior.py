"""The amortised posterior depends on observed values only, pools static columns, and starts at its prior."""

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from lacova.covariates.factorised import kl
from lacova.covariates.posterior import AmortisedPosterior
from lacova.data.batches import Batch
from tests.covariates import cases
from tests.covariates.cases import parts

SPACE = cases.SPACE
STARTS = pytest.mark.parametrize("start", ["conditional", "marginal"])


def batch(visits=(2, 3, 1, 4), seed=0):
    """Rows with gaps in x and y, and a random conditional prior."""
    b = cases.batch(visits, seed=seed)
    y_mask = torch.rand(b.y.shape, generator=cases.generator(seed)) > 0.4
    y_mask[0] = False
    return cases.with_prior(replace(b, y_mask=y_mask))


def posterior(measurements=2, start="marginal", zero_output=False):
    """A random posterior; with `zero_output`, one whose networks return 0."""
    torch.manual_seed(0)
    q = AmortisedPosterior(SPACE, measurements, cases.marginal(), start, hidden=(16, 8)).double()
    if zero_output:
        for network in q.networks:
            network[-1].weight.data.zero_()
            network[-1].bias.data.zero_()
    return q


def assert_equal(one, other):
    for first, second in zip(parts(one), parts(other), strict=True):
        assert_close(first, second, rtol=1e-10, atol=1e-12)


def differs(one, other):
    return max((a.exp() - b.exp()).abs().max().item() for a, b in zip(parts(one), parts(other), strict=True)) > 1e-6


@STARTS
def test_values_at_gaps_have_no_influence(start):
    b, q = batch(), posterior(start=start)
    g = cases.generator(1)
    junk_x, junk_y = torch.randint(3, b.x.shape, generator=g).double(), torch.randn(b.y.shape, generator=g).double()
    changed_at_gaps = replace(b, x=torch.where(b.x_mask, b.x, junk_x), y=torch.where(b.y_mask, b.y, junk_y))
    assert_equal(q(changed_at_gaps), q(b))
    for changed in (
        replace(b, x=junk_x),
        replace(b, y=junk_y),
        replace(b, y_mask=~b.y_mask),
        replace(b, x_mask=~b.x_mask),
    ):
        assert differs(q(changed), q(b))


def test_measurements_matter_only_where_they_are_inputs():
    b = batch()
    without_y, other = posterior(measurements=0), replace(b, y=b.y + 1.0)
    assert not without_y.sees_y
    assert_equal(without_y(other), without_y(b))
    assert posterior().sees_y
    assert differs(posterior()(other), posterior()(b))


def test_the_conditional_prior_is_an_input():
    b, q = batch(), posterior()
    for name in ("mean", "var"):
        prior = b.conditional_prior.distribution
        changed = replace(prior, **{name: getattr(prior, name) + 0.5})
        assert differs(q(replace(b, conditional_prior=replace(b.conditional_prior, distribution=changed))), q(b))


def test_static_columns_have_one_distribution_per_patient():
    b = batch()
    distribution = posterior()(b)
    for c, static in enumerate(SPACE.static):
        for part in (distribution.mean, distribution.var) if c in SPACE.continuous else (distribution.log_prob,):
            if static:
                assert_close(part[:, c], part[b.owner, c], rtol=1e-12, atol=0)
            else:
                assert (part[:, c] - part[b.owner, c]).abs().nan_to_num().max() > 1e-4


def test_static_columns_average_over_visits_with_measurements():
    """The terms of the average come from each visit as a patient of its own; visits without any y hardly count."""
    b, q = batch(), posterior(start="conditional")
    y_mask = torch.ones_like(b.y_mask)
    y_mask[[0, 3, 4]] = False
    b = replace(b, y_mask=y_mask)
    separate = q(replace(b, patient=torch.arange(len(b))))
    distribution = q(b)
    for p in range(b.patients):
        own = b.patient == p
        measured = own & y_mask.any(1)
        measured = measured if measured.any() else own
        shift = (separate.mean - b.conditional_prior.distribution.mean)[measured, 4].mean(0)
        assert_close(
            distribution.mean[own, 4], b.conditional_prior.distribution.mean[own, 4] + shift, rtol=0, atol=1e-5
        )


def test_rows_and_patients_may_come_in_any_order():
    b, q = batch(visits=(2, 3, 1, 4)), posterior()
    distribution = q(b)
    order = torch.tensor([9, 7, 6, 8, 4, 2, 3, 5, 1, 0])  # patients 3, 1, 2, 0 with their visits shuffled
    patient = torch.tensor([0, 0, 0, 0, 1, 1, 1, 2, 3, 3])
    shuffled = Batch(
        b.y[order],
        b.y_mask[order],
        b.x[order],
        b.x_mask[order],
        patient,
        conditional_prior=b.conditional_prior.take(order),
    )
    assert_equal(q(shuffled), distribution.take(order))
    assert_equal(q(b.take(b.patient == 1)), distribution.take(b.patient == 1))


@STARTS
def test_a_network_without_output_gives_the_prior(start):
    b, q = batch(), posterior(start=start, zero_output=True)
    distribution, prior = q(b), b.conditional_prior.distribution
    assert_close(
        distribution.log_prob[:, SPACE.categorical], prior.log_prob[:, SPACE.categorical], rtol=1e-10, atol=1e-12
    )
    mean, var = (
        (prior.mean, prior.var)
        if start == "conditional"
        else (v.expand(len(b), -1) for v in parts(cases.marginal())[:2])
    )
    c = SPACE.continuous
    assert_close(distribution.mean[:, c], mean[:, c], rtol=1e-10, atol=1e-12)
    assert_close(distribution.var[:, c], var[:, c], rtol=1e-10, atol=0)


def test_an_untrained_network_starts_near_the_prior():
    b = batch()
    distribution, prior = posterior()(b), b.conditional_prior.distribution
    shift = (distribution.log_prob.exp() - prior.log_prob.exp())[:, SPACE.categorical].abs()
    assert 1e-6 < shift.max() < 0.25


@STARTS
def test_levels_beyond_a_columns_own_are_impossible_and_gradients_finite(start):
    b, q = batch(), posterior(start=start)
    distribution = q(b)
    for c in SPACE.categorical:
        assert (distribution.log_prob[:, c, SPACE.levels[c] :] == -torch.inf).all()
        assert_close(distribution.log_prob[:, c].exp().sum(-1), torch.ones(len(b)).double(), rtol=1e-10, atol=0)
    kl(distribution, cases.distribution(b, seed=5), b, SPACE).backward()
    for parameter in q.parameters():
        assert torch.isfinite(parameter.grad).all()
    layers = [layer for network in q.networks for layer in network if hasattr(layer, "weight")]
    assert all((layer.weight.grad != 0).any() for layer in layers)


def test_variances_stay_within_e8_of_their_starting_values():
    b, q = batch(), posterior()
    for sign in (-1.0, 1.0):
        q.networks[0][-1].bias.data.fill_(sign * 1e4)
        ratio = (q(b).var / cases.marginal().var).log()[:, SPACE.continuous]
        assert_close(ratio, torch.full_like(ratio, sign * 8.0), rtol=1e-6, atol=0)


@STARTS
def test_a_batch_and_its_masked_version_in_one_pass_are_two(start):
    b, q = batch(), posterior(start=start)
    masked = replace(b, x_mask=b.x_mask & (torch.rand(b.x.shape, generator=cases.generator(3)) > 0.5))
    for one, other in zip(q.both(b, masked), (q(b), q(masked)), strict=True):
        assert_equal(one, other)
    assert differs(*q.both(b, masked))
