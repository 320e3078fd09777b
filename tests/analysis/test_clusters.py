"""Which rows belong together: known, stated, or suspected."""

import numpy as np
import pandas as pd
import polars as pl
import pytest

import lacova
from lacova.data.io.files import read_table, write_table
from tests.analysis import cases
from tests.analysis.test_regression import completed, visits

pytestmark = pytest.mark.filterwarnings("ignore::lacova.analysis.pooling.MonteCarloWarning")  # few tables suffice here
CLUSTERED = "least squares, standard errors robust to clusters"


@pytest.fixture(scope="module")
def imputed():
    table = cases.visits()
    table.loc[::5, "alt"] = None
    model = lacova.GPPriorVAE(cases.VISITS, latent_dim=1).fit(table, max_epochs=1, device="cpu", progress=False)
    return model.impute(table, draws=3)


def analysis(table, formula="alt ~ sex", **options):
    return lacova.pool_regression(table, formula, **options).attrs["analysis"]


def test_completed_tables_know_their_instance(imputed, tmp_path):
    assert analysis(imputed) == f"{CLUSTERED} (12 values of 'id')"
    assert analysis(imputed[imputed["draw"] < 2]) == analysis(imputed)
    write_table(imputed, tmp_path / "completed.parquet")
    assert analysis(read_table(tmp_path / "completed.parquet")) == analysis(imputed)
    assert analysis(imputed, cluster=None) == "least squares, rows independent"
    once = imputed[imputed["day"] == 30]
    assert analysis(once) == "least squares, rows independent"
    assert analysis(imputed.drop(columns="id")) == "least squares, rows independent"
    pd.testing.assert_frame_equal(
        lacova.pool_regression(imputed, "alt ~ sex"), lacova.pool_regression(imputed, "alt ~ sex", cluster="id")
    )


REFUSED = r"several rows share a value of 'patient' \(14 values in 56 rows\).*cluster='patient' \(--cluster patient\)"


@pytest.mark.parametrize(
    ("change", "formula"),
    [
        (lambda t: t, "weight ~ arm"),
        (lambda t: t, "weight ~ week"),  # rows of a patient lie together
        (lambda t: t.sort_values(["draw", "week"]), "weight ~ arm"),  # visit by visit: the arm never changes
        (lambda t: t.assign(patient=t["patient"].map("p{}".format)), "weight ~ week"),
        (lambda t: t.assign(patient=t["patient"].astype(float)), "weight ~ week"),
        (lambda t: t.assign(patient=t["patient"].astype("category")), "weight ~ arm"),
        (pl.from_pandas, "weight ~ arm"),
    ],
)
def test_visits_are_not_silently_taken_for_independent(change, formula):
    with pytest.raises(ValueError, match=REFUSED):
        lacova.pool_regression(change(visits()), formula)


def test_tables_without_repeated_rows_are_not_suspected():
    rng = np.random.default_rng(0)
    table = completed(n=120)
    rows = {
        "person": np.arange(120), "age": rng.integers(20, 60, 120), "site": rng.choice(list("uvw"), 120),
        "date": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 40, 120), unit="D"),
        "name": [f"n{k}" for k in [*range(115), *range(5)]], "exact": np.repeat(rng.normal(size=60), 2),
        "gaps": np.where(np.arange(120) % 3, np.arange(120) // 4, np.nan),
    }  # fmt: skip
    table = table.assign(**{name: np.tile(values, 3) for name, values in rows.items()})
    assert analysis(table, "y ~ x + arm + site") == "least squares, rows independent"
    ends = visits()
    assert analysis(ends[ends["week"] == 3], "weight ~ arm") == "least squares, rows independent"


@pytest.mark.parametrize(
    ("change", "cluster", "message"),
    [
        (lambda t: t, "patiend", "no column 'patiend' of clusters; .* Did you mean 'patient'"),
        (lambda t: t.assign(patient=t["patient"].where(t["patient"] > 0)), "patient", "'patient' of clusters has gaps"),
        (lambda t: t.assign(patient=1), "patient", "one value in a table; expected several clusters"),
    ],
)
def test_bad_clusters_are_refused(change, cluster, message):
    with pytest.raises(ValueError, match=message):
        lacova.pool_regression(change(visits()), "weight ~ arm", cluster=cluster)
