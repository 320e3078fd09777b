"""Recall: what is hidden stays hidden, counts once, and teaches q."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from torch.testing import assert_close

import lacova
from lacova.covariates.longitudinal import LongitudinalPrior
from lacova.covariates.masked_loss import LEAST, MOST, hidden_share, hide, masked_log_prob
from lacova.covariates.posterior import AmortisedPosterior
from lacova.covariates.prior import FactorisedPrior, JointPrior
from lacova.data.batches import Batches
from lacova.data.covariate_space import CovariateSpace
from lacova.data.encoder import Table
from lacova.training.loader import TableLoader
from tests.covariates import cases

SPACE = cases.SPACE


def table(patients=40, missing=0.3, seed=0, instance=True):
    b = cases.batch((3,) * patients, missing, seed)
    return Table(b.y, b.y_mask, b.x, b.x_mask, b.patient if instance else None, tuple(range(patients)))


def hidden_of(t, share=0.4, seed=0):
    return hide(t, SPACE, torch.full((5,), share), torch.Generator().manual_seed(seed))


def test_only_observed_entries_are_hidden_and_of_static_columns_whole_patients():
    t = table(patients=400)
    h = hidden_of(t)
    assert h.conditional_prior is None
    assert torch.equal(h.x, t.x)
    assert not (h.x_mask & ~t.x_mask).any()
    gone = t.x_mask & ~h.x_mask
    assert_close(gone.sum(0) / t.x_mask.sum(0), torch.full((5,), 0.4), rtol=0, atol=0.07)
    by_patient = h.x_mask.view(400, 3, 5)
    for q in range(5):
        same = (by_patient[:, :, q] == by_patient[:, :1, q]).all()
        assert bool(same) == SPACE.static[q]
    # Columns and rows are hidden on their own.
    assert abs(torch.corrcoef(gone[t.x_mask.all(1)].double().T).fill_diagonal_(0.0)).max() < 0.25


def test_the_share_follows_what_is_missing():
    t = table(patients=200, missing=0.3)
    assert_close(hidden_share(t), (~t.x_mask).float().mean(0))
    assert (hidden_share(table(missing=0.0)) == LEAST).all()
    assert (hidden_share(table(missing=0.9)) == MOST).all()


@pytest.mark.parametrize("kind", ["factorised", "joint", "longitudinal"])
def test_nothing_that_q_sees_depends_on_hidden_values(kind):
    """Neither values nor what the prior says of gaps, which rests on a patient's other entries."""
    t = table()
    prior = {
        "factorised": lambda: FactorisedPrior.learn(SPACE, t),
        "joint": lambda: JointPrior.learn(SPACE, t, 0, components=2),
        "longitudinal": lambda: LongitudinalPrior.learn(SPACE, t, 0, seed=0, components=2),
    }[kind]()
    torch.manual_seed(0)
    q = AmortisedPosterior(SPACE, 2, FactorisedPrior.learn(SPACE, t), "conditional").double()
    h = hidden_of(t)
    g = torch.Generator().manual_seed(5)
    other = torch.randn(t.x.shape, generator=g).double()
    for c in SPACE.categorical:
        other[:, c] = torch.randint(SPACE.levels[c], (len(t),), generator=g).double()
    changed = replace(h, x=torch.where(t.x_mask & ~h.x_mask, other, t.x))
    for one, two in zip(*(vars(law(q, prior, part)).values() for part in (h, changed)), strict=True):
        assert_close(one, two, rtol=0, atol=0)


def law(q, prior, part):
    return q(Batches(replace(part, conditional_prior=prior.condition(part))).batch(torch.arange(40)))


def test_recall_is_the_sum_over_hidden_entries_with_static_ones_once():
    t = table(patients=12)
    h = hidden_of(t)
    batch, hidden = (Batches(part).batch(torch.arange(12)) for part in (t, h))
    q = cases.distribution(hidden)
    total = 0.0
    for i in range(len(batch)):
        for c in range(5):
            if not batch.x_mask[i, c] or hidden.x_mask[i, c] or (SPACE.static[c] and i % 3):
                continue
            if SPACE.levels[c]:
                total += float(q.log_prob[i, c, int(batch.x[i, c])])
            else:
                normal = torch.distributions.Normal(q.mean[i, c], q.var[i, c].sqrt())
                total += float(normal.log_prob(batch.x[i, c]))
    assert_close(masked_log_prob(q, batch, hidden, SPACE), torch.tensor(total, dtype=torch.float64), rtol=1e-10, atol=0)
    assert float(masked_log_prob(q, batch, batch, SPACE)) == 0.0


def readable(n, seed, missing):
    """Measurements from which the covariates can be read."""
    rng = np.random.default_rng(seed)
    age, sex = rng.normal(size=n), rng.integers(2, size=n)
    y = np.stack([age + 0.1 * rng.normal(size=n), 2.0 * sex + 0.1 * rng.normal(size=n)], 1)
    frame = pd.DataFrame({"u": y[:, 0], "v": y[:, 1], "age": age, "sex": np.where(sex == 1, "f", "m")})
    gaps = rng.random((n, 2)) < missing
    return frame, frame.assign(age=frame["age"].mask(gaps[:, 0]), sex=frame["sex"].mask(gaps[:, 1]))


@pytest.mark.parametrize("kind", [lacova.CVAE, lacova.GPPriorVAE])
def test_q_learns_from_complete_covariates(kind):
    """Without a gap in training, the bound says nothing to q; by recall it learns to read the measurements."""
    schema = lacova.Schema(["u", "v"], {"age": "continuous", "sex": "categorical"})
    train, _ = readable(600, 0, 0.0)
    truth, holes = readable(200, 1, 0.5)
    error, hits = {}, {}
    for weight in (0.0, 1.0):
        model = kind(schema, latent_dim=1, networks=lacova.Dense((8,), (8,)))
        model.fit(train, max_epochs=30, batch_size=50, masked_loss=weight)
        filled = model.impute(holes)
        error[weight] = float(((filled["age"] - truth["age"])[holes["age"].isna()] ** 2).mean())
        hits[weight] = float((filled["sex"] == truth["sex"])[holes["sex"].isna()].mean())
        assert ("masked_log_prob" in model.training) == bool(weight)
    assert error[1.0] < 0.1 < 0.5 < error[0.0]
    assert hits[1.0] > 0.95 > 0.8 > hits[0.0]


def test_models_without_such_a_posterior_do_not_recall():
    schema = lacova.Schema(["u", "v"], {"age": "continuous", "sex": "categorical"})
    _, train = readable(40, 0, 0.2)
    for covariates in ("paper", "mean"):
        model = lacova.CVAE(schema, latent_dim=1, covariates=covariates).fit(train, train, max_epochs=1)
        assert not [name for name in model.training if "masked" in name]
    model = lacova.CVAE(schema, latent_dim=1).fit(train, train, max_epochs=1)
    assert {"masked_log_prob", "validation_masked_log_prob"} <= set(model.training)


def test_in_training_the_prior_is_asked_again():
    """What it said of a row's gaps before may rest on what is now hidden."""
    schema = lacova.Schema(["u", "v"], {"age": "continuous", "sex": "categorical"})
    _, train = readable(60, 0, 0.2)
    model = lacova.CVAE(schema, latent_dim=1).fit(train, max_epochs=1)
    t = model._encoder.encode(train)
    rows = TableLoader(t, hidden_share(t), model._options, torch.device("cpu"))
    rows.condition(model._vae)
    rows.hide(model._vae, 0)
    hidden = rows.hidden_table
    want = model._vae.covariate_prior.condition(hidden).distribution
    assert_close(hidden.conditional_prior.distribution.log_prob, want.log_prob)
    changed = t.x_mask.any(1) & (t.x_mask != hidden.x_mask).any(1)
    assert changed.any()
    assert not torch.allclose(
        hidden.conditional_prior.distribution.mean[changed],
        rows.shown.table.conditional_prior.distribution.mean[changed],
    )


def test_a_category_is_learnt_beside_numbers_that_are_known_exactly():
    """Two clocks that tell each other's time at every visit, and a sex that shows, faintly, in many measurements."""
    rng = np.random.default_rng(0)
    patients, visits, signs = 150, 10, 200
    sex = np.repeat(rng.integers(2, size=patients), visits)
    clock = np.tile(np.linspace(-1.7, 1.7, visits), patients)
    y = (2 * sex - 1)[:, None] * rng.choice([-1, 1], signs) + 1.7 * rng.normal(size=(patients * visits, signs))
    x = torch.tensor(np.column_stack([clock, clock, sex]), dtype=torch.float32)
    space = CovariateSpace(("one", "other", "sex"), (0, 0, 2), (False, False, True))
    shown = Table(
        torch.tensor(0.05 * y, dtype=torch.float32), torch.ones(y.shape, dtype=torch.bool), x,
        torch.ones(x.shape, dtype=torch.bool), torch.arange(patients).repeat_interleave(visits), tuple(range(patients)),
    )  # fmt: skip
    prior = LongitudinalPrior.learn(space, shown, 0, seed=0, components=1)
    torch.manual_seed(0)
    q = AmortisedPosterior(space, signs, FactorisedPrior.learn(space, shown))
    optimiser = torch.optim.Adam(q.parameters(), 1e-3)
    order, rows = torch.Generator().manual_seed(1), Batches(shown)
    for step in range(60):
        hidden = hide(shown, space, torch.full((3,), 0.2), torch.Generator().manual_seed(step))
        some = torch.randperm(patients, generator=order)[:20]
        asked = Batches(replace(hidden, conditional_prior=prior.condition(hidden))).batch(some)
        optimiser.zero_grad()
        (-masked_log_prob(q(asked), rows.batch(some), asked, space)).backward()
        optimiser.step()
    blind = replace(shown, x_mask=shown.x_mask & torch.tensor([True, True, False]))
    law = q(Batches(replace(blind, conditional_prior=prior.condition(blind))).batch(torch.arange(patients)))
    assert (law.log_prob[:, 2].argmax(1) == x[:, 2]).float().mean() > 0.95
