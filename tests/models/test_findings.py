"""What is doubtful about a fit is said in `fit`, `describe` and the file; a sound fit has nothing of it."""

import re
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_iris, load_wine

import lacova
from lacova import CVAE, VAE, FitWarning, GPPriorVAE, Schema
from lacova.datasets import simulated_trial
from lacova.models.findings import Fit, at_floor, patients_only, unused


def seen(share=(0.5, 0.0), residual=((0.0, 0.0),), noise=(0.5, 0.5), variance=(1.0, 1.0), patients=None):
    parts = (torch.tensor(part, dtype=torch.float64) for part in (share, residual, noise, variance))
    return Fit(*parts, None if patients is None else torch.tensor(patients, dtype=torch.float64))


# Each check by itself.


def test_noise_at_its_floor_is_that_of_a_measurement_that_varies_more():
    names = ["alt", "ast"]
    assert at_floor(seen(noise=(2e-4, 0.5)), names, 1e-4).startswith("The noise of 'alt' went to its floor:")
    assert at_floor(seen(noise=(2e-3, 0.5)), names, 1e-4) == ""
    assert at_floor(seen(noise=(2e-4, 0.5), variance=(2e-3, 1.0)), names, 1e-4) == ""  # a pixel that is nearly constant
    assert at_floor(seen(noise=(2e-4, 0.5), variance=(0.0, 1.0)), names, 1e-4) == ""  # a constant has a warning already


def test_a_patient_share_of_99_percent():
    names = ["alt", "ast"]
    assert "99% or more of the variance of 'ast'" in patients_only(seen(patients=(0.98, 0.991)), names)
    assert patients_only(seen(patients=(0.98, 0.9)), names) == ""
    assert patients_only(seen(patients=(0.98, 1.0), variance=(1.0, 0.0)), names) == ""
    assert patients_only(seen(), names) == ""


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_unused_z_is_doubtful_if_it_leaves_correlations(sign):
    rng = np.random.default_rng(0)
    common = rng.normal(size=200)
    residual = np.stack([common, rng.normal(size=200), sign * common + rng.normal(size=200)], axis=1)
    residual[rng.random(residual.shape) < 0.2] = np.nan
    names = ["alt", "ast", "ggt"]
    sentence = unused(seen(share=(0.01, 0.02), residual=residual), names)
    whole = residual[~np.isnan(residual[:, [0, 2]]).any(1)]
    expected = np.corrcoef(whole[:, 0], whole[:, 2])[0, 1]
    assert "'alt' and 'ggt' go together beyond what covariates explain" in sentence
    found = float(re.search(r"correlation (-?[\d.]+)\)", sentence)[1])
    assert found == pytest.approx(expected, abs=0.08)  # other rows enter the two variances
    assert sentence.startswith("All 2 latent dimensions are unused")
    assert unused(seen(share=(0.01, 0.06), residual=residual), names) == ""
    assert unused(seen(share=(0.01, 0.02), residual=residual[:, :2]), names[:2]) == ""
    assert unused(seen(share=(0.01, 0.02), residual=residual[:12]), names) == ""  # by chance, for all that is known
    assert unused(seen(share=(0.01,), residual=residual[:, :1]), names[:1]) == ""


# Fits.


def fitted(model, table, **options):
    """Return the model, and the sentences that `fit` warned with."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", FitWarning)
        model.fit(table, **{"members": 1, **options})
    assert all(one.filename == __file__ for one in caught)  # they point at the call of fit
    return model, [str(one.message) for one in caught if one.category is FitWarning]


@pytest.mark.parametrize("load", [load_iris, load_wine])
def test_sound_fits_of_embedded_tables_are_not_doubted(load):
    table = load(as_frame=True).data
    model, sentences = fitted(VAE(Schema(list(table), {})), table)
    assert sentences == []
    assert model.findings.concerns == {}
    assert 1 <= model.findings.used <= 8
    assert model.facts()["latent dimensions"] == f"8, {model.findings.used} of them used"


def test_a_sound_fit_of_the_simulated_trial_is_not_doubted():
    table, schema = simulated_trial(120, 0)
    assert fitted(GPPriorVAE(schema), table, max_epochs=4)[1] == []


def test_one_measurement_needs_no_latent_dimension():
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"dose": rng.normal(size=200)}).assign(alt=lambda t: t.dose + rng.normal(size=200))
    assert fitted(CVAE(Schema(["alt"], {"dose": "continuous"})), table)[1] == []


def correlated(rows=150):
    rng = np.random.default_rng(0)
    dose, common = rng.normal(size=(2, rows))
    noise = 0.3 * rng.normal(size=(2, rows))
    return pd.DataFrame({"dose": dose, "alt": dose + common + noise[0], "ast": common - dose + noise[1]})


def test_z_that_is_held_down_is_doubted():
    schema = Schema(["alt", "ast"], {"dose": "continuous"})
    assert fitted(CVAE(schema, latent_dim=2), correlated())[1] == []
    held_down = {"latent_weight": 1e3, "latent_epochs": 10_000, "start": "random"}
    model, sentences = fitted(CVAE(schema, latent_dim=2), correlated(), **held_down)
    assert len(sentences) == 1
    assert "'alt' and 'ast' go together beyond what covariates explain (correlation 0.9" in sentences[0]
    assert model.findings.used == 0


def test_a_copy_of_a_column_is_doubted():
    table = correlated()[["alt"]].assign(ast=lambda t: 2 * t.alt + 1)
    options = {"max_epochs": 300}
    model, sentences = fitted(VAE(Schema(["alt", "ast"], {}), latent_dim=1, noise_floor=5e-3), table, **options)
    assert sentences == list(model.findings.concerns.values())
    assert list(model.findings.concerns) == ["noise at its floor"]
    assert "'alt', 'ast'" in sentences[0]


def lasting(patients=40, noise=0.01):
    rng = np.random.default_rng(0)
    patient = np.repeat(np.arange(patients), 4)
    table = pd.DataFrame({"id": patient, "day": np.tile(np.arange(4.0), patients)})
    return table.assign(alt=rng.normal(size=patients)[patient] + noise * rng.normal(size=len(patient)))


def test_measurements_that_only_differ_between_patients_are_doubted():
    schema = Schema(["alt"], {"day": "continuous"}, instance="id", time="day")
    quick = {"latent_dim": 1, "inducing": 5}
    assert fitted(GPPriorVAE(schema, **quick), lasting(noise=0.5), max_epochs=40)[1] == []
    model, sentences = fitted(GPPriorVAE(schema, **quick), lasting(), max_epochs=75)
    assert "variance of 'alt'" in model.findings.concerns["patient share"]
    assert model.findings.concerns["patient share"] in sentences


def small(rows, gaps=0):
    table = correlated(rows).assign(arm=np.array(["a", "b", "c"])[np.arange(rows) % 3])
    table.loc[: gaps - 1, "ast"] = np.nan
    return table


@pytest.mark.parametrize(("rows", "gaps", "columns"), [(28, 0, None), (27, 0, "'alt', 'ast'"), (30, 3, "'ast'")])
def test_fewer_than_seven_rows_per_coefficient_are_few(rows, gaps, columns):
    # An intercept, a number, and two further levels: four coefficients.
    schema = Schema(["alt", "ast"], {"dose": "continuous", "arm": "categorical"})
    sentences = fitted(CVAE(schema, latent_dim=1), small(rows, gaps), max_epochs=2)[1]
    assert [s.split(":")[0] for s in sentences] == ["The table is small"] * (columns is not None)
    assert columns is None or f"{columns} has or have values in as few as 27 rows, for 4 coefficients" in sentences[0]


def test_patients_are_counted_for_what_does_not_change():
    schema = Schema(["alt"], {"day": "continuous", "age": "continuous"}, instance="id", time="day", static=["age"])
    table = lasting(20, 0.5).assign(age=lambda t: t.id * 1.0)
    assert fitted(GPPriorVAE(schema, latent_dim=1, inducing=5), table, max_epochs=1)[1] == []
    few = fitted(GPPriorVAE(schema, latent_dim=1, inducing=5), table[table.id < 13], max_epochs=1)[1]
    assert "as few as 13 patients, for 2 coefficients" in few[0]  # 52 rows would do


def test_a_gaussian_process_of_rows_needs_more_of_them():
    schema = Schema(["alt"], {"dose": "continuous"})
    few, enough = (
        fitted(GPPriorVAE(schema, latent_dim=1, inducing=5), correlated(n), max_epochs=1)[1] for n in (99, 100)
    )
    assert enough == []
    assert "as few as 99 rows, for 2 coefficients" in few[0]


def test_what_is_doubtful_is_described_and_saved(tmp_path):
    schema = Schema(["alt", "ast"], {"dose": "continuous", "arm": "categorical"})
    model, (sentence,) = fitted(CVAE(schema, latent_dim=1), small(20), max_epochs=2)
    model.save(tmp_path / "m.lacova")
    for one in (model, lacova.load(tmp_path / "m.lacova")):
        assert one.findings == model.findings
        assert one.facts()["warning, small table"] == sentence
        assert sentence in one.describe()


def test_categories_alone_have_a_number_of_used_dimensions():
    table = pd.DataFrame({"event": np.arange(60) % 2 == 0, "grade": np.arange(60) % 3})
    schema = Schema({"event": "bernoulli", "grade": "categorical"}, {})
    model, sentences = fitted(VAE(schema, latent_dim=2), table, max_epochs=2)
    assert sentences == []
    assert model.findings.used in (0, 1, 2)


def test_a_covariate_that_never_changes_but_is_not_declared_so():
    """As a trial whose arm was not declared: patients' own differences take its effect up."""
    rng, patient = np.random.default_rng(0), np.repeat(np.arange(12), 3)
    table = pd.DataFrame({"id": patient, "day": np.tile(np.arange(3.0), 12), "dose": rng.normal(size=36)})
    table["arm"], table["site"] = np.where(patient % 2 == 0, "a", "b"), "x"
    table.loc[[0, 1, 2, 3, 7], "arm"] = None  # gaps are no changes
    table["y"] = rng.normal(size=36)
    covariates = {"arm": "categorical", "site": "categorical", "dose": "continuous", "day": "continuous"}

    def concerns(rows, static):
        model = GPPriorVAE(Schema(["y"], covariates, instance="id", time="day", static=static), latent_dim=1)
        return model.fit(rows, max_epochs=1, device="cpu").findings.concerns

    assert concerns(table, [])["undeclared"].startswith("'arm' never changed within a patient, but is not declared")
    assert "undeclared" not in concerns(table, ["arm"])
    assert "undeclared" not in concerns(table.iloc[:27], [])  # eight patients may not have changed by chance
    changed = table.assign(arm=table.arm.where(table.index != 35, "a"))
    assert "undeclared" not in concerns(changed, [])
