"""One contract for all models: each is fitted to a small table with gaps anywhere, and every method is called.

To add a model, add a line to CASES.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import lacova
from lacova import Schema

MIXED = {"alt": "gaussian", "crp": "lognormal", "event": "bernoulli", "grade": "categorical"}
NUMBERS = {"alt": "gaussian", "crp": "lognormal"}
COVARIATES = {"age": "continuous", "sex": "categorical", "dose": "continuous"}


def visits_of(measurements: dict[str, Any]) -> Schema:
    return Schema(measurements, COVARIATES, instance="id", time="day", static=["age", "sex"])


@dataclass(frozen=True)
class Case:
    """A model by what makes it, its schema, and the options of its fit."""

    make: Callable[[Schema], Any]
    schema: Schema
    options: dict[str, Any] = field(default_factory=dict)


CASES = {
    "VAE": Case(lambda s: lacova.VAE(s, latent_dim=2), visits_of(MIXED)),
    "MIWAE": Case(lambda s: lacova.MIWAE(s, latent_dim=2), Schema(MIXED, {}), {"importance": 4}),
    "NotMIWAE": Case(lambda s: lacova.NotMIWAE(s, latent_dim=2), Schema(NUMBERS, {}), {"importance": 4}),
    "NotMIWAE, noise by row": Case(
        lambda s: lacova.NotMIWAE(s, latent_dim=2, noise="row"), Schema(NUMBERS, {}), {"importance": 4}
    ),
    "CVAE": Case(lambda s: lacova.CVAE(s, latent_dim=2), visits_of(MIXED)),
    "CVAE, noise by row": Case(lambda s: lacova.CVAE(s, latent_dim=2, noise="row"), visits_of(MIXED)),
    "CVAE, weighted": Case(lambda s: lacova.CVAE(s, latent_dim=2), visits_of(MIXED), {"importance": 3}),
    "CVAE, rows weighted": Case(
        lambda s: lacova.CVAE(s, latent_dim=2, latent_prior="conditional"), Schema(NUMBERS, COVARIATES),
        {"importance": 3},
    ),
    "GPPriorVAE": Case(lambda s: lacova.GPPriorVAE(s, latent_dim=2, inducing=4), visits_of(MIXED)),
    "GPPriorVAE, noise by row": Case(
        lambda s: lacova.GPPriorVAE(s, latent_dim=2, inducing=4, patient_effects=False, noise="row"), visits_of(MIXED)
    ),
    "GPPriorVAE, weighted": Case(
        lambda s: lacova.GPPriorVAE(s, latent_dim=2, inducing=4), visits_of(MIXED), {"importance": 3}
    ),
    "GPPriorVAE, rows weighted": Case(
        lambda s: lacova.GPPriorVAE(s, latent_dim=2, inducing=4), Schema(NUMBERS, COVARIATES), {"importance": 3}
    ),
    "LVAE": Case(lambda s: lacova.LVAE(s, latent_dim=2, inducing=4), visits_of(MIXED)),
    "GPPVAE": Case(lambda s: lacova.GPPVAE(s, latent_dim=2, inducing=4), visits_of(MIXED)),
    "GPPVAE, objects": Case(lambda s: lacova.GPPVAE(s, latent_dim=2, inducing=4, objects=["age"]), visits_of(NUMBERS)),
    "GPVAE": Case(lambda s: lacova.GPVAE(s, latent_dim=2), visits_of(MIXED)),
    "GPVAE, noise by row": Case(lambda s: lacova.GPVAE(s, latent_dim=2, noise="row"), visits_of(NUMBERS)),
    "GPVAE, weighted": Case(
        lambda s: lacova.GPVAE(s, latent_dim=2, kernel="se"), visits_of(NUMBERS), {"importance": 3}
    ),
    "HIVAE": Case(lambda s: lacova.HIVAE(s, latent_dim=2, components=2), visits_of(MIXED)),
    "HIVAE, noise by row": Case(lambda s: lacova.HIVAE(s, latent_dim=2, noise="row"), visits_of(MIXED)),
    "HIVAE, weighted": Case(lambda s: lacova.HIVAE(s, latent_dim=2), Schema(MIXED, {}), {"importance": 3}),
}  # fmt: skip


CONDITIONAL = {
    "CVAE": (lacova.CVAE, {}),
    "GPPriorVAE": (lacova.GPPriorVAE, {"inducing": 4}),
    "LVAE": (lacova.LVAE, {"inducing": 4}),
    "GPPVAE": (lacova.GPPVAE, {"inducing": 4}),
    "GPVAE": (lacova.GPVAE, {}),
}
INTEGRATED = ("joint", "factorised", "paper")  # integrate over gaps in X; the others fill them once, or allow none
TREATMENTS = (*INTEGRATED, "mean", "knn", "zero", "iterative", "oracle")


def visits() -> pd.DataFrame:
    """Return three visits of each of 12 patients, with gaps in every column but the instance."""
    rng = np.random.default_rng(0)
    patient = np.repeat(np.arange(12), 3)
    table = pd.DataFrame({
        "id": patient, "day": rng.uniform(0, 100, 36), "age": rng.normal(60, 8, 12)[patient],
        "sex": rng.choice(["f", "m"], 12)[patient], "dose": rng.normal(size=36), "alt": rng.normal(30, 5, 36),
        "crp": rng.lognormal(size=36), "event": rng.random(36) < 0.4, "grade": rng.choice(["a", "b", "c"], 36),
    })  # fmt: skip
    table["event"] = table["event"].astype(object)
    for name in table.columns[1:]:
        table.loc[rng.random(36) < 0.25, name] = None
    for name in ("age", "sex"):
        table.loc[table["id"] == 5, name] = None  # never observed
    table.loc[[7, 16], ["alt", "crp", "event", "grade"]] = None  # visits without measurements, one of patient 5
    return table


@pytest.fixture(scope="module", params=CASES)
def case(request):
    return CASES[request.param]


def fit(case, data=None, seed=0, **checkpoint):
    options = {"max_epochs": 2, "batch_size": 5, "device": "cpu", **case.options, **checkpoint}
    return case.make(case.schema).fit(visits() if data is None else data, seed=seed, **options)


@pytest.fixture(scope="module")
def model(case):
    return fit(case)


@pytest.fixture(scope="module")
def kept(case, tmp_path_factory):
    """The same model once more, and the checkpoint that its training left."""
    path = tmp_path_factory.mktemp("kept") / "checkpoint"
    return fit(case, checkpoint=path, checkpoint_keep=True), path


def answers(model):
    """Return the answers of a model, as tables."""
    data = visits()
    return [
        model.impute(data, interval=0.9, probabilities=True), model.impute(data, draws=3),
        model.predict(data, interval=0.9, draws=20), model.sample(data, draws=2), model.embed(data),
        model.log_likelihood(data, draws=5).to_frame(), model.score(data, columns=True, draws=20),
    ]  # fmt: skip


def test_imputed_tables_have_no_gaps_and_observed_entries_as_they_were(model, case):
    data, names = visits(), list(model.schema.columns)
    one, several = model.impute(data, interval=0.9), model.impute(data, draws=4)
    assert len(several) == 4 * len(data)
    for done in (one, *(part for _, part in several.groupby("draw"))):
        assert done[names].notna().all().all()
        seen = data[names].notna()
        pd.testing.assert_frame_equal(done[names].where(seen), data[names].where(seen), check_dtype=False)
        for name in model.schema.static:
            assert (done.groupby("id")[name].nunique() == 1).all()
    assert not several.loc[several["draw"] == 0, names].equals(several.loc[several["draw"] == 1, names])
    for name in ("alt", "crp"):
        assert (one[f"{name}_lower"] <= one[f"{name}_upper"]).all()
        gaps = data[name].isna()
        assert (one[f"{name}_lower"] < one[f"{name}_upper"])[gaps].all()
    left = [name for name in data if name not in names]
    pd.testing.assert_frame_equal(one[left], data[left])


def test_predictions_scores_and_terms_are_numbers(model):
    data = visits()
    predicted = model.predict(data.drop(columns=["alt", "crp"]), interval=0.9)
    assert predicted.notna().all().all()
    assert (predicted["alt_lower"] < predicted["alt"]).all()
    assert (predicted["alt"] < predicted["alt_upper"]).all()
    assert np.isfinite(list(model.score(data, draws=20).values())).all()
    assert np.isfinite(model.log_likelihood(data)).all()
    terms = model.elbo(data)
    parts = terms["reconstruction"] - terms["kl_latent"] - terms["kl_inducing"] - terms["kl_covariates"]
    assert abs(terms["elbo"] - parts) < 1e-6
    assert model.training.notna().all().all()


def test_probabilities_of_levels_sum_to_one(model, case):
    imputed = model.impute(visits(), probabilities=True)
    for name in set(case.schema.kinds) & {"event", "grade"} | set(model.schema.covariates) & {"sex"}:
        own = imputed[[c for c in imputed if c.startswith(f"{name}_p_")]].astype(float)
        assert own.shape[1] >= 2
        np.testing.assert_allclose(own.sum(axis=1), 1.0, atol=1e-4)


def test_a_seed_gives_the_same_model_and_another_a_different_one(model, kept, case):
    weights = model.vae.state_dict()
    again, other = kept[0].vae.state_dict(), fit(case, seed=1).vae.state_dict()
    assert all(torch.equal(value, again[name]) for name, value in weights.items())
    assert any(not torch.equal(value, other[name]) for name, value in weights.items())


def test_a_loaded_model_answers_the_same(model, tmp_path):
    model.save(tmp_path / "model.lacova")
    loaded = lacova.load(tmp_path / "model.lacova")
    assert type(loaded) is type(model)
    assert loaded.describe() == model.describe()
    for before, after in zip(answers(model), answers(loaded), strict=True):
        pd.testing.assert_frame_equal(before, after)


def test_parquet_gives_the_model_of_the_table_and_its_answers(model, case, tmp_path):
    path = tmp_path / "visits.parquet"
    visits().to_parquet(path, index=False)
    streamed = fit(case, path)
    for name, value in model.vae.state_dict().items():
        torch.testing.assert_close(streamed.vae.state_dict()[name], value, rtol=1e-4, atol=1e-4)
    for method in (model.impute, model.predict, model.sample, model.embed, model.log_likelihood):
        out = method(path, out=tmp_path / f"{method.__name__}.parquet")
        assert len(pd.read_parquet(out)) in (36, 20 * 36)
    names = list(model.schema.columns)
    pd.testing.assert_frame_equal(
        pd.read_parquet(tmp_path / "impute.parquet")[names], model.impute(visits())[names], check_dtype=False
    )
    assert model.score(path, draws=20) == model.score(visits(), draws=20)


def test_training_continues_from_a_checkpoint(model, kept, case):
    again = fit(case, checkpoint=kept[1], checkpoint_keep=True)
    for name, value in model.vae.state_dict().items():
        assert torch.equal(kept[0].vae.state_dict()[name], value)
        assert torch.equal(again.vae.state_dict()[name], value)


def test_what_is_unfitted_or_unknown_is_refused(model, case):
    with pytest.raises(lacova.NotFittedError, match="has not been fitted"):
        case.make(case.schema).impute(visits())
    with pytest.raises(lacova.DataError, match="alt"):
        model.impute(visits().drop(columns="alt"))
    with pytest.raises(ValueError, match="latent_dim"):
        type(model)(case.schema, latent_dim=0)
    assert model.describe().split("\n")[0].split() == ["model", type(model).__name__]


@pytest.mark.parametrize("treatment", TREATMENTS)
@pytest.mark.parametrize("name", CONDITIONAL)
def test_every_conditional_model_has_every_treatment_of_gaps_in_covariates(name, treatment, tmp_path):
    cls, settings = CONDITIONAL[name]
    schema, data = visits_of(NUMBERS), visits()
    model = cls(schema, latent_dim=1, covariates=treatment, **settings)
    options = {"max_epochs": 1, "batch_size": 12, "start": "random", "device": "cpu"}
    if treatment == "oracle":
        with pytest.raises(lacova.DataError, match="oracle"):
            model.fit(data, **options)
        names = list(schema.covariates)
        data[names] = lacova.CVAE(schema, latent_dim=1).fit(data, **options).impute(data)[names]
    model.fit(data, **options)
    drawn = [part.drop(columns="draw") for _, part in model.impute(data, draws=2).groupby("draw")]
    for part in (*drawn, model.impute(data)):
        assert part[list(schema.columns)].notna().all().all()
        for column in schema.static:
            assert (part.groupby("id")[column].nunique() == 1).all()
    assert drawn[0]["dose"].equals(drawn[1]["dose"]) == (treatment not in INTEGRATED)
    assert not drawn[0]["alt"].equals(drawn[1]["alt"])
    assert np.isfinite(model.log_likelihood(data)).all()
    model.save(tmp_path / "model")
    pd.testing.assert_frame_equal(lacova.load(tmp_path / "model").predict(data), model.predict(data))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_models_are_fitted_and_answer_on_a_gpu(case):
    model = fit(replace(case, options={**case.options, "device": "cuda"}))
    assert next(model.vae.parameters()).is_cuda
    for table in answers(model):
        covariates = visits().columns.difference(model.schema.measurements)  # which may keep their gaps
        answer = table[table.columns.difference(covariates)]
        assert not answer.empty
        assert answer.notna().all().all() or "entries" in table
