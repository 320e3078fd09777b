"""Saved models of every kind: what they are fitted to, and their answers in all digits."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from lacova import CVAE, Conv, Dense, GPPriorVAE, Schema, StorageError, load
from tests.data.io.test_archive import put

SMALL = {"latent_dim": 2, "networks": Dense((4,), (4,))}
KINDS = {"age": "continuous", "sex": "categorical", "grade": "categorical"}
VISITS = Schema(["alt", "ast"], KINDS, instance="id", time="day", static=["age", "sex"])
NO_TIME = Schema(["alt", "ast"], KINDS, instance="id", static=["sex"])
ROWS = Schema(["alt", "ast"], KINDS)
NUMBERS = Schema(["alt", "ast"], {"age": "continuous", "day": "continuous"}, time="day")
MIXED = Schema(
    {"alt": "lognormal", "ast": "student", "grade": "ordinal", "day": "censored"},
    {"age": "continuous", "sex": "categorical"}, instance="id", static=["age", "sex"], limits={"day": (0.5, None)},
)  # fmt: skip  # fmt: skip
PIXELS = Schema([f"p{k}" for k in range(144)], {"age": "continuous"})


def visits(patients=6, times=4, gaps=0.2):
    """Return visits: static age and sex, a grade (1, 2 or 3) that changes, gaps anywhere but in the instance."""
    rng = np.random.default_rng(0)
    patient = np.tile(np.arange(patients), times)
    frame = pd.DataFrame(
        {"day": np.repeat(np.arange(float(times)), patients), "age": rng.normal(50, 10, patients)[patient]}
    )
    frame["sex"] = np.array(["f", "m"], dtype=object)[patient % 2]
    frame["grade"] = pd.Series(rng.integers(1, 4, len(patient)).tolist(), dtype=object)
    frame["alt"] = 30 + 0.4 * (frame["age"] - 50) + 2 * frame["day"] + rng.normal(0, 1, len(patient))
    frame["ast"] = 20 - 3.0 * (frame["sex"] == "m") + rng.normal(0, 1, len(patient))
    frame = frame.mask(rng.random(frame.shape) < gaps)
    return frame.assign(id=np.array([f"p{k}" for k in range(patients)], dtype=object)[patient])


def images(rows=12):
    """Return images of 12×12 pixels."""
    rng = np.random.default_rng(0)
    return pd.DataFrame(rng.random((rows, 144)), columns=list(PIXELS.measurements)).assign(age=rng.normal(50, 10, rows))


STATED = {"age": (60, 5.5), "sex": {"f": 0.3, "m": 0.7}, "grade": {1: 0.2, 2: 0.3, 3: 0.5}}
CASES = {
    "cvae": lambda: CVAE(ROWS, **SMALL),
    "conditional": lambda: CVAE(VISITS, latent_prior="conditional", scaling="minmax", **SMALL),
    "no-time": lambda: CVAE(NO_TIME, scaling="none", noise_floor=0.01, **SMALL),
    "clinical": lambda: CVAE(ROWS, latent_dim=3),
    "conv": lambda: CVAE(PIXELS, latent_dim=2, networks=Conv((12, 12), (2, 3), (3, 2), (4,), (5,))),
    "gp": lambda: GPPriorVAE(VISITS, inducing=4, **SMALL),
    "gp-exact": lambda: GPPriorVAE(VISITS, prior="gp(day) + gp(age):cat(sex) + gp(day):cat(id)", inducing=3,
                                   expectation="exact", **SMALL),
    "gp-rows": lambda: GPPriorVAE(NUMBERS, prior="temporal", inducing=50, expectation="exact", **SMALL),
    "gp-own": lambda: GPPriorVAE(NO_TIME, prior="cat(id) + gp(age):cat(id)", **SMALL),
    "kinds": lambda: CVAE(MIXED, scaling="normal", **SMALL),
    "factorised": lambda: GPPriorVAE(VISITS, inducing=4, covariates="factorised", **SMALL),
    "paper": lambda: CVAE(VISITS, covariates="paper", covariate_prior=STATED, **SMALL),
    **{fill: lambda fill=fill: CVAE(VISITS, covariates=fill, **SMALL) for fill in ("mean", "knn", "iterative", "zero")},
    "oracle": lambda: GPPriorVAE(ROWS, inducing=4, covariates="oracle", **SMALL),
}  # fmt: skip  # fmt: skip


def table(name):
    """Return the table that a case is fitted to."""
    return images() if name == "conv" else visits(gaps=0.0 if name == "oracle" else 0.2)


def answers(model, name):
    """Return the answers of a model to its table, in all digits."""
    frame = table(name)
    tables = [model.predict(frame, draws=3, interval=0.9), model.impute(frame), model.sample(frame, draws=2)]
    if "alt" in frame:
        tables.append(model.impute(frame.assign(alt=np.nan), draws=2))
    if model.schema.instance:
        tables.append(model.predict(frame[18:], history=frame[:18], draws=3))
    density = model.log_likelihood(frame, draws=3).to_list()
    return repr([*(part.to_dict("list") for part in tables), density, model.score(frame, draws=3), model.elbo(frame)])


class Saved(NamedTuple):
    """A fitted model, its file, and its answers."""

    model: CVAE | GPPriorVAE
    path: Path
    answers: str


def attempt(path, data=None):
    """Load a file, or one with this content; return None if it is refused with a sentence."""
    if data is not None:
        put(path, data)
    try:
        return load(path)
    except StorageError as error:
        message = str(error)
        assert message.startswith(f"{path} ")
        assert message.endswith(".")
        assert message.isprintable()
        return None


def save_all(folder):
    """Return every case, fitted and saved."""
    saved = {}
    for name, make in CASES.items():
        more = {"prior_every": 1} if name == "no-time" else {}
        model = make().fit(table(name), max_epochs=2, batch_size=4, seed=3, **more)
        saved[name] = Saved(model, folder / f"{name}.lacova", answers(model, name))
        model.save(saved[name].path)
    return saved
