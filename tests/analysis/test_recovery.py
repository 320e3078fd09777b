"""Hidden entries, imputed and compared."""

import numpy as np
import pandas as pd
import pytest
import torch

import lacova
from lacova.analysis.recovery import _compare_numbers, recover
from lacova.inference.joint_scores import score_units
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


def test_joint_scores_of_hidden_entries_are_those_of_completed_tables(model, recovery, table):
    """Rows with both measurements hidden, and courses with two hidden values of one."""
    drawn = model.impute(recovery.masked, draws=40)
    entries = []
    for d, name in enumerate(("alt", "ast")):
        rows = recovery.numbers[recovery.numbers["column"] == name]["row"].to_numpy(int)
        middle, sd = model.encoder.scales.decode(np.zeros(2))[d], model.encoder.scales.spread[d]
        values = (drawn[name].to_numpy().reshape(40, -1)[:, rows] - middle) / sd
        entries.append((rows, np.full(len(rows), d), (table[name].to_numpy()[rows] - middle) / sd, values))
    row, column, truth, draws = (np.concatenate(parts, axis=-1) for parts in zip(*entries, strict=True))
    patient = table["id"].to_numpy()[row]
    for kind, unit in (("row", row), ("course", 1000 * column + patient)):
        own = score_units(*(torch.as_tensor(values) for values in (draws, truth, unit)))
        lines = recovery.joint[recovery.joint["kind"] == kind]
        assert len(lines) > 3
        assert lines["entries"].tolist() == own.entries.tolist()
        np.testing.assert_allclose(lines["energy"].astype(float), own.energy, rtol=1e-8)
        np.testing.assert_allclose(lines["variogram"].astype(float), own.variogram, rtol=1e-8, atol=1e-12)
        if kind == "course":
            assert lines["column"].tolist() == ["alt" if code < 1000 else "ast" for code in own.unit.tolist()]
            assert (table["id"].to_numpy()[lines["row"].astype(int)] == own.unit.numpy() % 1000).all()
    summary = recovery.joint_summary()
    assert summary[["kind", "column"]].apply(tuple, axis=1).tolist() == [
        ("row", ""), ("course", "alt"), ("course", "ast"),
    ]  # fmt: skip
    lines = recovery.joint[recovery.joint["column"] == "ast"]
    assert summary["variogram_shuffled"].iloc[2] == pytest.approx(lines["variogram_shuffled"].mean())
    assert summary["n"].iloc[2] == summary["patients"].iloc[2] == len(lines)


def test_correlations_of_hidden_entries_are_those_of_completed_tables(model, recovery, table):
    """The table's own gaps, imputed too, do not count; the hidden values count among the observed."""
    drawn = model.impute(recovery.masked, draws=40)
    used = drawn[drawn["draw"].isin(np.linspace(0, 39, 20).round())].drop(columns="draw")
    hidden = recovery.masked.isna() & table.notna()
    line = recovery.correlations.set_index(["first", "second"]).loc[("alt", "ast")]
    assert line["observed_pairs"] == (table["alt"].notna() & table["ast"].notna()).sum()
    counted = (hidden["alt"] & table["ast"].notna()) | (hidden["ast"] & table["alt"].notna())
    assert line["completed_pairs"] == counted.sum()
    # Without the values of hidden entries, as `lost_correlations` has it, the table's own gaps count.
    alone = lacova.lost_correlations(used, recovery.masked, model.schema).set_index(["first", "second"])
    assert alone.loc[("alt", "ast"), "completed_pairs"] > line["completed_pairs"]
    assert set(recovery.correlations["kind"]) == {"pair", "course"}
    assert not recovery.correlations["second"].isin(["sex", "arm"]).any()


def test_draws_that_lose_the_joint_law_show(monkeypatch):
    """Shuffle the draws of a model that is right: the marginals stay, the scores and the correlations do not."""
    rng = np.random.default_rng(0)
    common = rng.normal(size=(400, 1))
    table = pd.DataFrame(common + 0.4 * rng.normal(size=(400, 4)), columns=list("abcd"))
    gaps = table.mask(rng.random(table.shape) < 0.3)  # without gaps in training, the encoder does not expect any later
    model = lacova.VAE(lacova.Schema(list("abcd"), {}), latent_dim=1).fit(gaps, members=1, device="cpu")
    right = recover(model, table, share=0.5, draws=50)
    assert not right.correlations["lost"].any()
    line = right.joint_summary().iloc[0]
    assert line["energy"] < line["energy_shuffled"]
    assert line["variogram"] < line["variogram_shuffled"]
    impute = lacova.VAE.impute

    def one_by_one(self, data, draws=None, **options):
        """Draw hidden values from the marginal of their column."""
        completed = impute(self, data, draws, **options)
        generator = np.random.default_rng(1)
        for name in self.schema.measurements:
            hidden = np.tile(data[name].isna(), draws)
            completed[name] = completed[name].mask(hidden, generator.choice(table[name], len(completed)))
        return completed

    monkeypatch.setattr(lacova.VAE, "impute", one_by_one)
    wrong = recover(model, table, share=0.5, draws=50)
    assert wrong.correlations["lost"].all()
    assert wrong.joint_summary()["energy"].iloc[0] > line["energy"]


def test_one_draw_is_refused(model, table):
    with pytest.raises(ValueError, match="draws is 1; expected at least 2, as joint scores compare draws"):
        recover(model, table, draws=1)


def test_categories_alone_have_no_joint_scores():
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {"id": np.repeat(np.arange(20), 3), "e": rng.choice(["x", "y"], 60), "f": rng.random(60) < 0.4}
    )
    schema = lacova.Schema({"e": "categorical", "f": "bernoulli"}, {}, instance="id")
    model = lacova.VAE(schema, latent_dim=1).fit(table, max_epochs=1, device="cpu")
    recovery = recover(model, table, share=0.5, draws=5)
    assert recovery.joint_summary().empty
    assert recovery.correlations.empty
    assert not {"energy", "course_energy"} & set(model.score(table, draws=5))


def test_limits_of_detection_hold_for_joint_scores():
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(80, 2)), columns=["crp", "alt"])
    table["crp"] = table["crp"].clip(lower=0.0)
    schema = lacova.Schema({"crp": "censored", "alt": "gaussian"}, {}, limits={"crp": (0.0, None)})
    model = lacova.VAE(schema, latent_dim=1).fit(table, max_epochs=2, device="cpu")
    recovery = recover(model, table, share=0.5, draws=20)
    assert np.isfinite(recovery.joint[["energy", "variogram"]].to_numpy(float)).all()


def test_a_share_beyond_one_is_refused(model, table):
    with pytest.raises(ValueError, match=r"share is 1.5; expected"):
        recover(model, table, share=1.5)
