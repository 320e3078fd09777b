"""Plots have the right parts: labels, lines and marks, at few and at many patients. Not a pixel is compared."""

from dataclasses import replace

import matplotlib
import numpy as np
import pandas as pd
import pytest

import lacova

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.collections import PathCollection, PolyCollection
from matplotlib.container import BarContainer, ErrorbarContainer

from lacova import plot
from lacova.analysis.recovery import LEVELS, _numbers, recover
from lacova.data.errors import DataError
from lacova.models.storage import CLASSES
from lacova.plot.effects import binned
from lacova.plot.patients import later
from lacova.plot.style import COLOURS, DASHES, MARKERS

UNITS = {"alt": "U/L", "day": "days", "age": "years"}


def visits(patients, count=5, seed=0):
    rng = np.random.default_rng(seed)
    n, p = patients * count, np.repeat(np.arange(patients), count)
    table = pd.DataFrame({
        "id": p, "day": np.tile(np.arange(count) * 30.0, patients), "sex": np.where(p % 2, "f", "m"),
        "age": rng.normal(50, 9, patients)[p].round(1), "arm": rng.choice(["a", "b", "c"], n),
        "alt": 30 + 4 * (p % 2) + rng.normal(0, 3, patients)[p] + rng.normal(0, 1, n), "ast": rng.normal(25, 4, n),
    })  # fmt: skip
    for name in ("arm", "alt", "ast"):
        table.loc[rng.random(n) < 0.2, name] = None
    for name in ("sex", "age"):
        table.loc[(rng.random(patients) < 0.2)[p], name] = None
    table.loc[1, "alt"] = None
    return table


@pytest.fixture(scope="module")
def table():
    return visits(24)


@pytest.fixture(scope="module")
def model(table):
    covariates = {"sex": "categorical", "age": "continuous", "arm": "categorical"}
    schema = lacova.Schema(["alt", "ast"], covariates, instance="id", time="day", static=["sex", "age"], units=UNITS)
    prior = "gp(day) + cat(arm) + gp(age):cat(sex) + cat(id)"
    return lacova.GPPriorVAE(schema, prior=prior, latent_dim=3, inducing=8).fit(table, max_epochs=6)


@pytest.fixture(scope="module")
def effects(model, table):
    return model.effects(table, draws=10)


@pytest.fixture(scope="module")
def recovery(model, table):
    return recover(model, table, share=0.3, draws=40)


@pytest.fixture(autouse=True)
def close():
    yield
    plt.close("all")


def legend(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def test_marks_differ_without_colour():
    assert len(COLOURS) == len(set(COLOURS)) == len(set(MARKERS)) == len(set(map(str, DASHES)))


@pytest.mark.parametrize("patients", [5, 500])
def test_gaps_by_patient_and_visit(patients, model):
    data = visits(patients)
    ax = plot.gaps(data.sample(frac=1.0, random_state=0), model.schema)
    drawn = np.asarray(ax.images[0].get_array())
    assert drawn.shape == (min(400, 5 * patients), 6)
    share = data[["alt", "ast", "sex", "age", "arm", "day"]].isna().mean().to_numpy()
    np.testing.assert_allclose(drawn.mean(0), share, atol=0.01)
    assert [t.get_text().split()[0] for t in ax.get_xticklabels()] == ["alt", "ast", "sex", "age", "arm", "day"]
    if patients == 5:
        assert [t.get_text() for t in ax.get_yticklabels()] == list("01234")
        assert np.array_equal(drawn[:, 0], data["alt"].isna())  # rows are in order again
    else:
        assert "500" in ax.get_ylabel()
        assert len(ax.get_yticklabels()) <= 8


def test_gaps_of_many_columns_are_not_named():
    data = pd.DataFrame(np.zeros((4, 101))).rename(columns=str)
    data.iloc[0, 0] = np.nan
    ax = plot.gaps(data, lacova.Schema([str(k) for k in range(100)], {"100": "continuous"}))
    assert list(ax.get_xticks()) == []
    assert ax.get_xlabel() == "100 measurements, 0% missing; 1 covariates, 0% missing"


def test_parts_of_figures(model, table):
    part = plt.figure(layout="constrained").subfigures(1, 2)[1]
    plot.gaps(table, model.schema, ax=part.subplots())
    assert [text.get_text() for text in part.legends[0].get_texts()] == ["missing", "observed"]
    assert len(plot.latent(model, table, "alt", ax=part.add_subplot()).figure.axes) == 3  # with the scale of colours


def test_training_by_term(model):
    ax = plot.training(model)
    names = [c for c in model.training if c != "epoch"]
    assert len(ax.lines) == len(names) == len(legend(ax))
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("epoch", "nats per row")
    assert len({line.get_linestyle() + line.get_marker() for line in ax.lines}) == len(names)
    one = plot.training(model.training, terms=["elbo"], ax=plt.subplots()[1])
    np.testing.assert_allclose(one.lines[0].get_ydata(), model.training["elbo"])


def test_trajectory(model, table):
    ax = plot.trajectory(model, table, 0, "alt", truth=table.fillna({"alt": 31.0}))
    rows = table[table["id"] == 0]
    marks = {line.get_label(): line for line in ax.lines}
    assert len(marks["observed"].get_xdata()) == rows["alt"].notna().sum()
    bars = [c for c in ax.containers if isinstance(c, ErrorbarContainer)]
    assert [len(c.lines[0].get_xdata()) for c in bars] == [rows["alt"].isna().sum()]
    assert set(marks["true value of a gap"].get_ydata()) == {31.0}
    assert (ax.get_xlabel(), ax.get_ylabel(), ax.get_title()) == ("day (days)", "alt (U/L)", "id 0")


def test_a_missing_time_is_drawn_in_its_place_and_truth_belongs_to_its_row(model, table):
    data = table.copy()
    data.loc[[0, 2], "day"] = None
    data.loc[[0, 1, 2, 4], "alt"] = None
    truth = table.assign(alt=np.arange(len(table), dtype=float), day=table["day"].iloc[::-1].to_numpy())
    ax = plot.trajectory(model, data, 0, "alt", truth=truth)
    assert (np.diff(ax.lines[0].get_xdata()) >= 0).all()
    at = model.impute(data[data["id"] == 0])["day"]
    crosses = next(line for line in ax.lines if line.get_label() == "true value of a gap")
    assert dict(zip(crosses.get_ydata(), crosses.get_xdata(), strict=True)) == {k: at[k] for k in (0, 1, 2, 4)}


def test_later_visits_are_like_the_last_one_whose_time_is_known(model, table):
    past = table[table["id"] == 0].assign(arm=list("abcba"), day=[0.0, 90, 30, None, None])
    assert later(past, model, [120, 150])["arm"].tolist() == ["b", "b"]
    assert later(past, model, [120, 150])["day"].tolist() == [120, 150]


def test_forecast_has_a_fan_that_widens_with_the_level(model, table):
    ax = plot.forecast(model, table, 3, "alt", [150, 180, 210], draws=50)
    fans = [c for c in ax.collections if isinstance(c, PolyCollection)]
    heights = [np.ptp(fan.get_paths()[0].vertices[:, 1]) for fan in fans]
    assert len(fans) == 3
    assert heights == sorted(heights, reverse=True)
    assert "history" in legend(ax)
    rows = table[table["id"] == 3].assign(day=[150.0, 160, 170, 180, 190])
    assert plot.forecast(model, table, 3, "alt", rows, levels=[0.9], draws=20).get_xlabel() == "day (days)"


def test_covariate_posterior_prior_and_truth(model, table):
    ax = plot.covariate(model, table, "age", truth=52.0, draws=60)
    assert [line.get_label() for line in ax.lines][-1] == "truth"
    assert len(ax.lines) == 3
    assert ax.get_xlabel() == "age (years)"
    complete = table.assign(age=table["age"].fillna(52.0))
    again = plot.covariate(model, table, "age", truth=complete, draws=60)
    assert again.lines[-1].get_xdata() == ax.lines[-1].get_xdata()
    bars = plot.covariate(model, table, "arm", truth="a", draws=60)
    groups = [c for c in bars.containers if isinstance(c, BarContainer)]
    for group in groups:
        assert sum(bar.get_height() for bar in group) == pytest.approx(1.0)
    assert len({bar.get_hatch() for group in groups for bar in group}) == 2
    assert "a\n(truth)" in [t.get_text() for t in bars.get_xticklabels()]


def test_prior_draws_do_not_look_at_measurements(model, table):
    before = model.prior_covariates(table, draws=3, seed=1)
    other = model.prior_covariates(table.assign(alt=table["alt"] + 9, ast=3.0), draws=3, seed=1)
    pd.testing.assert_frame_equal(before, other)
    assert list(before) == ["draw", "id", "sex", "age", "arm", "day"]
    known = table["arm"].notna().to_numpy()
    assert (before["arm"].to_numpy()[: len(table)][known] == table["arm"][known].to_numpy()).all()
    assert before["arm"].notna().all()


@pytest.mark.parametrize(("colour", "groups"), [("arm", 4), ("alt", 2), (None, 1)])
def test_latent_space(model, table, colour, groups):
    ax = plot.latent(model, table, colour)
    clouds = [c for c in ax.collections if isinstance(c, PathCollection)]
    assert len(clouds) == groups
    assert sum(len(c.get_offsets()) for c in clouds) == len(table)
    assert "principal direction of z" in ax.get_xlabel()
    if colour == "alt":
        assert any(other.get_ylabel() == "alt (U/L)" for other in ax.figure.axes)
    assert plot.latent(model, table, dims=(1, 3), ax=plt.subplots()[1]).get_ylabel() == "z3"


def test_marks_of_many_rows_can_be_told_apart_in_greyscale(model):
    rows = visits(500)
    labels = [f"site {min(k % 20, 11):02d}" for k in range(len(rows))]
    ax = plot.latent(model, rows.assign(site=labels), "site")
    clouds = {c.get_label(): c for c in ax.collections}
    assert list(clouds)[-1] == "others"
    assert all(cloud.get_sizes()[0] >= 14 for cloud in clouds.values())
    hollow = [len(cloud.get_facecolors()) == 0 for cloud in clouds.values()]
    assert hollow == [False, True] * 4 + [False]
    assert clouds["others"].get_facecolors()[0][:3].max() < 0.5


def test_effects_along_a_covariate_by_level_and_by_patient(model, table, effects):
    by_sex = plot.effects(model, table, "gp(age):cat(sex)", "alt", found=effects)
    assert legend(by_sex) == ["sex f", "sex m"]
    assert (by_sex.get_xlabel(), by_sex.get_ylabel()) == ("age (years)", "effect on alt (U/L)")
    assert sum(isinstance(c, PolyCollection) for c in by_sex.collections) == 2
    levels = plot.effects(model, table, "cat(arm)", "ast", found=effects)
    assert [t.get_text() for t in levels.get_xticklabels()] == ["a", "b", "c"]
    patients = plot.effects(model, table, "cat(id)", "ast", found=effects)
    means = patients.containers[0].lines[0].get_ydata()
    assert len(means) == 24
    assert (np.diff(means) >= 0).all()
    crossed = plot.effects(model, table, "cat(id)", "ast", by="day", found=effects)
    assert crossed.get_xlabel() == "day (days)"


def test_of_many_levels_the_most_frequent_have_a_line_and_the_legend_says_so(model, table):
    sexes = [f"s{min(k % 16, 11):02d}" for k in range(len(table))]  # the last by name is the most frequent
    rows = pd.DataFrame({"component": "gp(age):cat(sex)", "measurement": "alt", "mean": np.zeros(len(table))})
    rows, data = rows.assign(lower=0.0, upper=1.0), table.assign(sex=sexes, age=50.0)
    ax = plot.effects(model, data, "gp(age):cat(sex)", "alt", found=type("Found", (), {"rows": rows}))
    assert len(legend(ax)) == 6
    assert "sex s11" in legend(ax)
    assert ax.get_legend().get_title().get_text() == "6 of 12 levels, the most frequent"


def test_rows_with_equal_values_share_a_group():
    along = np.array([0.0] * 30 + [1.0] * 3 + [2.0] * 30 + [3.0] * 2)
    line = binned(pd.DataFrame({"mean": along, "lower": along, "upper": along}), along, bins=10, least=5)
    assert line["n"].tolist() == [30, 35]  # three and two rows alone would be too few
    np.testing.assert_allclose(line["at"], line["mean"])
    owners = np.r_[np.zeros(30), np.arange(1, 36)]  # the first thirty rows are one patient's, with three more of four
    owned = binned(pd.DataFrame({"mean": along, "lower": along, "upper": along}), along, 10, 5, owners)
    assert owned["n"].tolist() == [65]


def test_effects_of_500_patients_are_a_band(model):
    data = visits(500, 2)
    rows = pd.DataFrame(
        {"component": "cat(id)", "measurement": "alt", "mean": np.arange(1000.0), "lower": 0.0, "upper": 1.0}
    )
    ax = plot.effects(model, data, "cat(id)", "alt", found=type("Found", (), {"rows": rows}))
    assert ax.get_xlabel() == "500 patients, by size of the effect"
    assert len(ax.lines) == 2


def test_recovery_is_what_it_says(recovery, table):
    hidden = recovery.masked.isna() & table.isna().eq(False)
    assert len(recovery.numbers) + len(recovery.categories) == hidden.to_numpy().sum()
    alt = recovery.numbers[recovery.numbers["column"] == "alt"]
    np.testing.assert_allclose(alt["truth"], table["alt"].to_numpy()[alt["row"]])
    assert recovery.masked["alt"].to_numpy()[alt["row"]].tolist() == pytest.approx([np.nan] * len(alt), nan_ok=True)
    assert recovery.numbers["pit"].between(0, 1).all()
    line = recovery.summary().set_index("column").loc["alt"]
    assert line["rmse"] == pytest.approx(np.sqrt(((alt["mean"] - alt["truth"]) ** 2).mean()))
    assert (np.diff(recovery.coverage()["found"]) >= 0).all()
    assert recovery.coverage("alt")["n"].iloc[0] == len(alt)


@pytest.mark.parametrize("kind", CLASSES)
def test_a_single_measurement_is_hidden_and_imputed_by_every_model(kind, table):
    schema = lacova.Schema(["alt"], {"arm": "categorical"}, instance="id", time="day")
    model = CLASSES[kind](schema, latent_dim=1).fit(table, max_epochs=1, device="cpu")
    found = recover(model, table, share=0.3, draws=10)
    hidden = found.numbers[found.numbers["column"] == "alt"]
    assert len(hidden) == pytest.approx(0.3 * table["alt"].notna().sum(), rel=0.3)
    assert np.isfinite(hidden[["mean", "lower", "upper"]].to_numpy(float)).all()
    assert (hidden["lower"] < hidden["upper"]).all()


def test_pit_is_the_share_of_draws_below_the_truth():
    drawn = np.arange(999.0)[:, None].repeat(3, 1)
    found = _numbers("alt", np.arange(3), np.array([-1.0, 249.5, 2000.0]), drawn, np.random.default_rng(0))
    np.testing.assert_allclose(found["pit"], [0.0, 0.25, 1.0], atol=0.0011)
    tied = _numbers("alt", np.arange(500), np.zeros(500), np.zeros((99, 500)), np.random.default_rng(0))
    np.testing.assert_allclose(np.quantile(tied["pit"], [0.25, 0.5, 0.75]), [0.25, 0.5, 0.75], atol=0.06)


def test_calibration_and_pit(recovery):
    ax = plot.calibration(recovery)
    assert any(text.startswith("all (") for text in legend(ax))
    assert len(ax.lines[-1].get_xdata()) == len(LEVELS)
    bins = plot.pit(recovery, "alt", bins=5)
    alt = (recovery.numbers["column"] == "alt").sum()
    assert sum(patch.get_height() for patch in bins.containers[0]) == alt
    assert "alt" in bins.get_ylabel()
    assert f"by chance, of all {len(recovery.numbers)}" in legend(ax)  # and not of a column
    few = plot.pit(replace(recovery, numbers=recovery.numbers.head(5)))
    assert few.get_ylim()[0] == 0  # chance would have counts below none


def test_a_grid_of_images():
    rng = np.random.default_rng(0)
    true = rng.random((10, 12))
    masked = np.where(rng.random((10, 12)) < 0.3, np.nan, true)
    ax = plot.images({"true": true, "masked": masked, "imputed": true}, (3, 4), most=5)
    assert ax.images[0].get_array().shape == (3 * 4 - 1, 5 * 5 - 1)
    assert [t.get_text() for t in ax.get_yticklabels()] == ["true", "masked", "imputed"]
    assert ax.images[1].get_array().count() == np.isnan(masked[:5]).sum()
    shades = ax.images[0].cmap(np.linspace(0, 1, 9))[:, :3], ax.images[1].cmap([0.5])[:, :3]
    light = [colours @ [0.299, 0.587, 0.114] for colours in shades]  # as a printer without colours has them
    assert light[1] - light[0].max() > 0.1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, t: plot.covariate(m, t, "age", truth=t[:3]), r"truth has 3 row\(s\), data \d+; expected"),
        (lambda m, t: plot.trajectory(m, t, 0, "alt", truth=t[:3]), r"truth has 3 row\(s\), data \d+; expected"),
        (lambda m, t: plot.trajectory(m, t, 0, "alt", truth=t[::-1]), r"truth has other labels in 'id' than data"),
        (lambda m, t: plot.trajectory(m, t, 99, "alt"), r"no row has 'id' = 99; there are 0, 1, 2, 3"),
        (lambda m, t: plot.trajectory(m, t, 0, "altt"), r"no measurement 'altt'.*Did you mean 'alt'\?"),
        (lambda m, t: plot.forecast(m, t, 0, "alt", [150], levels=[2]), r"levels is \[2\]; expected numbers between"),
        (lambda m, t: plot.covariate(m, t, "day"), r"'day' has no gap"),
        (lambda m, t: plot.covariate(m, t, "arm", int(t["arm"].notna().argmax())), r"is not missing in row"),
        (lambda m, t: plot.latent(m, t, "size"), r"no column 'size'"),
        (lambda m, t: plot.latent(m, t, dims=(0, 9)), r"expected two whole numbers from 1 to 3"),
        (lambda m, t: plot.gaps(t.drop(columns="age"), m.schema), r"the table has no column 'age'"),
        (lambda m, t: plot.training(m, terms=["loss"]), r"no term 'loss'"),
        (lambda m, t: plot.images({"a": np.zeros((2, 5))}, (2, 2)), r"'a' has the shape \(2, 5\); expected images × 4"),
        (lambda m, t: recover(m, t, share=1.5), r"share is 1.5; expected"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_with_a_sentence(model, table, call, message):
    with pytest.raises((DataError, ValueError), match=message):
        call(model, table)


def test_axes_are_axes(model):
    with pytest.raises(TypeError, match=r"ax is a int; expected matplotlib axes"):
        plot.training(model, ax=3)
