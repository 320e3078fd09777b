"""Members: models that are continued on bootstrap samples."""

import numpy as np
import pandas as pd
import pytest
import torch

from lacova import CVAE, Dense, GPPriorVAE, Schema
from lacova.training.interrupt import InterruptedWarning
from lacova.training.loader import TableLoader
from lacova.training.members import (
    MEMBER_SHARE,
    RATE_OF_PATIENTS,
    RATE_OF_ROWS,
    draw_units,
    member_options,
    resample,
    train_member,
)
from lacova.training.options import FitOptions, share_of_few_rows
from lacova.training.step import Step
from tests.tables import ROWS, VISITS, visits
from tests.training.cases import Killed, hooked_step, kill

SMALL = {"latent_dim": 1, "networks": Dense((4,), (4,))}
SHORT = {"max_epochs": 14, "batch_size": 10, "seed": 2, "device": "cpu"}  # a member of few rows has as many


def encoded(schema):
    model = GPPriorVAE(schema, inducing=4, **SMALL) if schema.instance else CVAE(schema, **SMALL)
    return model.fit(visits(), max_epochs=1).encode(visits())


def test_patients_are_drawn_whole_and_each_time_anew():
    table = encoded(VISITS)
    drawn = resample(table, draw_units(table, seed=3))
    assert len(drawn.labels) == len(table.labels)
    assert drawn.conditional_prior is None
    originals = {tuple(table.y[table.patient == p].flatten().tolist()): p for p in range(len(table.labels))}
    taken = [originals[tuple(drawn.y[drawn.patient == k].flatten().tolist())] for k in range(len(drawn.labels))]
    assert len(set(taken)) < len(taken)  # with replacement
    for k, p in enumerate(taken):
        for name in ("x", "x_mask", "y_mask"):
            assert torch.equal(getattr(drawn, name)[drawn.patient == k], getattr(table, name)[table.patient == p])


def test_rows_are_drawn_with_replacement():
    table = encoded(ROWS)
    drawn = resample(table, draw_units(table, seed=0))
    rows = {tuple(row) for row in table.x.tolist()}
    assert len(drawn) == len(table)
    assert {tuple(row) for row in drawn.x.tolist()} < rows
    assert not torch.equal(resample(table, draw_units(table, seed=1)).x, drawn.x)


@pytest.mark.parametrize(("by_row", "share"), [(True, RATE_OF_ROWS), (False, RATE_OF_PATIENTS)])
def test_a_member_takes_a_share_of_the_epochs_and_of_the_rates(by_row, share):
    class Rows:
        units = length = 400

    Rows.by_row = by_row
    options = FitOptions(batch_size=25, seed=5, latent_weight=10.0)
    whole, own = options.resolved(400, by_row), member_options(options, Rows, 2)
    assert own.epochs == round(MEMBER_SHARE / (share_of_few_rows(400) if by_row else 1.0) * whole.epochs)
    assert own.rates == tuple(share * rate for rate in whole.rates)
    assert own.latent_weight == 1.0
    assert own.seed not in (options.seed, member_options(options, Rows, 1).seed)


@pytest.mark.parametrize("schema", [ROWS, VISITS], ids=["rows", "visits"])
def test_the_fit_itself_does_not_depend_on_members(schema):
    kind, settings = (CVAE, SMALL) if schema is ROWS else (GPPriorVAE, SMALL | {"inducing": 5})
    alone = kind(schema, **settings).fit(visits(), **SHORT)
    model = kind(schema, **settings).fit(visits(), members=3, **SHORT)
    again = kind(schema, **settings).fit(visits(), members=3, **SHORT)
    assert len(model.members) == 3
    assert alone.members == ()
    assert model.training.equals(alone.training)
    weights = [member.state_dict() for member in model.members]
    for name, value in alone.vae.state_dict().items():
        assert torch.equal(model.vae.state_dict()[name], value)
    for member, same in zip(weights, again.members, strict=True):
        assert all(torch.equal(value, same.state_dict()[name]) for name, value in member.items())
    changed = next(name for name in weights[0] if name.startswith("decoder"))
    assert len({float(member[changed].sum()) for member in weights}) == 3
    assert model.impute(visits(), draws=6).equals(again.impute(visits(), draws=6))


def test_a_fit_that_is_killed_in_a_member_continues_to_the_same_ensemble(tmp_path, monkeypatch):
    options, steps = SHORT | {"members": 3}, 14 * 4  # 32 rows, ten at a time
    whole = CVAE(ROWS, **SMALL).fit(visits(), **options)
    taken = iter(range(10**6))
    with monkeypatch.context() as patch:
        patch.setattr(Step, "__init__", hooked_step(lambda: kill() if next(taken) == steps + 56 + 5 else None))
        with pytest.raises(Killed):
            CVAE(ROWS, **SMALL).fit(visits(), **options, checkpoint=tmp_path / "c", checkpoint_every=2)
    assert {file.name for file in tmp_path.iterdir()} == {"c", "c.member1", "c.member2"}
    resumed = CVAE(ROWS, **SMALL).fit(visits(), **options, checkpoint=tmp_path / "c", checkpoint_every=2)
    assert resumed.training.equals(whole.training)
    assert resumed.impute(visits(), draws=6).equals(whole.impute(visits(), draws=6))
    assert not list(tmp_path.iterdir())


def test_an_interrupt_leaves_the_members_that_are_complete(monkeypatch):
    taken = iter(range(10**6))

    def interrupt():
        if next(taken) == 14 * 4 + 56 + 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(Step, "__init__", hooked_step(interrupt))
    with pytest.warns(InterruptedWarning, match="after 1 of 3 members, which the model has"):
        model = CVAE(ROWS, **SMALL).fit(visits(), members=3, **SHORT)
    assert len(model.members) == 1
    assert model.interrupted


def test_a_member_has_the_posterior_of_its_own_prior_whatever_others_came_before():
    """A bootstrap sample without gaps leaves the covariate prior as it is, others update theirs."""
    table = visits(gaps=0.0)
    table.loc[0, "age"] = None
    model = GPPriorVAE(ROWS, inducing=4, **SMALL)
    model.fit(table, max_epochs=2, masked_loss=1.0, prior_every=1, seed=0, device="cpu")
    encoded = model.encode(table)

    def with_gap(number):
        seed = member_options(model.options, loader(), number).seed
        return not resample(encoded, draw_units(encoded, seed)).x_mask.all()

    def loader():
        rows = TableLoader(encoded, torch.full((2,), 0.2), model.options, torch.device("cpu"))
        rows.condition(model.vae)
        return rows

    numbers = range(1, 30)
    first, then = next(k for k in numbers if with_gap(k)), next(k for k in numbers if not with_gap(k))
    alone, _ = train_member(model.vae, loader(), model.options, then)
    shared = loader()
    train_member(model.vae, shared, model.options, first)
    after, _ = train_member(model.vae, shared, model.options, then)
    for name, value in alone.state_dict().items():
        assert torch.equal(after.state_dict()[name], value), name


@pytest.mark.parametrize("every", [0, 1])
def test_members_go_on_with_updates_of_the_covariate_prior(every):
    model = CVAE(ROWS, **SMALL).fit(visits(), members=2, max_epochs=2, prior_every=every, masked_loss=1.0, device="cpu")
    priors = [torch.cat([p.flatten() for p in vae.covariate_prior.state_dict().values()]) for vae in model.members]
    fitted = torch.cat([p.flatten() for p in model.vae.covariate_prior.state_dict().values()])
    assert [torch.equal(prior, fitted) for prior in priors] == [not every] * 2
    assert torch.equal(*priors) == (not every)


def test_members_need_rows_in_memory(tmp_path):
    visits().to_parquet(tmp_path / "visits.parquet")
    with pytest.raises(ValueError, match="members=2 resamples rows in memory"):
        CVAE(ROWS, **SMALL).fit(tmp_path / "visits.parquet", members=2)


def test_members_vary_as_least_squares_of_their_samples_does():
    """The slope of each member is near that of least squares on its own bootstrap sample."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"x": rng.normal(size=150)})
    table["y"] = 0.5 * table.x + rng.normal(size=150)
    model = CVAE(Schema(["y"], {"x": "continuous"}), latent_dim=1, networks=Dense((8,), (8,), linear=True))
    model.fit(table, members=6, seed=1, device="cpu")
    grid = pd.DataFrame({"x": np.linspace(-1.5, 1.5, 31)})
    slopes, expected, members = [], [], model.members
    for number, member in enumerate(members, 1):
        model.members = (member,)
        slopes.append(np.polyfit(grid.x, model.predict(grid, draws=200).y, 1)[0])
        generator = torch.Generator().manual_seed(1 + 7919 * number)
        rows = torch.randint(150, (150,), generator=generator).numpy()
        expected.append(np.polyfit(table.x[rows], table.y[rows], 1)[0])
    assert np.corrcoef(slopes, expected)[0, 1] > 0.8
    assert 0.5 < np.std(slopes) / np.std(expected) < 1.5
