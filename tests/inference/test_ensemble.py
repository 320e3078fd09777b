"""Draws spread over members."""

import numpy as np
import pytest
import torch
from scipy import stats

from lacova.data.covariate_space import CovariateSpace
from lacova.inference.draws import Draws
from lacova.inference.ensemble import MemberDoubt, interleave, merge_draws, spread
from lacova.likelihoods.moments import Moments
from tests.likelihoods.test_moments import encoder_and_likelihood

SPACE = CovariateSpace(("age", "sex"), (0, 2), (False, False))


def parts(place, count, rows=3):
    """Return draws that say which member they are of, and which draw: 10·place + draw."""
    number = 10.0 * place + torch.arange(count)
    full = number[:, None, None].expand(count, rows, 2)
    probs = torch.zeros(rows, 2, 2)
    probs[:, 1] = torch.tensor([0.9, 0.1] if place == 0 else [0.3, 0.7])
    return Draws(
        torch.arange(rows), full, torch.tensor([1.0 + place, 1.0]), full, full,
        most_probable_x=torch.tensor([[float(place), float(place != 0)]]).expand(rows, 2), x_level_probabilities=probs,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("draws", "expected"),
    [(1, [0]), (2, [0, 10]), (4, [0, 10, 20, 1]), (6, [0, 10, 20, 1, 11, 21])],
)
def test_draws_alternate_between_members(draws, expected):
    merged = list(spread([None] * 3, draws, lambda k, n: iter([parts(k, n)]), lambda p: merge_draws(p, draws, SPACE)))
    assert len(merged) == 1
    assert merged[0].y[:, 0, 0].tolist() == expected
    assert len(merged[0].location) == len(merged[0].x) == draws


def test_the_variance_stays_with_its_draw_and_levels_are_averaged():
    merged = merge_draws([parts(k, 2) for k in range(3)], 6, SPACE)
    assert merged.var[:, 0, 0].tolist() == [1, 2, 3, 1, 2, 3]
    torch.testing.assert_close(merged.x_level_probabilities[0, 1], torch.tensor([0.5, 0.5]))
    two = merge_draws([parts(k, 2) for k in range(2)], 4, SPACE)
    assert two.most_probable_x[0].tolist() == [0.5, 0.0]  # mean of a number, most probable level on average


def test_weights_of_all_members_sum_to_one():
    own = [parts(k, 4)._replace(weight=torch.rand(4, 3).softmax(0)) for k in range(2)]
    merged = merge_draws(own, 3, SPACE)
    assert merged.weight.shape == (8, 3)  # weighted draws are not cut
    torch.testing.assert_close(merged.weight.sum(0), torch.ones(3))
    expected = (own[0].average(own[0].y) + own[1].average(own[1].y)) / 2
    torch.testing.assert_close(merged.average(merged.y), expected)


def test_members_must_have_the_same_parts():
    with pytest.raises(ValueError, match="zip"):
        list(spread([None] * 2, 2, lambda k, n: iter([parts(k, n)] * (k + 1)), lambda p: p[0]))


def test_interleaved_draws_keep_all_without_a_number():
    assert interleave([torch.arange(2), torch.arange(2) + 10]).tolist() == [0, 10, 1, 11]


def studies(repetitions, members, within, seed=0):
    """Return estimates of 0 with draws around them (repetitions×draws×2): each estimate, and its members, vary by the
    same covariance; two rows share half of it. Within a member, draws vary by `within`."""
    generator = torch.Generator().manual_seed(seed)
    normal = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    root = torch.tensor([[1.0, 0.0], [0.5, 0.75**0.5]], dtype=torch.float64)
    estimate, own = normal(repetitions, 1, 2) @ root.T, normal(repetitions, members, 2) @ root.T
    inner = within * normal(repetitions, 1, 2)  # the centre of what a member's draws vary by is unknown, too
    draws = (estimate + own + inner).repeat(1, 400 // members, 1)
    return draws + within * normal(*draws.shape), generator


@pytest.mark.parametrize("members", [3, 5])
@pytest.mark.parametrize("within", [0.0, 2.0])
def test_intervals_of_means_hold_with_few_members(members, within):
    """90% intervals hold the truth in 90% of studies, of a row and of a difference of rows; without, in far fewer."""
    held, raw = [], []
    for values, generator in [studies(800, members, within)]:
        for draws in values:
            completed = MemberDoubt(members, len(draws), generator)(draws)
            for some, into in ((completed, held), (draws, raw)):
                contrasts = torch.stack([some[:, 0], some[:, 1], some[:, 0] - 2.0 * some[:, 1]])
                lower, upper = contrasts.quantile(torch.tensor([0.05, 0.95], dtype=torch.float64), dim=1)
                into.append((lower <= 0.0) & (upper >= 0.0))
    held, raw = torch.stack(held).double().mean(0), torch.stack(raw).double().mean(0)
    assert ((held > 0.86) & (held < 0.96)).all()
    if not within:
        assert (raw < 0.75).all()


def test_one_member_is_left_as_it_is():
    draws = torch.randn(6, 3)
    assert MemberDoubt(1, 6, torch.Generator())(draws) is draws


@pytest.mark.parametrize("count", [400, 7])
def test_the_mean_is_that_over_members_and_parts_of_rows_agree(count):
    draws = torch.randn(count, 7, dtype=torch.float64)
    doubt = MemberDoubt(5, count, torch.Generator().manual_seed(0))
    whole = doubt(draws)
    torch.testing.assert_close(torch.cat([doubt(draws[:, :3]), doubt(draws[:, 3:])], 1), whole)
    means = torch.stack([draws[k::5].mean(0) for k in range(5)])
    torch.testing.assert_close(doubt.estimate(draws), means.mean(0))
    torch.testing.assert_close(whole.mean(0), means.mean(0), rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("members", [2, 3, 5])
@pytest.mark.parametrize("odd", [0, 1])
def test_the_doubt_is_of_a_t_distribution(members, odd):
    estimates = torch.randn(members, dtype=torch.float64)
    draws = estimates.repeat(-(-200_000 // members) + 1)[: 200_000 + odd, None]
    completed = MemberDoubt(members, len(draws), torch.Generator().manual_seed(0))(draws).numpy()
    scale = float(estimates.std() * (1.0 + 1.0 / members) ** 0.5)
    shares = np.array([0.05, 0.25, 0.75, 0.95])
    expected = float(estimates.mean()) + scale * stats.t.ppf(shares, members - 1)
    error = (
        scale * (shares * (1 - shares) / len(draws)) ** 0.5 / stats.t.pdf(stats.t.ppf(shares, members - 1), members - 1)
    )
    assert (np.abs(np.quantile(completed, shares) - expected) < 5 * error).all()


def test_means_with_bounds_keep_them_and_their_intervals_hold_on_the_scale_without():
    """Log-odds of three levels, and the logarithm of a count, that vary as the numbers of `studies` do."""
    moments = Moments(*encoder_and_likelihood({"poi": "poisson", "cat": "categorical"}))
    assert moments.names == ("poi", "cat_p_a", "cat_p_b", "cat_p_c")
    held = []
    values, generator = studies(800, 5, 1.0)
    rare = torch.tensor([-1.0, 0.0, 0.0, -3.0], dtype=torch.float64)
    for draws in values:
        own = moments.bounded(torch.cat([draws, torch.zeros_like(draws)], 1) + rare)
        doubt = MemberDoubt(5, len(own), generator)
        completed = doubt(own, moments)
        assert (completed > 0.0).all()
        torch.testing.assert_close(completed[:, 1:].sum(1), torch.ones(len(own), dtype=torch.float64))
        assert ((doubt(own) < 0.0) | (doubt(own) > 1.0))[:, 1:].any()  # on the scale of probabilities
        logs = completed.log()
        linked = torch.stack([logs[:, 0] + 1.0, logs[:, 1] - logs[:, 2]])
        lower, upper = linked.quantile(torch.tensor([0.05, 0.95], dtype=torch.float64), dim=1)
        held.append((lower <= 0.0) & (upper >= 0.0))
    held = torch.stack(held).double().mean(0)
    assert ((held > 0.86) & (held < 0.96)).all()
