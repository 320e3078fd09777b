"""KL, draws and densities of factorised distributions, against loops over entries."""

import torch
from torch.distributions import Categorical, Normal, kl_divergence

from lacova.covariates.factorised import draw, kl, log_density, most_probable
from tests.covariates import cases

SPACE = cases.SPACE


def test_kl_equals_a_loop_over_unknowns_with_static_ones_once_per_patient():
    b = cases.batch()
    q, p = cases.distribution(b, seed=1), cases.distribution(b, seed=2)
    total, counted = 0.0, 0
    for i in range(len(b)):
        for c in range(len(SPACE.names)):
            if b.x_mask[i, c] or (SPACE.static[c] and i > 0 and b.patient[i] == b.patient[i - 1]):
                continue
            counted += 1
            if SPACE.levels[c]:
                k = SPACE.levels[c]
                total += kl_divergence(
                    Categorical(logits=q.log_prob[i, c, :k]), Categorical(logits=p.log_prob[i, c, :k])
                )
            else:
                total += kl_divergence(
                    Normal(q.mean[i, c], q.var[i, c].sqrt()), Normal(p.mean[i, c], p.var[i, c].sqrt())
                )
    assert counted >= 8
    torch.testing.assert_close(kl(q, p, b, SPACE), total, rtol=1e-8, atol=0)


def test_kl_of_equal_distributions_is_zero_and_gradients_are_finite():
    b = cases.batch()
    q = cases.distribution(b)
    assert kl(q, q, b, SPACE).abs() < 1e-12
    logits = torch.zeros(len(b), 5, 3, dtype=torch.float64, requires_grad=True)
    padded = torch.where(cases.distribution(b).log_prob.isneginf(), -torch.inf, logits)
    kl(type(q)(q.mean, q.var, torch.log_softmax(padded, -1)), q, b, SPACE).backward()
    assert torch.isfinite(logits.grad).all()
    assert (logits.grad != 0).any()


def test_draws_keep_observed_entries_share_static_ones_and_have_the_right_distribution():
    b = cases.batch(missing=0.5)
    q = cases.distribution(b)
    x = draw(q, b, SPACE, 20_000, cases.generator())
    assert torch.equal(x[:, b.x_mask], b.x[b.x_mask].expand(20_000, -1))
    for c in (3, 4):
        assert torch.equal(x[:, :, c], x[:, b.owner, c])
    for i, c in (~b.x_mask).nonzero().tolist():
        if SPACE.levels[c]:
            frequency = (x[:, i, c, None] == torch.arange(SPACE.max_levels)).double().mean(0)
            torch.testing.assert_close(frequency, q.log_prob[i, c].exp(), rtol=0, atol=0.015)
        else:
            torch.testing.assert_close(x[:, i, c].mean(), q.mean[i, c], rtol=0, atol=0.04)
            torch.testing.assert_close(x[:, i, c].var(), q.var[i, c], rtol=0.06, atol=0)


def test_most_probable_completion_is_mean_and_mode():
    b = cases.batch()
    q = cases.distribution(b)
    completed = most_probable(q, b, SPACE)
    for i in range(len(b)):
        for c in range(5):
            expected = b.x[i, c] if b.x_mask[i, c] else q.log_prob[i, c].argmax() if SPACE.levels[c] else q.mean[i, c]
            assert completed[i, c] == expected


def test_log_density_sums_over_each_rows_gaps():
    b = cases.batch()
    q = cases.distribution(b)
    x = draw(q, b, SPACE, 3, cases.generator())
    value = log_density(q, x, ~b.x_mask, SPACE)
    for d in range(3):
        for i in range(len(b)):
            expected = 0.0
            for c in (~b.x_mask[i]).nonzero()[:, 0].tolist():
                if SPACE.levels[c]:
                    expected += q.log_prob[i, c, int(x[d, i, c])]
                else:
                    expected += Normal(q.mean[i, c], q.var[i, c].sqrt()).log_prob(x[d, i, c])
            torch.testing.assert_close(
                value[d, i], torch.as_tensor(expected, dtype=torch.float64), rtol=1e-10, atol=1e-12
            )
