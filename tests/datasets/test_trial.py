import numpy as np
import pytest

from lacova.data.errors import DataError
from lacova.datasets import drop_sparse, simulated_trial, simulated_trial_effects, simulated_trial_mean
from lacova.datasets.trial import CHAINS, COVARIATES, INDICATORS, LONGEST, SHORTEST, SYSTEMS, TESTS


@pytest.fixture(scope="module")
def filtered():
    return simulated_trial()


@pytest.fixture(scope="module")
def whole():
    return simulated_trial(filtered=False)


@pytest.fixture(scope="module")
def large():
    return simulated_trial(2500, seed=5)


def test_shape_of_the_study(filtered):
    table, schema = filtered
    assert table["id"].nunique() == 184
    assert table.groupby("id").size().min() >= 5
    assert len(schema.measurements) == 28
    assert list(schema.covariates) == list(COVARIATES)
    assert len(COVARIATES) == 23
    assert [name[:3] for name in COVARIATES].count("ae_") == 10
    assert [name[:3] for name in COVARIATES].count("cm_") == 10
    assert (schema.instance, schema.time, schema.static) == ("id", "day", ("age", "sex"))
    assert list(schema.columns) == list(table)
    assert table[list(COVARIATES)].notna().all().all()
    assert (table.groupby("id")[["age", "sex"]].nunique() == 1).all().all()


def test_seeds(filtered):
    assert filtered[0].equals(simulated_trial(seed=0)[0])
    assert not filtered[0].equals(simulated_trial(seed=1)[0])
    for patients in (1, 7, 400):
        table, schema = simulated_trial(patients, seed=2)
        assert table["id"].nunique() == patients
        assert len(schema.measurements) == 28


def test_patients_are_simulated_until_enough_are_left(monkeypatch):
    monkeypatch.setattr("lacova.datasets.trial.VISIT", 1 / 50)  # few patients with five full visits
    table, _ = simulated_trial(200)
    assert table["id"].nunique() == 200
    assert table.groupby("id").size().min() >= 5
    assert table["id"].is_monotonic_increasing
    assert table["id"].max() > 700  # more than one block


def test_a_quarter_is_observed_before_the_filter(whole, filtered):
    table, schema = whole
    seen = table[list(schema.measurements)].notna()
    assert seen.to_numpy().mean() == pytest.approx(0.25, abs=0.02)
    assert seen[list(filtered[1].measurements)].to_numpy().mean() == pytest.approx(0.25, abs=0.03)
    assert len(schema.measurements) == 32
    shares = seen.mean()
    assert ((shares < 0.05) | (shares > 0.13)).all()  # far from the filter's 10%
    assert 330 < table["id"].nunique() < 430  # the paper has 371
    assert filtered[0][list(filtered[1].measurements)].notna().to_numpy().mean() > 0.85


def test_the_filtered_table_is_the_filter_of_the_full_one(whole, filtered):
    dense, names = drop_sparse(whole[0], whole[1].measurements, "id")
    assert names == list(filtered[1].measurements)
    assert dense.reset_index(drop=True).equals(filtered[0])


def test_visits_are_irregular_and_within_the_stay(large, whole):
    table, _ = large
    gaps = table.groupby("id")["day"].diff().dropna()
    assert (gaps >= 1).all()
    assert gaps.std() / gaps.mean() > 0.6
    assert table["day"].between(0, LONGEST).all()
    assert (table["day"] == table["day"].round()).all()
    everyone = whole[0].groupby("id")["day"].agg(["max", "size"])
    assert everyone["max"].min() >= SHORTEST / 4
    assert everyone["size"].sum() / everyone["max"].sum() == pytest.approx(1 / 18, rel=0.06)


def test_age_sex_and_chains_follow_their_distributions(large):
    table, _ = large
    people = table.groupby("id")[["age", "sex"]].first()
    assert people["age"].mean() == pytest.approx(68, abs=0.6)
    assert people["age"].std() == pytest.approx(8, rel=0.06)
    assert people["age"].between(45, 90).all()
    assert people["sex"].mean() == pytest.approx(0.5, abs=0.035)
    states = table[list(INDICATORS)].to_numpy(float)
    assert set(np.unique(states)) == {0.0, 1.0}
    np.testing.assert_allclose(states.mean(0), CHAINS.share, atol=0.025)
    # From visit to visit the deviation from the share shrinks by exp(−gap/memory), on average exactly.
    same = (table["id"] == table["id"].shift()).to_numpy()[1:]
    gap = np.diff(table["day"])[same, None]
    z = states - CHAINS.share
    now, before = z[1:][same], z[:-1][same]
    slope = (now * before).sum(0) / (np.exp(-gap / CHAINS.memory) * before**2).sum(0)
    np.testing.assert_allclose(slope, 1, atol=0.12)
    # Different chains are independent.
    assert np.abs(np.corrcoef(states.T) - np.eye(20)).max() < 0.06


def test_measurements_are_mean_intercept_and_noise(large):
    table, schema = large
    names = list(schema.measurements)
    sd = np.array([TESTS[name][3] for name in names])
    rest = (table[names] - simulated_trial_mean(table)[names]) / sd
    patients = rest.groupby(table["id"])
    within = ((rest - patients.transform("mean")) ** 2).sum() / (patients.count() - 1).clip(lower=0).sum()
    np.testing.assert_allclose(np.sqrt(within), 0.4, rtol=0.03)
    np.testing.assert_allclose(rest.std(), np.hypot(0.5, 0.4), rtol=0.05)
    assert rest.mean().abs().max() < 0.05
    assert np.abs(np.corrcoef(rest.fillna(0).T) - np.eye(28)).max() < 0.12


def test_effects_are_those_that_a_regression_estimates(large):
    table, _ = large
    effects = simulated_trial_effects()
    x = table[["age", "sex", *INDICATORS]]
    for name in ("haemoglobin", "psa", "creatinine"):
        seen = table[name].notna()
        trend = SYSTEMS[TESTS[name][0]][0](table["day"] / LONGEST)
        design = np.column_stack([np.ones(seen.sum()), trend[seen], x[seen]])
        estimated, *_ = np.linalg.lstsq(design, table.loc[seen, name], rcond=None)
        sd = TESTS[name][3]
        assert estimated[1] / sd == pytest.approx(TESTS[name][1], abs=0.1)
        np.testing.assert_allclose(estimated[3:] / sd, effects.loc[name, x.columns[1:]] / sd, atol=0.07)
        assert estimated[2] == pytest.approx(effects.loc[name, "age"], abs=0.03 * sd / 8)
    assert effects.index.tolist() == list(TESTS)
    assert (effects["noise"] / effects["intercept"]).to_numpy() == pytest.approx(0.8)
    assert (effects[list(INDICATORS)] != 0).any().all()  # everything matters to something


def test_effects_are_differences_of_the_mean():
    table, _ = simulated_trial(3)
    effects = simulated_trial_effects()
    for name in ("age", "sex", "ae_oedema", "cm_furosemide"):
        more = table.assign(**{name: table[name] + 1})
        difference = simulated_trial_mean(more) - simulated_trial_mean(table)
        np.testing.assert_allclose(difference, np.tile(effects[name], (len(table), 1)), atol=1e-9)
    with pytest.raises(DataError, match=r"no column 'day'; expected one of simulated_trial"):
        simulated_trial_mean(table.drop(columns="day"))
    with pytest.raises(ValueError, match="patients is 0; expected 1 or more"):
        simulated_trial(0)
