"""Regressions on completed tables, pooled."""

import numpy as np
import pandas as pd
import polars as pl
import pytest

import lacova


def completed(draws=3, n=40):
    rng = np.random.default_rng(0)
    base = pd.DataFrame({"arm": rng.choice(["a", "b", "c"], n), "x": rng.normal(size=n)})
    tables = []
    for k in range(draws):
        y = np.exp(1.0 + 0.5 * base["x"] + (base["arm"] == "b") + rng.normal(0, 0.3, n))
        tables.append(base.assign(y=y, draw=k))
    return pd.concat(tables)


def test_regressions_of_completed_tables_are_pooled():
    table = completed()
    pooled = lacova.pool_regression(table, "log(y) ~ x + arm", confidence=0.9)
    estimates, variances = [], []
    for _, rows in table.groupby("draw"):
        x = np.column_stack([np.ones(len(rows)), rows["x"], rows["arm"] == "b", rows["arm"] == "c"])
        y = np.log(rows["y"])
        inverse = np.linalg.inv(x.T @ x)
        b = inverse @ x.T @ y
        estimates.append(b)
        variances.append(((y - x @ b) ** 2).sum() / (len(rows) - 4) * np.diag(inverse))
    want = lacova.pool(estimates, variances, dof=36, confidence=0.9)
    np.testing.assert_allclose(pooled, want, rtol=1e-8)
    assert list(pooled.index) == ["Intercept", "x", "arm[T.b]", "arm[T.c]"]
    other = lacova.pool_regression(pl.from_pandas(table), "log(y) ~ x + arm", confidence=0.9)
    pd.testing.assert_frame_equal(other, pooled)


@pytest.mark.parametrize(
    ("change", "formula", "message"),
    [
        (lambda t: t.drop(columns="draw"), "y ~ x", "no column 'draw' that numbers completed tables"),
        (lambda t: t[t["draw"] == 0], "y ~ x", "at least 2 completed tables, got 1"),
        (lambda t: t, "y ~ z", "no column or function 'z'; the columns are 'arm', 'x', 'y', 'draw'"),
        (lambda t: t.assign(x=np.nan), "y ~ x", r"column\(s\) 'x' have gaps; the regression takes completed tables"),
        (lambda t: t, "y ~~ x", "'y ~~ x' cannot be read: Operator `~` is incorrectly used. Expected one such as"),
        (lambda t: t, "y ~ foo(x)", "no column or function 'foo'"),
        (lambda t: t, "y", "must have one number on its left"),
        (lambda t: t, "arm ~ x", "must have one number on its left"),
        (lambda t: t, "y ~ 0", "terms on its right"),
        (lambda t: t.assign(y=0.0), "log(y) ~ x", "not finite, such as the logarithm of 0"),
        (lambda t: t, "y ~ x + I(2 * x)", "in table 0 the coefficients .* cannot be told apart"),
        (lambda t: t.groupby("draw").head(3), "y ~ x + arm", "table 0 has 3 rows for"),
    ],
)
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_bad_formulas_and_tables_are_refused(change, formula, message):
    with pytest.raises(ValueError, match=message):
        lacova.pool_regression(change(completed()), formula)
