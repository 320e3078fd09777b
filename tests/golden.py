"""What a change of shape must not change: answers of every public model on tiny tables with gaps, to the last bit.

    python -m tests.golden write before.json
    python -m tests.golden check before.json

Both on one machine, whose processor decides the last bits. A line is a SHA-256 of one answer; `check` names the lines
that differ. `--bytes` compares the bytes of saved models too, which change with the format.
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
from lacova.sklearn import LacovaImputer


def rows(seed: int = 0, n: int = 60) -> pd.DataFrame:
    """Cross-sectional, of mixed kinds, with gaps everywhere."""
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
    """Longitudinal, ragged, with static columns and one patient's visit without any measurement."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(2, 6, patients)
    patient = np.repeat(np.arange(patients), counts)
    n = len(patient)
    own = rng.normal(size=patients)[patient]
    day = np.concatenate([np.sort(rng.uniform(0, 10, k)) for k in counts])
    table = pd.DataFrame({
        "id": [f"p{p}" for p in patient], "day": day, "sex": rng.choice(["f", "m"], patients)[patient],
        "entry": rng.normal(60, 8, patients)[patient], "drug": rng.choice(["no", "yes"], n),
        "dose": rng.normal(3, 1, n), "bili": own + np.sin(day) + rng.normal(0, 0.2, n),
        "alb": own - 0.1 * day + rng.normal(0, 0.2, n), "event": (own > 0).astype(float),
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
NUMBERS = lacova.Schema(["hb", "alt"], {"age": "continuous"})
VISITS = lacova.Schema(
    ["bili", "alb"], {"sex": "categorical", "entry": "continuous", "drug": "categorical", "dose": "continuous"},
    instance="id", time="day", static=["sex", "entry"],
)  # fmt: skip
EVENTS = lacova.Schema(
    {"bili": "gaussian", "alb": "lognormal", "event": "bernoulli"}, {"sex": "categorical", "dose": "continuous"},
    instance="id", time="day", static=["sex"],
)  # fmt: skip
TIMES = lacova.Schema(["bili", "alb"], {"dose": "continuous"}, instance="id", time="day")
DENSE = lacova.Dense((8,), (8,), linear=True)


def cases():
    """By name: a model, its training and its validation rows, and options of `fit`."""
    small = {"latent_dim": 2, "networks": DENSE}
    few = {"max_epochs": 3, "batch_size": 20}
    gp = {**small, "inducing": 5}
    table, held = rows(), rows(1, 25)
    events = visits().assign(alb=lambda t: np.exp(t["alb"]))
    for kind in ("joint", "factorised", "paper", "mean", "knn", "iterative", "zero"):
        yield f"cvae {kind}", lacova.CVAE(PLAIN, covariates=kind, **small), table, None, few
    yield "cvae conditional", lacova.CVAE(PLAIN, latent_prior="conditional", **small), table, held, few
    yield "cvae mixed", lacova.CVAE(MIXED, scaling="normal", **small), table, held, few
    yield "cvae weighted", lacova.CVAE(MIXED, **small), table, None, few | {"importance": 4}
    yield "cvae options", lacova.CVAE(PLAIN, **small), table, held, few | {
        "samples": 2, "prior_every": 1, "encoder_dropout": 0.5, "cap": 2, "patience": 1, "scaling": None}  # fmt: skip
    stated = {"age": (50, 10), "sex": {"f": 0.5, "m": 0.5}}
    knowing = lacova.CVAE(PLAIN, covariates="factorised", covariate_prior=stated, **small)
    yield "cvae stated", knowing, table, None, few
    yield "cvae visits", lacova.CVAE(VISITS, **small), visits(), None, few | {"batch_size": 5}
    yield "gp rows", lacova.GPPriorVAE(PLAIN, **gp), table, held, few
    yield "gp exact", lacova.GPPriorVAE(PLAIN, expectation="exact", **gp), table, None, few
    formula = "matern(age) + gp(age):cat(sex) + lin(age)"
    yield "gp formula", lacova.GPPriorVAE(NUMBERS_AND_SEX, prior=formula, **gp), table, None, few
    by = few | {"batch_size": 5}
    yield "gp visits", lacova.GPPriorVAE(VISITS, **gp), visits(), visits(1, 5), by
    yield "gp level", lacova.GPPriorVAE(VISITS, patient_effects="intercept", **gp), visits(), None, by
    yield "gp slopes", lacova.GPPriorVAE(VISITS, fixed_effects=False, **gp), visits(), None, by
    yield "gp plain", lacova.GPPriorVAE(VISITS, patient_effects=False, expectation="exact", **gp), visits(), None, by
    yield "gp events", lacova.GPPriorVAE(EVENTS, **gp), events, None, by
    yield "gp weighted", lacova.GPPriorVAE(VISITS, **gp), visits(), None, by | {"importance": 3}
    yield "lvae", lacova.LVAE(VISITS, **gp), visits(), None, by
    yield "gppvae", lacova.GPPVAE(VISITS, **gp), visits(), None, by
    yield "gpvae", lacova.GPVAE(TIMES, length_scale=2, **small), visits(), None, by
    yield "gpvae se", lacova.GPVAE(TIMES, kernel="se", learn_length_scale=True, posterior="diagonal", **small), \
        visits(), None, by  # fmt: skip
    yield "hivae", lacova.HIVAE(MIXED, components=3, column_width=2, **small), table, None, few
    yield "vae", lacova.VAE(PLAIN, **small), table, held, few
    yield "miwae", lacova.MIWAE(MIXED, **small), table, None, few | {"importance": 3}
    yield "notmiwae", lacova.NotMIWAE(PLAIN, **small), table, None, few | {"importance": 3}


NUMBERS_AND_SEX = lacova.Schema(["hb", "alt"], {"age": "continuous", "sex": "categorical"})


def digest(value: object) -> str:
    """Of everything that an answer says: values to the last bit, names, types and order."""
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
    return table.set_axis(range(table.shape[1]), axis=1)


def answers(model: lacova.CVAE, data: pd.DataFrame, folder: Path):
    """What a fitted model answers, by name."""
    model.save(folder / "model.lacova")
    again = lacova.load(folder / "model.lacova")
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
    yield "loaded", again.predict(data, interval=0.8, draws=10, probabilities=True)
    yield "loaded impute", again.impute(data, draws=2)
    covariates = model.schema.covariates
    if covariates:
        try:
            yield "prior_covariates", model.prior_covariates(data, draws=2)
        except ValueError as error:
            yield "prior_covariates", str(error)
        name = next(iter(covariates))
        value = data[name].dropna().iloc[0]
        outcome = model.what_if(data, {name: value}, draws=10, keep_draws=True)
        yield from (("what_if " + part, getattr(outcome, part)) for part in ("rows", "average", "draws"))
    if isinstance(model, lacova.GPPriorVAE):
        effects = model.effects(data, draws=6)
        parts = {part: getattr(effects, part).drop(columns="component") for part in ("rows", "shares", "known")}
        yield from (("effects " + part, table) for part, table in parts.items())
    if model.schema.instance is not None:
        later = data.groupby("id").cumcount() > 0
        yield "forecast", model.predict(data[later], data[~later], interval=0.9, draws=8, probabilities=True)
        yield "forecast draws", model.sample(data[later], data[~later], draws=3)
        timed = data.dropna(subset=["day"])
        yield "filter", model.filter(timed, draws=8)
        other = visits(9, 4)
        if "event" in model.schema.measurements:
            other = other.assign(alb=np.exp(other["alb"]))
        yield "new patients", model.impute(other, draws=2)
        if covariates:
            outcome = model.what_if(data[later], {"dose": 1.0}, data[~later], draws=5)
            yield "what_if later", outcome.rows


def streamed(folder: Path):
    """Training from and answers to Parquet."""
    by = {"max_epochs": 2, "batch_size": 5, "buffer_rows": 20}
    visits().to_parquet(folder / "visits.parquet", row_group_size=10)
    model = lacova.GPPriorVAE(VISITS, latent_dim=2, networks=DENSE, inducing=5)
    model.fit(folder / "visits.parquet", **by)
    yield "training", unnamed(model.training)
    model.impute(folder / "visits.parquet", out=folder / "out.parquet", interval=0.9)
    yield "impute", pd.read_parquet(folder / "out.parquet")
    model.predict(folder / "visits.parquet", out=folder / "out.parquet", draws=5)
    yield "predict", pd.read_parquet(folder / "out.parquet")


def imputer():
    """Through scikit-learn's door."""
    numbers = rows().select_dtypes("number")
    filled = LacovaImputer(max_epochs=2, random_state=0).fit_transform(numbers)
    yield "transform", pd.DataFrame(filled)


def everything() -> dict[str, str]:
    torch.set_num_threads(1)
    lines: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case, model, train, validation, options in cases():
            options = {k: v for k, v in options.items() if v is not None}
            model.fit(train, validation, seed=3, device="cpu", **options)
            for answer, value in answers(model, train, Path(name)):
                lines[f"{case}: {answer}"] = digest(value)
        lines |= {f"stream: {answer}": digest(value) for answer, value in streamed(Path(name))}
        lines |= {f"imputer: {answer}": digest(value) for answer, value in imputer()}
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=["write", "check"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--bytes", action="store_true")
    arguments = parser.parse_args()
    now = everything()
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
