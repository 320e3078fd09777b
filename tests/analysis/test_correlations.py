"""Correlations of observed and imputed values, against plain loops, the bootstrap, and right imputations."""

from itertools import pairwise

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy.special import ndtri

import lacova
from lacova import DataError, Schema, lost_correlations
from lacova.analysis import correlations
from lacova.analysis.correlations import _Estimate

SCHEMA = Schema(["a", "b"], {"day": "continuous", "age": "continuous", "sex": "categorical"}, instance="id", time="day",
                static=["age", "sex"])  # fmt: skip


def visits(patients=30, seed=0, right=False):
    """A shuffled table with gaps, and three completed tables: independent draws, or the true values."""
    rng = np.random.default_rng(seed)
    n, p = 4 * patients, np.repeat(np.arange(patients), 4)
    table = pd.DataFrame({
        "id": p, "day": np.tile([0.0, 10.0, 20.0, 30.0], patients), "age": rng.normal(50, 9, patients)[p],
        "sex": np.where(p % 2, "f", "m"), "a": rng.normal(size=patients)[p] + rng.normal(size=n),
    })  # fmt: skip
    table["b"] = np.exp(table["a"] + 0.7 * rng.normal(size=n))
    table = table.sample(frac=1, random_state=seed, ignore_index=True)
    original = table.copy()
    for name in ("a", "b"):
        original.loc[rng.random(n) < 0.3, name] = np.nan
    drawn = [original.fillna({}).assign(draw=k) for k in range(3)]
    for one in drawn:
        one["a"] = original["a"].fillna(table["a"] if right else pd.Series(rng.normal(size=n)))
        one["b"] = original["b"].fillna(table["b"] if right else pd.Series(rng.lognormal(size=n)))
    return original, pd.concat(drawn)


def slow_score(observed, value):
    """The normal score of a value by its rank among observed ones, ties in the middle."""
    below, equal = sum(v < value for v in observed), sum(v == value for v in observed)
    share = (below + (equal + 1) / 2) / (len(observed) + 1)
    return ndtri(min(max(share, 0.5 / (len(observed) + 1)), 1 - 0.5 / (len(observed) + 1)))


def test_correlations_are_those_of_plain_loops():
    original, completed = visits()
    table = lost_correlations(completed, original, SCHEMA)
    assert table[["kind", "first", "second"]].apply(tuple, axis=1).tolist() == [
        ("pair", "a", "b"), ("pair", "a", "day"), ("pair", "a", "age"), ("pair", "b", "day"), ("pair", "b", "age"),
        ("course", "a", "a"), ("course", "b", "b"),
    ]  # fmt: skip  # (day, age) has no gap, and neither the time nor what is constant has a course
    known = {name: original[name].dropna().tolist() for name in ("a", "b", "day", "age")}
    one_by_one = [frame for _, frame in completed.groupby("draw")]

    def scored(frame, row, name):
        return slow_score(known[name], frame[name].iloc[row])

    for line in table.itertuples():
        pairs = [(k, k) for k in range(len(original))]
        if line.kind == "course":
            pairs = []
            for _, rows in original.reset_index().groupby("id"):
                order = rows.sort_values("day")["index"].tolist()
                pairs += list(pairwise(order))
        gap = {name: original[name].isna().tolist() for name in known}
        imputed = [(i, j) for i, j in pairs if gap[line.first][i] or gap[line.second][j]]
        observed = [(i, j) for i, j in pairs if not (gap[line.first][i] or gap[line.second][j])]
        x, y = (
            [scored(original, pair[k], name) for pair in observed] for k, name in ((0, line.first), (1, line.second))
        )
        assert line.observed_pairs == len(observed)
        assert line.observed == pytest.approx(np.corrcoef(x, y)[0, 1], rel=1e-8)
        x, y = (
            [scored(frame, pair[k], name) for frame in one_by_one for pair in imputed]
            for k, name in ((0, line.first), (1, line.second))
        )
        assert line.completed_pairs == len(imputed)
        assert line.completed == pytest.approx(np.corrcoef(x, y)[0, 1], rel=1e-8)
        assert line.difference == pytest.approx(np.arctanh(line.completed) - np.arctanh(line.observed), rel=1e-8)
        who = original["id"].to_numpy()
        assert line.units == min(len({who[i] for i, _ in part}) for part in (observed, imputed))


@pytest.mark.parametrize(
    ("names", "right"), [(("pair", "a", "b"), False), (("course", "b", "b"), False), (("pair", "a", "age"), True)]
)
def test_the_standard_error_is_that_of_the_bootstrap_over_patients(names, right):
    """In the last case, a patient has the same influence on both correlations, which their difference does not have."""
    original, completed = visits(150, right=right)
    columns = list(dict.fromkeys(names[1:]))
    line = lost_correlations(completed, original, SCHEMA).set_index(["kind", "first", "second"]).loc[names]
    rng, differences = np.random.default_rng(1), []
    tables = [original, completed]
    rows = original.groupby("id").indices
    n = len(original)
    for _ in range(300):
        chosen = rng.integers(0, 150, 150)
        index = np.concatenate([rows[p] for p in chosen])
        labels = np.repeat(np.arange(150), 4)
        one = tables[0].iloc[index].assign(id=labels)
        many = pd.concat([tables[1].iloc[index + k * n].assign(id=labels) for k in range(3)])
        again = lost_correlations(many, one, SCHEMA, columns=columns)
        differences.append(again[again["kind"] == names[0]]["difference"].iloc[0])
    assert line["se"] == pytest.approx(np.std(differences), rel=0.12)  # 300 samples: a standard error of 4%


def test_units_outliers_the_order_of_rows_and_the_library_do_not_matter():
    original, completed = visits()
    expected = lost_correlations(completed, original, SCHEMA)
    changed = [frame.assign(a=7 * frame["a"] - 3, b=np.log(frame["b"])) for frame in (completed, original)]
    pd.testing.assert_frame_equal(lost_correlations(*changed, SCHEMA), expected)
    pd.testing.assert_frame_equal(
        lost_correlations(pl.from_pandas(completed), pl.from_pandas(original), SCHEMA), expected
    )
    order = np.random.default_rng(0).permutation(len(original))
    n = len(original)
    other = lost_correlations(
        completed.iloc[np.concatenate([order + k * n for k in range(3)])], original.iloc[order], SCHEMA
    )
    pd.testing.assert_frame_equal(other, expected)
    later = original["day"].where(original["day"] < 25)  # visits without a time have no neighbours
    missing = lost_correlations(completed, original.assign(day=later), SCHEMA).set_index("kind").loc["course"]
    full = expected.set_index("kind").loc["course"]
    counted = ["observed_pairs", "completed_pairs"]
    assert (missing[counted].sum(axis=1) * 3 == full[counted].sum(axis=1) * 2).all()  # two of three pairs are left


def normal_world(seed, rows, rho, independent, tables=10, columns=4, share=0.2):
    """Correlated normal rows, gaps completely at random, and draws from the true conditional law, or independent."""
    rng = np.random.default_rng(seed)
    cov = (1 - rho) * np.eye(columns) + rho
    y = rng.multivariate_normal(np.zeros(columns), cov, rows)
    gaps = rng.random(y.shape) < share
    filled = np.repeat(y[None], tables, axis=0)
    for i in np.flatnonzero(gaps.any(1)):
        m, o = gaps[i], ~gaps[i]
        slope = cov[np.ix_(m, o)] @ np.linalg.inv(cov[np.ix_(o, o)])
        mean, var = slope @ y[i, o], cov[np.ix_(m, m)] - slope @ cov[np.ix_(o, m)]
        if independent:
            mean, var = np.zeros(m.sum()), np.eye(m.sum())
        filled[:, i, m] = rng.multivariate_normal(mean, var, tables)
    names = list("abcdefgh"[:columns])
    original = pd.DataFrame(np.where(gaps, np.nan, y), columns=names)
    return pd.DataFrame(filled.reshape(-1, columns), columns=names), original, Schema(names, {})


@pytest.mark.parametrize("rows", [50, 200])
@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_right_imputations_lose_no_correlation(rows, rho):
    tables = [lost_correlations(*normal_world(seed, rows, rho, independent=False)) for seed in range(60)]
    assert np.mean([len(table) for table in tables]) > 5.9
    assert sum(table["lost"].any() for table in tables) <= 6  # 60 tables with a probability of 0.03 have as many in 1%
    ratio = np.concatenate([(table["difference"] / table["se"]).to_numpy() for table in tables])
    assert 0.85 < ratio.std() < 1.15


@pytest.mark.parametrize(("rows", "rho", "caught"), [(50, 0.5, 0.5), (50, 0.9, 1.0), (200, 0.5, 0.95), (200, 0.9, 1.0)])
def test_independent_draws_are_caught(rows, rho, caught):
    tables = [lost_correlations(*normal_world(seed, rows, rho, independent=True)) for seed in range(20)]
    assert np.mean([table["lost"].any() for table in tables]) >= caught
    if rows == 200:
        assert np.mean([table["lost"].mean() for table in tables]) > 0.9


def test_courses_that_are_drawn_visit_by_visit_are_caught():
    original, completed = visits(100)
    table = lost_correlations(completed, original, SCHEMA).set_index(["kind", "first"])
    assert table.loc["course", "lost"].all()
    assert (table.loc["course", "completed"] < table.loc["course", "observed"] - 0.2).all()


def test_a_correlation_is_lost_if_it_is_weaker_by_what_matters_and_beyond_chance():
    lines = pd.DataFrame({
        "observed": [0.8, -0.8, 0.3, 0.8, 0.80, 0.5, -0.5, 0.1],
        "completed": [0.3, -0.3, -0.6, 0.3, 0.71, 0.9, -0.9, -0.6],
        "se": [0.1, 0.1, 0.1, 0.4, 0.01, 0.1, 0.1, 0.1], "units": 100,
    })  # fmt: skip
    lines["difference"] = np.arctanh(lines["completed"]) - np.arctanh(lines["observed"])
    assert correlations._lost(lines).tolist() == [True, True, True, False, False, False, False, False]
    assert correlations._lost(lines.head(0)).tolist() == []


def test_few_pairs_few_patients_and_constants_have_no_correlation():
    unit, x, y = np.arange(12), np.random.default_rng(0).normal(size=(1, 12)), np.arange(12.0)[None]
    assert _Estimate.of(x, y, unit) is not None
    assert _Estimate.of(x[:, :9], y[:, :9], unit[:9]) is None
    assert _Estimate.of(x, y, unit // 2) is None
    assert _Estimate.of(x, np.ones((1, 12)), unit) is None
    assert _Estimate.of(x, 3 * x, unit) is None
    table = lost_correlations(visits(8)[1], visits(8)[0], SCHEMA)
    assert table.empty
    assert list(table) == list(correlations.COLUMNS)
    assert table["lost"].dtype == bool


def test_of_many_columns_and_tables_some_are_used():
    rng = np.random.default_rng(0)
    original = pd.DataFrame(rng.normal(size=(40, 50)), columns=[f"c{k}" for k in range(50)])
    original.iloc[:20, 5:] = np.nan
    schema = Schema(list(original), {})
    completed = pd.concat([original.fillna(pd.DataFrame(rng.normal(size=(40, 50)), columns=list(original)))] * 2)
    table = lost_correlations(completed, original, schema)
    assert table["first"].tolist()[0] == "c5"
    assert len(table) == 40 * 39 / 2
    assert lost_correlations(completed, original, schema, columns=["c1", "c7"])["second"].tolist() == ["c7"]
    assert correlations.spaced(3).tolist() == [0, 1, 2]
    assert correlations.spaced(100).tolist()[::19] == [0, 99]
    assert len(correlations.spaced(100)) == 20


def test_bad_input_is_refused():
    original, completed = visits()
    with pytest.raises(
        DataError, match="the completed table has 359 rows and the original 120; expected a whole multiple"
    ):
        lost_correlations(completed.head(359), original, SCHEMA)
    with pytest.raises(DataError, match="the completed table has no column 'b'"):
        lost_correlations(completed.drop(columns="b"), original, SCHEMA)
    with pytest.raises(DataError, match="the original table has no column 'id'"):
        lost_correlations(completed, original.drop(columns="id"), SCHEMA)
    with pytest.raises(DataError, match="column 'sex' is no number of the schema"):
        lost_correlations(completed, original, SCHEMA, columns=["a", "sex"])
    assert lost_correlations is lacova.lost_correlations
