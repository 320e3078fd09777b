"""The worlds of the inference study: on large samples, the truths that they state and the gaps that they describe."""

import numpy as np
import pandas as pd
import pytest
from reproduction.inference.regressions import design, least_squares
from reproduction.inference.rows import NEW
from reproduction.inference.trials import by_mixed
from reproduction.inference.visits import lasting, wide
from reproduction.inference.worlds import WORLDS, chosen
from scipy.special import expit

MANY = 40_000  # rows; a mean has an error of .005


def coefficients(table, y, *names):
    return least_squares(table[y], design(*(table[name] for name in names))).coefficients


def lacking(study, column):
    return study.gappy[column].isna().to_numpy()


@pytest.mark.parametrize("name", WORLDS)
def test_a_study_is_made_again_from_its_number_and_hides_entries_of_the_complete_table(name):
    world = WORLDS[name]
    study, again, other = (world.study(world.sizes[0], number) for number in (3, 3, 4))
    pd.testing.assert_frame_equal(study.gappy, again.gappy)
    assert not study.complete.equals(other.complete)
    pd.testing.assert_frame_equal(study.gappy.fillna(study.complete), study.complete)
    assert study.complete.notna().all().all()
    units = study.complete["id"].nunique() if "id" in study.complete else len(study.complete)
    assert units == world.sizes[0]
    assert set(study.schema["measurements"]) | set(study.schema["covariates"]) <= set(study.complete)
    assert world.says


def test_small_tables_have_the_coefficients_and_the_noise_that_they_state():
    study = WORLDS["small-tables"].study(MANY, 0)
    table = study.complete.assign(treated=study.complete["arm"] == "b")
    fit = least_squares(table["y"], design(table["x0"], table["x1"], table["treated"]))
    assert fit.coefficients == pytest.approx([0.0, 1.0, 0.5, 1.0], abs=0.04)
    assert fit.noise == pytest.approx(1.0, abs=0.03)
    assert len(study.new) == NEW


def test_pairs_are_missing_together_at_random():
    world = WORLDS["pairs"]
    study = world.study(MANY, 0)
    table, lost = study.complete, lacking(study, "x")
    assert coefficients(table, "y2", "x")[1] == pytest.approx(world.aims["slope"].truth, abs=0.01)
    assert table[["x", "y2"]].corr().iloc[0, 1] == pytest.approx(world.aims["across rows"].truth, abs=0.01)
    apart = [table[name] - coefficients(table, name, "y1") @ design(table["y1"]).T for name in ("x", "y2")]
    assert np.corrcoef(apart)[0, 1] == pytest.approx(world.aims["within rows"].truth, abs=0.01)
    np.testing.assert_array_equal(lost, lacking(study, "y2"))
    assert not lacking(study, "y1").any()
    assert lost.mean() == pytest.approx(0.4, abs=1e-3)
    assert table.loc[lost, "y1"].mean() == pytest.approx(table.loc[~lost, "y1"].mean(), abs=0.05)


def test_pairs_within_patients():
    world = WORLDS["pairs-in-patients"]
    study = world.study(MANY // 4, 0)
    table, lost = study.complete, lacking(study, "x")
    means = table.groupby("id")[["y1", "x", "y2"]].transform("mean")
    apart = table[["y1", "x", "y2"]] - means
    assert coefficients(apart, "y2", "x")[1] == pytest.approx(world.aims["slope"].truth, abs=0.02)
    # Within patients (3 of 4 degrees of freedom): var x = .5, var y2 = .75; between: var x = .5, of y2 .75.
    assert apart[["x", "y2"]].var().to_numpy() * 4 / 3 == pytest.approx([0.5, 0.75], abs=0.02)
    assert means[["x", "y2"]].var().to_numpy() == pytest.approx([0.5 + 0.5 / 4, 0.75 + 0.75 / 4], abs=0.04)
    np.testing.assert_array_equal(lost, lacking(study, "y2"))
    assert lost.mean() == pytest.approx(0.4, abs=1e-3)


def test_a_lasting_covariate_is_missing_for_whole_patients():
    world = WORLDS["lasting-covariate"]
    study = world.study(6000, 0)
    x = wide(study.complete, "x")[:, :, 0]
    assert np.cov(x.T) == pytest.approx(lasting(6), abs=0.08)
    assert np.corrcoef(x[:, :-1].ravel(), x[:, 1:].ravel())[0, 1] == pytest.approx(
        world.aims["lag-1 correlation"].truth, abs=0.005
    )
    assert x.mean(1).std() == pytest.approx(world.aims["sd of means"].truth, abs=0.04)
    assert coefficients(study.complete, "y", "x")[1] == pytest.approx(world.aims["slope"].truth, abs=0.03)
    lost = lacking(study, "x").reshape(-1, 6)
    assert (lost.all(1) == lost.any(1)).all()
    assert lost[:, 0].mean() == pytest.approx(1 / 3, abs=1e-3)


def test_a_covariate_is_missing_by_the_outcome_alone():
    study = WORLDS["missing-by-outcome"].study(MANY, 0)
    table, lost = study.complete, lacking(study, "x2")
    assert coefficients(table, "y", "x1", "x2") == pytest.approx([0.0, 0.5, 0.5], abs=0.03)
    assert table[["x1", "x2"]].corr().iloc[0, 1] == pytest.approx(0.5, abs=0.02)
    assert not lacking(study, "y").any()
    for rows in np.array_split(np.argsort(table["y"].to_numpy()), 10):
        assert lost[rows].mean() == pytest.approx(expit(1.5 * table["y"].to_numpy()[rows]).mean(), abs=0.03)
    beyond = lost - expit(1.5 * table["y"])
    assert np.corrcoef(beyond, table["x2"])[0, 1] == pytest.approx(0.0, abs=0.02)


def test_two_covariates_are_missing_together_at_random():
    world = WORLDS["covariate-pairs"]
    study = world.study(MANY, 0)
    table, lost = study.complete, lacking(study, "x1")
    truths = {name: aim.truth for name, aim in world.aims.items()}
    assert coefficients(table, "y", "x1", "x2")[1:] == pytest.approx(
        [truths["slope of x1"], truths["slope of x2"]], abs=0.01
    )
    assert table[["x1", "x2"]].corr().iloc[0, 1] == pytest.approx(truths["across rows"], abs=0.01)
    apart = [table[name] - coefficients(table, name, "y") @ design(table["y"]).T for name in ("x1", "x2")]
    assert np.corrcoef(apart)[0, 1] == pytest.approx(truths["within rows"], abs=0.01)
    np.testing.assert_array_equal(lost, lacking(study, "x2"))
    assert not lacking(study, "y").any()
    assert lost.mean() == pytest.approx(0.4, abs=1e-3)
    assert table.loc[lost, "y"].mean() == pytest.approx(table.loc[~lost, "y"].mean(), abs=0.05)


def test_two_covariates_are_missing_together_at_visits():
    study = WORLDS["covariate-pairs-at-visits"].study(MANY // 4, 0)
    table, lost = study.complete, lacking(study, "x1")
    means = table.groupby("id")[["y", "x1", "x2"]].transform("mean")
    for part in (table, table - means):
        assert part[["x1", "x2"]].corr().iloc[0, 1] == pytest.approx(0.5, abs=0.02)
        assert coefficients(part, "y", "x1", "x2")[1:] == pytest.approx([0.5, 0.5], abs=0.02)
    left = (table - means)["y"] - (table - means)[["x1", "x2"]].sum(axis=1) / 2
    assert left.var() * 4 / 3 == pytest.approx(0.25, abs=0.01)
    np.testing.assert_array_equal(lost, lacking(study, "x2"))
    assert lost.mean() == pytest.approx(0.4, abs=1e-3)


@pytest.mark.parametrize("name", ["arm-of-rows", "no-arm-of-rows", "arm", "no-arm", "permuted-arms"])
def test_arms_are_halves_at_random_with_the_effect_that_is_stated(name):
    world = WORLDS[name]
    table = world.study(6000, 0).complete
    truth = world.aims["effect"].truth
    if "id" in table:
        assert (table.groupby("id")["arm"].nunique() == 1).all()
        table = table.groupby("id").agg(y=("y", "mean"), arm=("arm", "first"))
    treated = table["arm"] == "b"
    assert treated.mean() == 0.5
    error = table["y"].std() * (4 / len(table)) ** 0.5
    assert abs(table["y"][treated].mean() - table["y"][~treated].mean() - truth) < 4 * error
    assert abs(np.corrcoef(treated, np.arange(len(table)))[0, 1]) < 4 / len(table) ** 0.5


def test_growth_has_slopes_of_its_own_per_patient():
    table = WORLDS["permuted-arms"].study(4000, 0).complete
    y, day = wide(table, "y")[:, :, 0], 2.0 * np.arange(12)
    np.testing.assert_array_equal(wide(table, "day")[0, :, 0], day)
    fits = np.linalg.lstsq(np.column_stack([np.ones(12), day, day**2]), y.T)[0]
    assert fits.mean(1) == pytest.approx([40.0, 5.0, 0.12], abs=0.2)
    gain = (y[:, -1] - y[:, 0]) / 22
    assert gain.std() == pytest.approx(2.5, rel=0.05)


def test_noise_grows_with_the_covariate():
    table = WORLDS["uneven-noise"].study(MANY, 0).complete
    scaled = (table["y"] - table["x0"]) / np.exp(0.6 * table["x0"])
    for _, part in scaled.groupby(pd.qcut(table["x0"], 5, labels=False)):
        assert part.std() == pytest.approx(1.0, abs=0.03)


def test_partners_are_correlated_within_and_between_patients():
    world = WORLDS["partners"]
    study = world.study(MANY // 4, 0)
    y = study.complete[["y1", "y2"]]
    means = y.groupby(study.complete["id"]).transform("mean")
    for part in (y, means, y - means):
        assert part.corr().iloc[0, 1] == pytest.approx(world.aims["correlation"].truth, abs=0.01)
    assert ((y - means).var().to_numpy() * 4 / 3) == pytest.approx([0.3, 0.3], abs=0.01)
    gaps = study.gappy[["y1", "y2"]].isna()
    assert gaps.mean().to_numpy() == pytest.approx([0.2, 0.2], abs=0.01)
    assert (gaps["y1"] & gaps["y2"]).mean() == pytest.approx(0.04, abs=0.005)


@pytest.mark.parametrize("name", ["dropout", "dropout-no-effect"])
def test_patients_drop_out_for_good_by_the_last_value_measured(name):
    world = WORLDS[name]
    study = world.study(4000, 0)
    y, gone = wide(study.complete, "y")[:, :, 0], lacking(study, "y").reshape(-1, 5)
    assert not gone[:, 0].any()
    assert (gone[:, 1:] >= gone[:, :-1]).all()
    at_risk = ~gone[:, :-1]
    left, hazard = gone[:, 1:][at_risk], expit(2.0 * y[:, :-1][at_risk] - 4.0)
    for rows in np.array_split(np.argsort(hazard), 10):
        assert left[rows].mean() == pytest.approx(hazard[rows].mean(), abs=0.04)
    assert 0.3 < gone[:, 4].mean() < 0.5
    treated = study.complete.groupby("id")["arm"].first().to_numpy() == "b"
    difference = y[treated].mean(0) - y[~treated].mean(0)
    assert difference == pytest.approx(world.aims["ANCOVA"].truth * np.arange(5) / 4, abs=0.1)
    estimate, lower, upper = by_mixed([study.gappy.dropna()])["mixed"]
    assert estimate == pytest.approx(world.aims["mixed"].truth, abs=upper - lower)
    assert y[~gone[:, 4], 4].mean() < y[:, 4].mean() - 0.3  # who stays has low values


def test_worlds_are_chosen_by_name_or_letter():
    assert [world.name for world in chosen(["T", "pairs"])] == ["pairs", "dropout", "dropout-no-effect"]
    assert {world.letter for world in WORLDS.values()} == set("ABCDEFGJKMT")
