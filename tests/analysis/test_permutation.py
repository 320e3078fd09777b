"""The permutation test: in worlds of known truth by a cheap stand-in, and with fits of its own."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binom, ttest_ind

import lacova
from lacova.analysis import permutation
from lacova.analysis.permutation import permutation_test, summarise, wilson
from tests.analysis.cases import VISITS, visits

SCHEMA = lacova.Schema(["y"], {"arm": "categorical"}, instance="id", static=["arm"])
FIT = {"max_epochs": 1, "start": "random", "device": "cpu"}
FAST = {"permutations": 19, "draws": 20, **FIT}


def study(effect, seed, patients=24, count=2):
    rng = np.random.default_rng(seed)
    arm = np.array(["a", "b"])[rng.permutation(patients) % 2].repeat(count)
    patient = np.arange(patients).repeat(count)
    y = effect * (arm == "b") + rng.normal(size=patients)[patient] + 0.3 * rng.normal(size=len(patient))
    return pd.DataFrame({"id": patient, "arm": arm, "y": y, "site": patient % 3})


def by_means(blank, table, rows, covariate, versus, value, *rest):
    """Compare patients' means by a t-test, in the place of a fit; or of all rows, an interval that is too narrow."""
    y, arm = table["y"].to_numpy(), table[covariate].to_numpy()
    if blank.latent_dim == 1:
        _, first, patient = np.unique(table["id"], return_index=True, return_inverse=True)
        y, arm = np.bincount(patient, y) / np.bincount(patient), arm[first]
    one, other = y[arm == value], y[arm == versus]
    test, difference = ttest_ind(one, other), one.mean() - other.mean()
    return {"y": [float(difference), *map(float, test.confidence_interval(rest[-1]))]}, []


def model(latent_dim=1):
    return lacova.CVAE(SCHEMA, latent_dim=latent_dim)


@pytest.fixture
def cheap(monkeypatch):
    monkeypatch.setattr(permutation, "effect_of", by_means)


def summary_of(table, latent_dim=1, **options):
    return permutation_test(table, model(latent_dim), "arm", **options).summary.iloc[0]


def test_without_an_effect_p_is_uniform(cheap):
    p = np.array([summary_of(study(0.0, seed), permutations=19)["p_value"] for seed in range(200)])
    assert set(np.round(20 * p)) == set(range(1, 21))
    for level in (0.1, 0.5, 0.9):
        assert binom.cdf(np.sum(p <= level + 1e-9), 200, level) == pytest.approx(0.5, abs=0.49)


def test_a_large_effect_has_a_small_p_and_permuted_arms_have_none(cheap):
    test = permutation_test(study(2.0, 0), model(), "arm", permutations=199)
    line = test.summary.iloc[0]
    assert line["p_value"] == 1 / 200
    assert line["lower"] > 0.5
    permuted = test.fits.query("permutation > 0")
    assert abs(permuted["difference"].mean()) < 3 * permuted["difference"].std() / 199**0.5


def test_honest_intervals_exclude_0_as_often_as_they_say_and_narrow_ones_more_often(cheap):
    honest, narrow = (summary_of(study(0.0, 1, count=6), size, permutations=300) for size in (1, 2))
    assert honest["exclude_0_lower"] < honest["expected"] < honest["exclude_0_upper"]
    assert narrow["exclude_0_lower"] > 0.3


def test_the_table_that_is_fitted_differs_in_the_arms_of_patients_alone(monkeypatch):
    table = study(1.0, 2).sample(frac=1, random_state=0)
    table.loc[table.index[0], "arm"] = np.nan  # known from the other visit
    seen = []

    def recorded(blank, given, rows, *rest):
        seen.append(given)
        return {"y": [0.0, -1.0, 1.0]}, []

    monkeypatch.setattr(permutation, "effect_of", recorded)
    permutation_test(table, model(), "arm", permutations=19, strata="site")
    complete = study(1.0, 2).loc[table.index]
    pd.testing.assert_frame_equal(seen[0], complete)
    for given in seen[1:]:
        pd.testing.assert_frame_equal(given.drop(columns="arm"), table.drop(columns="arm"))
        assert (given.groupby("id")["arm"].nunique() == 1).all()
        assert not given["arm"].equals(complete["arm"])
        counts = [t.groupby(["site", "arm"])["id"].nunique() for t in (given, complete)]
        pd.testing.assert_series_equal(*counts)


def test_without_patients_rows_are_permuted_and_numbers_can_be_set(monkeypatch):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"dose": rng.integers(0, 5, 30) * 10.0, "y": rng.normal(size=30)})
    seen = []
    monkeypatch.setattr(permutation, "effect_of", lambda *task: seen.append(task) or ({"y": [0.0, -1.0, 1.0]}, []))
    dose = lacova.CVAE(lacova.Schema(["y"], {"dose": "continuous"}), latent_dim=1)
    permutation_test(table, dose, "dose", versus=0, value=25, permutations=19)
    assert (seen[1][1]["dose"] != table["dose"]).any()
    assert sorted(seen[1][1]["dose"]) == sorted(table["dose"])
    assert seen[0][4:6] == (0, 25)
    with pytest.raises(lacova.DataError, match=r"holds 0.0, 10.0, .* say which two to compare"):
        permutation_test(table, dose, "dose")
    for wrong in ("much", np.inf):
        with pytest.raises(lacova.DataError, match=r"'dose' is to be set to .*must be finite numbers"):
            permutation_test(table, dose, "dose", versus=0, value=wrong)


def test_summary_by_hand():
    fits = pd.DataFrame({
        "permutation": [0, 1, 2, 3, 4], "measurement": "y", "difference": [2.0, -2.5, 1.0, 2.0, -0.5],
        "lower": 0.0, "upper": 1.0, "excludes_0": [True, True, False, False, False],
    })  # fmt: skip
    line = summarise(fits, 0.8).iloc[0]
    assert line["p_value"] == 3 / 5
    assert (line["exclude_0"], line["expected"], line["permutations"]) == (0.25, pytest.approx(0.2), 4)
    assert (line["exclude_0_lower"], line["exclude_0_upper"]) == wilson(1, 4, 0.95)


@pytest.mark.parametrize(("hits", "count"), [(0, 20), (3, 20), (20, 20)])
def test_wilsons_interval_holds_the_shares_that_a_score_test_does_not_reject(hits, count):
    share = np.linspace(1e-6, 1 - 1e-6, 200_001)
    kept = share[np.abs(hits / count - share) <= 1.959964 * np.sqrt(share * (1 - share) / count)]
    np.testing.assert_allclose(wilson(hits, count, 0.95), (kept.min(), kept.max()), atol=1e-5)


def test_fits_are_those_of_the_model_and_go_on_from_a_file(tmp_path, monkeypatch):
    table, file = visits(14), tmp_path / "done.jsonl"
    fitted = lacova.CVAE(VISITS, latent_dim=1).fit(table, batch_size=7, **FIT)
    test = permutation_test(table, fitted, "sex", checkpoint=file, **FAST)
    assert test.fits["measurement"].tolist() == ["alt", "ast"] * 20
    again = lacova.CVAE(VISITS, latent_dim=1).fit(table, batch_size=7, **FIT)
    line = again.what_if(table.assign(sex="f"), {"sex": "m"}, draws=20).average.iloc[0]
    assert test.summary["difference"][0] == line["difference"]
    assert test.summary["lower"][0] == line["difference_lower"]
    assert test.fits["difference"].nunique() == 40
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:-2]))
    fits, effect_of = [], permutation.effect_of
    monkeypatch.setattr(permutation, "effect_of", lambda *task: fits.append(task) or effect_of(*task))
    resumed = permutation_test(table, fitted, "sex", checkpoint=file, **FAST)
    pd.testing.assert_frame_equal(resumed.fits, test.fits)
    assert len(fits) == 2
    permutation_test(table, fitted, "sex", checkpoint=file, **FAST)
    assert len(fits) == 2
    permutation_test(table, fitted, "sex", checkpoint=file, **FAST | {"draws": 21})
    assert len(fits) == 22


@pytest.mark.parametrize("asked", [False, 0.3, None])
def test_fits_hold_out_what_is_asked_for_or_what_the_model_held_out(asked, tmp_path, monkeypatch):
    table, file = visits(14), tmp_path / "done.jsonl"
    seen = []
    monkeypatch.setattr(permutation, "effect_of", lambda *task: seen.append(task[6]) or ({"alt": [0.0, -1.0, 1.0]}, []))
    blank = lacova.CVAE(VISITS, latent_dim=1)
    permutation_test(table, blank, "sex", validation=asked, checkpoint=file, **FAST)
    fitted = lacova.CVAE(VISITS, latent_dim=1).fit(table, asked, **FIT)
    permutation_test(table, fitted, "sex", **FAST)
    assert [options["validation"] for options in seen] == [asked] * 40
    permutation_test(table, blank, "sex", validation=asked, checkpoint=file, **FAST)
    assert len(seen) == 40
    permutation_test(table, blank, "sex", validation=0.4, checkpoint=file, **FAST)
    permutation_test(table, fitted, "sex", validation=0.4, **FAST)
    assert [options["validation"] for options in seen[40:]] == [0.4] * 40


def test_a_share_is_held_out_of_each_fit():
    table = visits(40)
    one, other = (
        permutation_test(table, lacova.CVAE(VISITS, latent_dim=1), "sex", validation=share, **FAST)
        for share in (False, 0.3)
    )
    share = lacova.CVAE(VISITS, latent_dim=1).fit(table, 0.3, **FIT)
    line = share.what_if(table.assign(sex="f"), {"sex": "m"}, draws=20).average.iloc[0]
    assert other.summary["difference"][0] == line["difference"] != one.summary["difference"][0]


def test_what_fit_warns_of_is_said_once_and_again_where_the_test_goes_on(tmp_path):
    table = study(0.0, 0, patients=12)
    for _ in range(2):
        with pytest.warns(lacova.FitWarning) as told:
            permutation_test(table, model(), "arm", checkpoint=tmp_path / "done.jsonl", **FAST)
        assert len(told) == 1
        assert "few" in str(told[0].message)


@pytest.mark.parametrize("ends", [(0.5, 2), (0, 1.5), (0, 2)])
def test_whole_numbers_can_be_set_to_others(ends):
    table = study(0.0, 0, patients=60, count=1).assign(dose=np.arange(60) % 3)
    dose = lacova.CVAE(lacova.Schema(["y"], {"dose": "continuous"}), latent_dim=1)
    test = permutation_test(table, dose, "dose", versus=ends[0], value=ends[1], **FAST)
    assert np.isfinite(test.fits["difference"]).all()


def test_unseen_levels_in_the_rows_that_are_asked_about_give_one_warning():
    table = study(0.0, 0).assign(sex=np.array(["f", "m"])[np.arange(48) % 2])
    learner = lacova.CVAE(lacova.Schema(["y"], {"arm": "categorical", "sex": "categorical"}), latent_dim=1)
    expected = permutation_test(table, learner, "arm", rows=table.assign(sex=None), **FAST)
    with pytest.warns(lacova.UnseenLevelWarning, match=r"^48 entries .*: 48 of 'sex' \('x'\)") as caught:
        test = permutation_test(table, learner, "arm", rows=table.assign(sex="x"), **FAST)
    assert [warning.category for warning in caught].count(lacova.UnseenLevelWarning) == 1
    pd.testing.assert_frame_equal(test.fits, expected.fits)


def test_several_processes_find_the_same():
    table = visits(14)
    one, two = (
        permutation_test(table, lacova.CVAE(VISITS, latent_dim=1), "sex", workers=workers, **FAST) for workers in (1, 2)
    )
    pd.testing.assert_frame_equal(one.fits, two.fits)


@pytest.mark.parametrize(
    ("change", "options", "text"),
    [
        ({}, {"covariate": "amr"}, "'amr' cannot be permuted.* 'arm'.*Did you mean 'arm'"),
        ({"arm": ["a", "b"] * 24}, {}, "'arm' takes more than one value within 0, 1, .*permuted between patients"),
        ({"arm": [None] * 2 + ["a", "b"] * 23}, {}, "more than one value"),
        ({"arm": [None] * 2 + ["a"] * 22 + ["b"] * 24}, {}, "'arm' is missing for 0; .*leave their rows out"),
        ({"arm": "a"}, {}, "'arm' is 'a' in all rows"),
        ({"arm": ["a"] * 2 + ["b"] * 46}, {}, "only one unit has 'arm' 'a'"),
        ({"arm": ["a"] * 16 + ["b"] * 16 + ["c"] * 16}, {}, "holds 'a', 'b', 'c'; say which two"),
        ({}, {"value": "b", "versus": "z"}, "'z' is none of them"),
        ({}, {"value": "b", "versus": "b"}, "both are 'b'"),
        ({}, {"strata": "id"}, "in 1 different ways only"),
        ({"site": [0, 1] * 24}, {"strata": "site"}, "'site' takes more than one value"),
        ({}, {"strata": "centre"}, "centre"),
        ({}, {"permutations": 18}, "permutations must be a whole number of at least 19"),
        ({}, {"validation": True}, "validation is True; expected a share"),
        ({}, {"validation": 1.5}, "validation is 1.5; expected a share"),
        ({}, {"interval": 1.0}, "interval must lie between 0 and 1"),
        ({}, {"workers": 0}, "workers must be"),
        ({}, {"max_epoch": 1}, "'max_epoch' is none of training"),
        ({}, {"model": "CVAE"}, "model is 'CVAE'; expected a model"),
    ],
)
def test_bad_input_is_refused_before_anything_is_fitted(change, options, text, monkeypatch):
    monkeypatch.setattr(permutation, "effect_of", None)
    given = {"model": model(), "covariate": "arm"} | options
    with pytest.raises(ValueError, match=text):
        permutation_test(study(0.0, 0).assign(**change), **given)
