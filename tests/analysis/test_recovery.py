"""Hidden entries, imputed and compared."""

import numpy as np
import pytest

import lacova
from lacova.analysis.recovery import _compare_numbers, recover
from lacova.models.registry import models
from tests.plot.cases import fitted_model, visits


@pytest.fixture(scope="module")
def table():
    return visits(24)


@pytest.fixture(scope="module")
def model(table):
    return fitted_model(table)


@pytest.fixture(scope="module")
def recovery(model, table):
    return recover(model, table, share=0.3, draws=40)


def test_hidden_entries_are_compared_with_their_true_values(recovery, table):
    hidden = recovery.masked.isna() & table.isna().eq(False)
    assert len(recovery.numbers) + len(recovery.categories) == hidden.to_numpy().sum()
    alt = recovery.numbers[recovery.numbers["column"] == "alt"]
    np.testing.assert_allclose(alt["truth"], table["alt"].to_numpy()[alt["row"]])
    assert recovery.masked["alt"].to_numpy()[alt["row"]].tolist() == pytest.approx([np.nan] * len(alt), nan_ok=True)
    assert recovery.numbers["pit"].between(0, 1).all()
    line = recovery.summary().set_index("column").loc["alt"]
    assert line["rmse"] == pytest.approx(np.sqrt(((alt["mean"] - alt["truth"]) ** 2).mean()))
    assert (np.diff(recovery.coverage()["coverage"]) >= 0).all()
    assert recovery.coverage("alt")["n"].iloc[0] == len(alt)


@pytest.mark.parametrize("kind", models())
def test_a_single_measurement_is_hidden_and_imputed_by_every_model(kind, table):
    schema = lacova.Schema(["alt"], {"arm": "categorical"}, instance="id", time="day")
    model = models()[kind](schema, latent_dim=1).fit(table, max_epochs=1, device="cpu")
    recovery = recover(model, table, share=0.3, draws=10)
    hidden = recovery.numbers[recovery.numbers["column"] == "alt"]
    assert len(hidden) == pytest.approx(0.3 * table["alt"].notna().sum(), rel=0.3)
    assert np.isfinite(hidden[["mean", "lower", "upper"]].to_numpy(float)).all()
    assert (hidden["lower"] < hidden["upper"]).all()


def test_pit_is_the_share_of_draws_below_the_truth():
    drawn = np.arange(999.0)[:, None].repeat(3, 1)
    numbers = _compare_numbers("alt", np.arange(3), np.array([-1.0, 249.5, 2000.0]), drawn, np.random.default_rng(0))
    np.testing.assert_allclose(numbers["pit"], [0.0, 0.25, 1.0], atol=0.0011)
    tied = _compare_numbers("alt", np.arange(500), np.zeros(500), np.zeros((99, 500)), np.random.default_rng(0))
    np.testing.assert_allclose(np.quantile(tied["pit"], [0.25, 0.5, 0.75]), [0.25, 0.5, 0.75], atol=0.06)


def test_a_share_beyond_one_is_refused(model, table):
    with pytest.raises(ValueError, match=r"share is 1.5; expected"):
        recover(model, table, share=1.5)
