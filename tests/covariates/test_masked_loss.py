"""The masked-covariate loss: which entries are masked, that q cannot use them, and what q learns from them."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from torch.testing import assert_close

import lacova
from lacova.covariates.longitudinal import LongitudinalPrior
from lacova.covariates.masked_loss import MAX_RATE, MIN_RATE, mask_more, masked_log_prob, masking_rate
from lacova.covariates.posterior import AmortisedPosterior
from lacova.covariates.prior import FactorisedPrior, JointPrior
from lacova.data.batches import Batches
from lacova.data.covariate_space import CovariateSpace
from lacova.data.table import Table
from lacova.training.loader import TableLoader
from tests.covariates import cases

SPACE = cases.SPACE


def masked_of(t, rate=0.4, seed=0):
    return mask_more(t, SPACE, torch.full((5,), rate), cases.generator(seed))


def test_only_observed_entries_are_masked_and_static_ones_for_whole_patients():
    t = cases.patients_table(400, 0.3)
    masked = masked_of(t)
    assert masked.conditional_prior is None
    assert torch.equal(masked.x, t.x)
    assert not (masked.x_mask & ~t.x_mask).any()
    newly_masked = t.x_mask & ~masked.x_mask
    assert_close(newly_masked.sum(0) / t.x_mask.sum(0), torch.full((5,), 0.4), rtol=0, atol=0.07)
    by_patient = masked.x_mask.view(400, 3, 5)
    for q in range(5):
        same = (by_patient[:, :, q] == by_patient[:, :1, q]).all()
        assert bool(same) == SPACE.static[q]
    # Columns are masked independently of each other.
    assert abs(torch.corrcoef(newly_masked[t.x_mask.all(1)].double().T).fill_diagonal_(0.0)).max() < 0.25


def test_a_column_is_masked_throughout_as_often_as_it_is_missing_throughout():
    t = cases.patients_table(4000, 0.0)
    t.x_mask[: 3 * 800, 0] = False  # column a of a fifth of the patients
    t.x_mask[3 * 800 :: 7, 1] = False
    masked = masked_of(t, 0.3)
    newly_masked = (t.x_mask & ~masked.x_mask).view(4000, 3, 5)[800:].double()
    assert newly_masked[..., 0].mean() == pytest.approx(0.3, abs=0.03)
    all_three = newly_masked[..., :2].mean(1) == 1.0
    # Of column a 0.2, and 0.125³ of the others; of column c3, 1 of 343 patients lacks it by chance.
    assert all_three[:, 0].double().mean() == pytest.approx(0.2 + 0.8 * 0.125**3, abs=0.03)
    assert all_three[:, 1].double().mean() < 0.3**3 + 0.02


def test_the_masking_rate_is_the_share_of_missing_entries_within_limits():
    t = cases.patients_table(200, 0.3)
    assert_close(masking_rate(t), (~t.x_mask).float().mean(0))
    assert (masking_rate(cases.patients_table(40, 0.0)) == MIN_RATE).all()
    assert (masking_rate(cases.patients_table(40, 0.9)) == MAX_RATE).all()


@pytest.mark.parametrize("kind", ["factorised", "joint", "longitudinal"])
def test_q_does_not_depend_on_masked_values(kind):
    """Neither directly nor through the conditional prior, which depends on a patient's other entries."""
    t = cases.patients_table(40, 0.3)
    prior = {
        "factorised": lambda: FactorisedPrior.learn(SPACE, t),
        "joint": lambda: JointPrior.learn(SPACE, t, 0, components=2),
        "longitudinal": lambda: LongitudinalPrior.learn(SPACE, t, 0, seed=0, components=2),
    }[kind]()
    torch.manual_seed(0)
    q = AmortisedPosterior(SPACE, 2, FactorisedPrior.learn(SPACE, t), "conditional").double()
    masked = masked_of(t)
    g = cases.generator(5)
    other = torch.randn(t.x.shape, generator=g).double()
    for c in SPACE.categorical:
        other[:, c] = torch.randint(SPACE.levels[c], (len(t),), generator=g).double()
    changed = replace(masked, x=torch.where(t.x_mask & ~masked.x_mask, other, t.x))
    before, after = (cases.parts(q(cases.conditioned(part, prior))) for part in (masked, changed))
    for first, second in zip(before, after, strict=True):
        assert_close(first, second, rtol=0, atol=0)


def test_masked_log_prob_is_the_sum_over_masked_entries_with_static_ones_once():
    t = cases.patients_table(12, 0.3)
    batch, masked = (Batches(part).batch(torch.arange(12)) for part in (t, masked_of(t)))
    q = cases.distribution(masked)
    total = 0.0
    for i in range(len(batch)):
        for c in range(5):
            if not batch.x_mask[i, c] or masked.x_mask[i, c] or (SPACE.static[c] and i % 3):
                continue
            if SPACE.levels[c]:
                total += float(q.log_prob[i, c, int(batch.x[i, c])])
            else:
                normal = torch.distributions.Normal(q.mean[i, c], q.var[i, c].sqrt())
                total += float(normal.log_prob(batch.x[i, c]))
    assert_close(masked_log_prob(q, batch, masked, SPACE), torch.tensor(total, dtype=torch.float64), rtol=1e-10, atol=0)
    assert float(masked_log_prob(q, batch, batch, SPACE)) == 0.0


def predictable(n, seed, missing):
    """Complete and incomplete rows whose measurements determine the covariates."""
    rng = np.random.default_rng(seed)
    age, sex = rng.normal(size=n), rng.integers(2, size=n)
    y = np.stack([age + 0.1 * rng.normal(size=n), 2.0 * sex + 0.1 * rng.normal(size=n)], 1)
    frame = pd.DataFrame({"u": y[:, 0], "v": y[:, 1], "age": age, "sex": np.where(sex == 1, "f", "m")})
    gaps = rng.random((n, 2)) < missing
    return frame, frame.assign(age=frame["age"].mask(gaps[:, 0]), sex=frame["sex"].mask(gaps[:, 1]))


@pytest.mark.parametrize("kind", [lacova.CVAE, lacova.GPPriorVAE])
def test_q_learns_from_complete_covariates(kind):
    """Without gaps in training, the bound does not depend on q; the masked loss alone trains it."""
    schema = lacova.Schema(["u", "v"], {"age": "continuous", "sex": "categorical"})
    train, _ = predictable(600, 0, 0.0)
    truth, incomplete = predictable(200, 1, 0.5)
    error, hits = {}, {}
    for weight in (0.0, 1.0):
        model = kind(schema, latent_dim=1, networks=lacova.Dense((8,), (8,)))
        model.fit(train, max_epochs=20, batch_size=50, masked_loss=weight)
        filled = model.impute(incomplete)
        error[weight] = float(((filled["age"] - truth["age"])[incomplete["age"].isna()] ** 2).mean())
        hits[weight] = float((filled["sex"] == truth["sex"])[incomplete["sex"].isna()].mean())
        assert ("masked_log_prob" in model.training) == bool(weight)
    assert error[1.0] < 0.1 < 0.5 < error[0.0]
    assert hits[1.0] > 0.95 > 0.8 > hits[0.0]


def test_models_whose_posterior_ignores_y_have_no_masked_loss():
    schema = lacova.Schema(["u", "v"], {"age": "continuous", "sex": "categorical"})
    _, train = predictable(40, 0, 0.2)
    for covariates in ("paper", "mean"):
        model = lacova.CVAE(schema, latent_dim=1, covariates=covariates).fit(train, train, max_epochs=1)
        assert not [name for name in model.training if "masked" in name]
    model = lacova.CVAE(schema, latent_dim=1).fit(train, train, max_epochs=1)
    assert {"masked_log_prob", "validation_masked_log_prob"} <= set(model.training)


def test_in_training_the_prior_is_conditioned_on_what_is_left():
    """The conditional prior of the unmasked rows may depend on entries that are now masked."""
    schema = lacova.Schema(["u", "v"], {"age": "continuous", "sex": "categorical"})
    _, train = predictable(60, 0, 0.2)
    model = lacova.CVAE(schema, latent_dim=1).fit(train, max_epochs=1)
    t = model.encoder.encode(train)
    loader = TableLoader(t, masking_rate(t), model.options, torch.device("cpu"))
    loader.condition(model.vae)
    loader.mask(model.vae, 0)
    masked = loader.masked_table
    expected = model.vae.covariate_prior.condition(masked).distribution
    assert_close(masked.conditional_prior.distribution.log_prob, expected.log_prob)
    changed = t.x_mask.any(1) & (t.x_mask != masked.x_mask).any(1)
    assert changed.any()
    before, after = (part.conditional_prior.distribution.mean[changed] for part in (loader.batches.table, masked))
    assert not torch.allclose(after, before)


def test_a_category_is_learnt_beside_numbers_that_are_known_exactly():
    """Two clocks that determine each other at every visit, and a sex with a weak effect on many measurements."""
    rng = np.random.default_rng(0)
    patients, visits, measurements = 150, 10, 200
    sex = np.repeat(rng.integers(2, size=patients), visits)
    clock = np.tile(np.linspace(-1.7, 1.7, visits), patients)
    y = (2 * sex - 1)[:, None] * rng.choice([-1, 1], measurements) + 1.7 * rng.normal(
        size=(patients * visits, measurements)
    )
    x = torch.tensor(np.column_stack([clock, clock, sex]), dtype=torch.float32)
    space = CovariateSpace(("one", "other", "sex"), (0, 0, 2), (False, False, True))
    complete = Table(
        torch.tensor(0.05 * y, dtype=torch.float32), torch.ones(y.shape, dtype=torch.bool), x,
        torch.ones(x.shape, dtype=torch.bool), torch.arange(patients).repeat_interleave(visits), tuple(range(patients)),
    )  # fmt: skip
    prior = LongitudinalPrior.learn(space, complete, 0, seed=0, components=1)
    torch.manual_seed(0)
    q = AmortisedPosterior(space, measurements, FactorisedPrior.learn(space, complete))
    optimiser = torch.optim.Adam(q.parameters(), 1e-3)
    order, batches = cases.generator(1), Batches(complete)
    for step in range(60):
        masked = mask_more(complete, space, torch.full((3,), 0.2), cases.generator(step))
        chosen = torch.randperm(patients, generator=order)[:20]
        batch = cases.conditioned(masked, prior, chosen)
        optimiser.zero_grad()
        (-masked_log_prob(q(batch), batches.batch(chosen), batch, space)).backward()
        optimiser.step()
    without_sex = replace(complete, x_mask=complete.x_mask & torch.tensor([True, True, False]))
    assert (q(cases.conditioned(without_sex, prior)).log_prob[:, 2].argmax(1) == x[:, 2]).float().mean() > 0.95
