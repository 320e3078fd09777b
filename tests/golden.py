"""Golden answers: those of every public model to tiny tables with gaps, which a refactoring must keep to the last bit.

    python -m tests.golden write before.json
    python -m tests.golden check before.json

Run both on the same machine, because the last bits depend on the processor. The file has the SHA-256 of each answer by
name; `check` lists the answers that differ. `--bytes` also compares the bytes of saved models, which change with the
format.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import torch

import lacova
from lacova.models.base import Model
from lacova.sklearn import LacovaImputer


def rows(seed: int = 0, n: int = 60) -> pd.DataFrame:
    """Return independent rows with measurements of every kind and gaps in every column."""
    rng = np.random.default_rng(seed)
    age, sex = rng.normal(50, 10, n), rng.choice(["f", "m"], n)
    z = rng.normal(size=n)
    table = pd.DataFrame({
        "age": age, "sex": sex, "stage": rng.choice(["a", "b", "c"], n),
        "hb": 12 + 0.05 * age + z + rng.normal(0, 0.3, n), "crp": np.exp(z + 0.2 * (sex == "m")),
        "alt": 30 + 5 * z + rng.standard_t(4, n), "falls": rng.poisson(np.exp(0.3 * z + 0.5)),
        "visits": rng.negative_binomial(2, 0.4, n), "ill": (z > 0).astype(float), "kind": rng.choice(list("xyz"), n),
        "grade": rng.integers(0, 4, n).astype(float), "low": np.maximum(z, -0.5),
    })  # fmt: skip
    gaps = table.astype(object).mask(rng.random(table.shape) < 0.2)
    numbers = [name for name in table if name not in ("sex", "stage", "kind")]
    gaps[numbers] = gaps[numbers].astype(float)
    gaps.loc[0, ["hb", "crp", "alt", "falls", "visits", "ill", "kind", "grade", "low"]] = np.nan
    return gaps


def visits(seed: int = 0, patients: int = 14) -> pd.DataFrame:
    """Return 2 to 5 visits of each patient, with static columns, gaps, and one visit without any measurement."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(2, 6, patients)
    patient = np.repeat(np.arange(patients), counts)
    n = len(patient)
    z = rng.normal(size=patients)[patient]
    day = np.concatenate([np.sort(rng.uniform(0, 10, k)) for k in counts])
    table = pd.DataFrame({
        "id": [f"p{p}" for p in patient], "day": day, "sex": rng.choice(["f", "m"], patients)[patient],
        "entry": rng.normal(60, 8, patients)[patient], "drug": rng.choice(["no", "yes"], n),
        "dose": rng.normal(3, 1, n), "bili": z + np.sin(day) + rng.normal(0, 0.2, n),
        "alb": z - 0.1 * day + rng.normal(0, 0.2, n), "event": (z > 0).astype(float),
    })  # fmt: skip
    for name, share in {"drug": 0.2, "dose": 0.2, "bili": 0.2, "alb": 0.2, "event": 0.2, "day": 0.05}.items():
        table[name] = table[name].mask(rng.random(n) < share)
    for name in ("sex", "entry"):
        table[name] = table[name].mask((rng.random(patients) < 0.25)[patient])
    table.loc[3, ["bili", "alb", "event"]] = np.nan
    return table


KINDS = {
    "hb": "gaussian", "crp": "lognormal", "alt": "student", "falls": "poisson", "visits": "negative_binomial",
    "ill": "bernoulli", "kind": "categorical", "grade": "ordinal", "low": "censored",
}  # fmt: skip
COVARIATES = {"age": "continuous", "sex": "categorical", "stage": "categorical"}
MIXED = lacova.Schema(KINDS, COVARIATES, limits={"low": (-0.5, None)}, bounds={"hb": (0, None)})
PLAIN = lacova.Schema(["hb", "alt"], COVARIATES)
AGE_AND_SEX = lacova.Schema(["hb", "alt"], {"age": "continuous", "sex": "categorical"})
VISITS = lacova.Schema(
    ["bili", "alb"], {"sex": "categorical", "entry": "continuous", "drug": "categorical", "dose": "continuous"},
    instance="id", time="day", static=["sex", "entry"],
)  # fmt: skip
EVENTS = lacova.Schema(
    {"bili": "gaussian", "alb": "lognormal", "event": "bernoulli"}, {"sex": "categorical", "dose": "continuous"},
    instance="id", time="day", static=["sex"],
)  # fmt: skip
TIMES = lacova.Schema(["bili", "alb"], {"dose": "continuous"}, instance="id", time="day")
SMALL = {"latent_dim": 2, "networks": lacova.Dense((8,), (8,), linear=True)}
SMALL_GP = {**SMALL, "inducing": 5}
BY_ROW = {"max_epochs": 3, "batch_size": 20}
BY_PATIENT = {"max_epochs": 3, "batch_size": 5}


def cases():
    """Yield for each case its name, a model, training and validation rows, and options of `fit`."""
    yield from row_cases()
    yield from visit_cases()
    yield from unconditional_cases()


def row_cases():
    """Yield models of independent rows with covariates."""
    table, held_out = rows(), rows(1, 25)
    for kind in ("joint", "factorised", "paper", "mean", "knn", "iterative", "zero"):
        yield f"cvae {kind}", lacova.CVAE(PLAIN, covariates=kind, **SMALL), table, None, BY_ROW
    yield "cvae conditional", lacova.CVAE(PLAIN, latent_prior="conditional", **SMALL), table, held_out, BY_ROW
    yield "cvae mixed", lacova.CVAE(MIXED, scaling="normal", **SMALL), table, held_out, BY_ROW
    yield "cvae weighted", lacova.CVAE(MIXED, **SMALL), table, None, BY_ROW | {"importance": 4}
    unusual = {"samples": 2, "prior_every": 1, "encoder_dropout": 0.5, "cap": 2, "patience": 1}
    yield "cvae options", lacova.CVAE(PLAIN, **SMALL), table, held_out, BY_ROW | unusual
    stated = {"age": (50, 10), "sex": {"f": 0.5, "m": 0.5}}
    model = lacova.CVAE(PLAIN, covariates="factorised", covariate_prior=stated, **SMALL)
    yield "cvae stated", model, table, None, BY_ROW
    yield "gp rows", lacova.GPPriorVAE(PLAIN, **SMALL_GP), table, held_out, BY_ROW
    yield "gp exact", lacova.GPPriorVAE(PLAIN, expectation="exact", **SMALL_GP), table, None, BY_ROW
    formula = "matern(age) + gp(age):cat(sex) + lin(age)"
    yield "gp formula", lacova.GPPriorVAE(AGE_AND_SEX, prior=formula, **SMALL_GP), table, None, BY_ROW


def visit_cases():
    """Yield models of patients' visits."""
    table, weighted = visits(), BY_PATIENT | {"importance": 3}
    yield "cvae visits", lacova.CVAE(VISITS, **SMALL), table, None, BY_PATIENT
    yield "gp visits", lacova.GPPriorVAE(VISITS, **SMALL_GP), table, visits(1, 5), BY_PATIENT
    yield "gp level", lacova.GPPriorVAE(VISITS, patient_effects="intercept", **SMALL_GP), table, None, BY_PATIENT
    yield "gp slopes", lacova.GPPriorVAE(VISITS, fixed_effects=False, **SMALL_GP), table, None, BY_PATIENT
    model = lacova.GPPriorVAE(VISITS, patient_effects=False, expectation="exact", **SMALL_GP)
    yield "gp plain", model, table, None, BY_PATIENT
    events = table.assign(alb=np.exp(table["alb"]))
    yield "gp events", lacova.GPPriorVAE(EVENTS, **SMALL_GP), events, None, BY_PATIENT
    yield "gp weighted", lacova.GPPriorVAE(VISITS, **SMALL_GP), table, None, weighted
    yield "lvae", lacova.LVAE(VISITS, **SMALL_GP), table, None, BY_PATIENT
    yield "gppvae", lacova.GPPVAE(VISITS, **SMALL_GP), table, None, BY_PATIENT
    yield "gpvae", lacova.GPVAE(TIMES, length_scale=2, **SMALL), table, None, BY_PATIENT
    model = lacova.GPVAE(TIMES, kernel="se", learn_length_scale=True, posterior="diagonal", **SMALL)
    yield "gpvae se", model, table, None, BY_PATIENT


def unconditional_cases():
    """Yield models of the measurements alone."""
    table, held_out, weighted = rows(), rows(1, 25), BY_ROW | {"importance": 3}
    yield "hivae", lacova.HIVAE(MIXED, components=3, column_width=2, **SMALL), table, None, BY_ROW
    yield "vae", lacova.VAE(PLAIN, **SMALL), table, held_out, BY_ROW
    yield "miwae", lacova.MIWAE(MIXED, **SMALL), table, None, weighted
    yield "notmiwae", lacova.NotMIWAE(PLAIN, **SMALL), table, None, weighted


def digest(value: object) -> str:
    """Return the SHA-256 of an answer: its values to the last bit, names, types and order."""
    if isinstance(value, pd.DataFrame | pd.Series):
        frame = pd.DataFrame(value)
        parts = [repr([(str(c), str(t)) for c, t in frame.dtypes.items()]), repr(frame.index.tolist())]
        parts += [repr([x.hex() if isinstance(x, float) else x for x in frame[c].tolist()]) for c in frame]
        text = "\n".join(parts)
    elif isinstance(value, dict):
        text = repr({k: float(v).hex() for k, v in value.items()})
    elif isinstance(value, bytes):
        return hashlib.sha256(value).hexdigest()
    else:
        text = repr(value)
    return hashlib.sha256(text.encode()).hexdigest()


def unnamed(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table with numbers in the place of column names, which may change."""
    return table.set_axis(range(table.shape[1]), axis=1)


def answers(model: Model, data: pd.DataFrame, folder: Path):
    """Yield the answers of a fitted model, with their names."""
    model.save(folder / "model.lacova")
    loaded = lacova.load(folder / "model.lacova")
    yield "bytes", (folder / "model.lacova").read_bytes()
    yield "training", unnamed(model.training)
    yield "facts", len(model.facts())
    yield "impute", model.impute(data)
    yield "impute interval", model.impute(data, interval=0.9, probabilities=True)
    yield "impute draws", model.impute(data, draws=3, seed=5)
    yield "impute alone", model.impute(data.head(8), independent_noise=True)
    yield "predict", model.predict(data, interval=0.8, draws=10, probabilities=True)
    yield "predict alone", model.predict(data.head(8), draws=4, independent_noise=True)
    yield "sample", model.sample(data, draws=2, seed=1)
    yield "score", model.score(data, draws=10)
    yield "score columns", model.score(data, draws=10, columns=True)
    yield "elbo", model.elbo(data)
    yield "log_likelihood", model.log_likelihood(data, draws=10)
    yield "embed", model.embed(data)
    yield "loaded", loaded.predict(data, interval=0.8, draws=10, probabilities=True)
    yield "loaded impute", loaded.impute(data, draws=2)
    if model.schema.covariates:
        yield from answers_about_covariates(model, data)
    if isinstance(model, lacova.GPPriorVAE):
        effects = model.effects(data, draws=6)
        parts = {part: getattr(effects, part).drop(columns="component") for part in ("rows", "shares", "known")}
        yield from (("effects " + part, table) for part, table in parts.items())
    if model.schema.instance is not None:
        yield from answers_about_patients(model, data)


def answers_about_covariates(model: Model, data: pd.DataFrame):
    """Yield answers that need covariates."""
    try:
        yield "prior_covariates", model.prior_covariates(data, draws=2)
    except ValueError as error:
        yield "prior_covariates", str(error)
    name = next(iter(model.schema.covariates))
    outcome = model.what_if(data, {name: data[name].dropna().iloc[0]}, draws=10, keep_draws=True)
    yield from (("what_if " + part, getattr(outcome, part)) for part in ("rows", "average", "draws"))


def answers_about_patients(model: Model, data: pd.DataFrame):
    """Yield answers from the earlier visits of patients, and about new patients."""
    later = data.groupby("id").cumcount() > 0
    yield "forecast", model.predict(data[later], data[~later], interval=0.9, draws=8, probabilities=True)
    yield "forecast draws", model.sample(data[later], data[~later], draws=3)
    yield "filter", model.filter(data.dropna(subset=["day"]), draws=8)
    other = visits(9, 4)
    if "event" in model.schema.measurements:
        other = other.assign(alb=np.exp(other["alb"]))
    yield "new patients", model.impute(other, draws=2)
    if model.schema.covariates:
        outcome = model.what_if(data[later], {"dose": 1.0}, data[~later], draws=5)
        yield "what_if later", outcome.rows


def streamed(folder: Path):
    """Yield the training record of a fit to Parquet, and answers to Parquet."""
    visits().to_parquet(folder / "visits.parquet", row_group_size=10)
    model = lacova.GPPriorVAE(VISITS, **SMALL_GP)
    model.fit(folder / "visits.parquet", max_epochs=2, batch_size=5, buffer_rows=20)
    yield "training", unnamed(model.training)
    model.impute(folder / "visits.parquet", out=folder / "out.parquet", interval=0.9)
    yield "impute", pd.read_parquet(folder / "out.parquet")
    model.predict(folder / "visits.parquet", out=folder / "out.parquet", draws=5)
    yield "predict", pd.read_parquet(folder / "out.parquet")


def imputer():
    """Yield a table that the transformer for scikit-learn has filled."""
    numbers = rows().select_dtypes("number")
    filled = LacovaImputer(max_epochs=2, random_state=0).fit_transform(numbers)
    yield "transform", pd.DataFrame(filled)


def all_digests() -> dict[str, str]:
    """Return the digest of every answer of every case by name."""
    torch.set_num_threads(1)
    digests: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case, model, train, validation, options in cases():
            model.fit(train, validation, seed=3, device="cpu", **options)
            for answer, value in answers(model, train, Path(name)):
                digests[f"{case}: {answer}"] = digest(value)
        digests |= {f"stream: {answer}": digest(value) for answer, value in streamed(Path(name))}
        digests |= {f"imputer: {answer}": digest(value) for answer, value in imputer()}
    return digests


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=["write", "check"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--bytes", action="store_true")
    arguments = parser.parse_args()
    now = all_digests()
    if arguments.action == "write":
        arguments.file.write_text(json.dumps(now, indent=1))
        print(f"{len(now)} answers written")
        return 0
    before = json.loads(arguments.file.read_text())
    names = [name for name in {**before, **now} if arguments.bytes or not name.endswith(": bytes")]
    different = [name for name in names if before.get(name) != now.get(name)]
    print(f"{len(names) - len(different)} of {len(names)} answers are the same to the last bit")
    for name in different:
        print("differs:", name)
    return bool(different)


if __name__ == "__main__":
    raise SystemExit(main())
