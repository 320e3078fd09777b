"""Draws of missing covariates against sums over all possible completions."""

from itertools import product

import numpy as np
import pandas as pd
import pytest

from lacova.data.errors import DataError
from lacova.datasets import mask_at_random, simulated_trial, true_covariates
from lacova.datasets.trial import CHAINS, COVARIATES, INDICATORS

RATE = 0.2 / 18  # of full visits, a day
DAYS = np.arange(731)
# probability of a set of days with this last day, up to a factor that depends on their number
STAYS = np.array([sum((1 - RATE) ** stay for stay in range(max(60, last), 731)) for last in DAYS])


def patient(days, **indicators):
    """Return visits of one patient, with all covariates missing but those named."""
    table = pd.DataFrame(np.nan, index=range(len(days)), columns=list(COVARIATES))
    return table.assign(id=4, day=days, **indicators)


def column(name):
    return list(COVARIATES).index(name)


def courses(table, days, names):
    """Yield completions of a patient's states, each with its weight for each case of the days (cases × visits)."""
    seen = table[names].to_numpy(float)
    gaps = np.argwhere(np.isnan(seen))
    order = np.argsort(days, axis=1)
    t = np.take_along_axis(days, order, 1)
    prior = np.where((np.diff(t) > 0).all(1), STAYS[t[:, -1]], 0.0)
    for values in product((0, 1), repeat=len(gaps)):
        states = seen.copy()
        states[tuple(gaps.T)] = values
        weight = prior.copy()
        for j, name in enumerate(names):
            share, memory, _ = INDICATORS[name]
            s = states[order, j]
            weight *= np.where(s[:, 0] == 1, share, 1 - share)
            for k in range(len(table) - 1):
                stationary = np.where(s[:, k + 1] == 1, share, 1 - share)
                decay = np.exp(-(t[:, k + 1] - t[:, k]) / memory)
                weight *= stationary + decay * ((s[:, k] == s[:, k + 1]) - stationary)
        yield states, weight


def compare(table, names, draws, seed=0, sweeps=10):
    """Compare the distributions of binned days and of states with days between draws and exact sums."""
    completed = true_covariates(table, draws, np.random.default_rng(seed), sweeps=sweeps)
    missing = np.flatnonzero(table["day"].isna())
    grids = np.meshgrid(*[DAYS] * len(missing), indexing="ij")
    days = np.tile(table["day"].fillna(-1).to_numpy(int), (grids[0].size if grids else 1, 1))
    for i, grid in zip(missing, grids, strict=True):
        days[:, i] = grid.ravel()
    edges = np.arange(0, 731, 60)
    cells = [np.digitize(days[:, i], edges) for i in missing]
    drawn_cells = [np.digitize(completed[:, i, 0], edges) for i in missing]
    drawn_states = completed[:, :, [column(name) for name in names]]
    total, expected = 0.0, {}
    for states, weight in courses(table, days, names):
        total += weight.sum()
        for k, cell in enumerate(cells):
            expected[k] = expected.get(k, 0) + np.bincount(cell, weight, minlength=15)
            late = weight[cell > 6].sum()
            expected["late", k] = expected.get(("late", k), 0) + late * states
        expected["states"] = expected.get("states", 0) + weight.sum() * states
        expected["pairs"] = expected.get("pairs", 0) + weight.sum() * np.multiply.outer(states, states)
        if len(missing) > 1:
            expected["order"] = expected.get("order", 0) + weight[days[:, missing[0]] < days[:, missing[1]]].sum()

    def close(drawn, sought):
        sought = np.asarray(sought) / total
        np.testing.assert_allclose(drawn, sought, atol=4.5 * np.sqrt(0.25 / draws))

    close(drawn_states.mean(0), expected["states"])
    close(np.einsum("dij,dkl->ijkl", drawn_states, drawn_states) / draws, expected["pairs"])
    for k, cell in enumerate(drawn_cells):
        close(np.bincount(cell, minlength=15) / draws, expected[k])
        close((drawn_states * (cell > 6)[:, None, None]).mean(0), expected["late", k])
    if len(missing) > 1:
        close((completed[:, missing[0], 0] < completed[:, missing[1], 0]).mean(), expected["order"])
    return completed


def test_states_between_known_days():
    nan = np.nan
    table = patient(
        [30.0, 400.0, 90.0, 100.0],  # not in order
        ae_infection=[1, nan, nan, 0], cm_simvastatin=[nan, 1, nan, nan], ae_nausea=[nan, nan, nan, nan],
    )  # fmt: skip
    completed = compare(table, ["ae_infection", "cm_simvastatin", "ae_nausea"], 6000)
    other = completed[:, :, column("cm_morphine")]
    assert other.mean() == pytest.approx(0.2, abs=0.03)  # never observed: its share


def test_one_missing_day_among_others():
    nan = np.nan
    table = patient(
        [nan, 60.0, 500.0, 300.0],
        ae_back_pain=[1, 0, 1, nan],
        cm_simvastatin=[0, 1, 0, nan],
        cm_morphine=[1, nan, 1, 0],
    )
    compare(table, ["ae_back_pain", "cm_simvastatin", "cm_morphine"], 6000)


def test_several_missing_days():
    nan = np.nan
    table = patient([nan, 100.0, nan], cm_simvastatin=[1, 0, 1], cm_allopurinol=[0, 1, nan], cm_furosemide=[0, nan, 0])
    compare(table, ["cm_simvastatin", "cm_allopurinol", "cm_furosemide"], 4000)


def test_no_day_known_at_all():
    table = patient([np.nan, np.nan], cm_prednisone=[1, 0], cm_simvastatin=[1, 0])
    completed = compare(table, ["cm_prednisone", "cm_simvastatin"], 4000)
    assert (completed[:, 0, 0] != completed[:, 1, 0]).all()


def test_observed_entries_stay_and_static_covariates_are_one_unknown():
    table, schema = simulated_trial(12, seed=3)
    names = list(schema.covariates)
    gaps = mask_at_random(table, names, 0.3, 7, instance="id", static=schema.static)
    completed = true_covariates(gaps, 40, np.random.default_rng(0))
    again = true_covariates(gaps, 40, np.random.default_rng(0))
    np.testing.assert_array_equal(completed, again)
    assert completed.shape == (40, len(table), 23)
    x = gaps[names].to_numpy(float)
    np.testing.assert_array_equal(completed[:, ~np.isnan(x)], np.tile(x[~np.isnan(x)], (40, 1)))
    assert np.isfinite(completed).all()
    for name in ("age", "sex"):
        values = pd.DataFrame(completed[:, :, column(name)].T).groupby(table["id"].to_numpy())
        assert (values.nunique() == 1).all().all()
        unknown = gaps[name].isna().to_numpy()
        assert (completed[:, unknown, column(name)].std(0) > 0).all()
    # A static covariate observed at one visit is known at all visits.
    partial = table.assign(sex=table["sex"].where(~table["id"].duplicated()), age=table["age"].where(table["day"] < 0))
    completed = true_covariates(partial, 500, np.random.default_rng(0))
    np.testing.assert_array_equal(completed[:, :, column("sex")], np.tile(table["sex"], (500, 1)))
    first = ~table["id"].duplicated().to_numpy()
    drawn = completed[:, first, column("age")]
    assert drawn.mean() == pytest.approx(68, abs=0.4)
    assert drawn.std() == pytest.approx(8, rel=0.05)


def test_hidden_values_have_the_distribution_of_the_draws():
    """Over many patients, hidden values rank among the draws as one of them would; this includes the filter."""
    table, schema = simulated_trial(300, seed=11)
    names = list(schema.covariates)
    gaps = mask_at_random(table, names, 0.25, 3, instance="id", static=schema.static)
    completed = true_covariates(gaps, 20, np.random.default_rng(1), sweeps=4)
    truth = table[names].to_numpy(float)
    hidden = gaps[names].isna().to_numpy()
    days = hidden[:, 0]
    rank = (completed[:, days, 0] < truth[days, 0]).mean(0) + (completed[:, days, 0] == truth[days, 0]).mean(0) / 2
    assert days.sum() > 400
    assert rank.mean() == pytest.approx(0.5, abs=3.5 * np.sqrt(1 / 12 / days.sum()))
    assert ((rank > 0.25) & (rank < 0.75)).mean() == pytest.approx(0.5, abs=0.08)
    p = completed.mean(0)[:, 3:][hidden[:, 3:]]
    y = truth[:, 3:][hidden[:, 3:]]
    share = np.tile(CHAINS.share, (len(table), 1))[hidden[:, 3:]]
    for low, high in ((-0.01, 0.1), (0.1, 0.3), (0.3, 0.7), (0.7, 0.9), (0.9, 1.01)):
        one = completed[0, :, 3:][hidden[:, 3:]]
        others = completed[1:].mean(0)[:, 3:][hidden[:, 3:]]
        group = (others > low) & (others < high)
        assert y[group].mean() == pytest.approx(one[group].mean(), abs=5 * np.sqrt(0.5 * 0.5 / group.sum()))
    assert np.mean((y - p) ** 2) < 0.75 * np.mean((y - share) ** 2)  # other visits are informative


def test_before_the_filter_visits_are_more_frequent():
    table = patient([700.0, np.nan])
    unknown = patient([np.nan, np.nan])
    days = [true_covariates(unknown, 3000, np.random.default_rng(0), filtered=f)[:, :, 0] for f in (True, False)]
    assert all((d[:, 0] != d[:, 1]).all() for d in days)  # no two visits on a day
    late = [(d > 365).mean() for d in days]
    assert late[0] > 0.03
    assert late[1] < 0.001  # days so few must be early where visits are many
    even = true_covariates(table, 3000, np.random.default_rng(0))[:, 1, 0]
    assert even.mean() == pytest.approx(350, abs=20)
    with pytest.raises(DataError, match="days must be whole numbers from 0 to 730"):
        true_covariates(patient([800.0, 3.0]), 2, np.random.default_rng(0))
    with pytest.raises(DataError, match=r"no column 'id', 'sex'; expected one of simulated_trial"):
        true_covariates(table.drop(columns=["id", "sex"]), 2, np.random.default_rng(0))
