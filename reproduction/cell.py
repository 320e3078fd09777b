"""One fit, and its scores."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import lacova
from lacova.models.base import Model
from reproduction.config import Job
from reproduction.data import Sources, Study, fingerprint, study
from reproduction.limit import TruePrior, true_conditional
from reproduction.scores import covariate_scores, plugin_nll

# In the paper's model, y depends on x through z alone.
MODELS = {"cvae": lacova.CVAE, "gp": partial(lacova.GPPriorVAE, fixed_effects=False)}


def compute(job: Job, wanted: Sequence[str], sources: Sources, device: str) -> list[dict[str, Any]]:
    """Fit one model and score it as each of the `wanted` methods; return one line of the results file for each."""
    data = study(job.dataset, job.rows, job.missing, job.seed, sources)
    started = time.perf_counter()
    model = fit(job, data, device)
    seconds = time.perf_counter() - started
    about = {"epochs": len(model.training), "seconds": round(seconds, 1), "device": device}
    about |= {"version": lacova.__version__, "settings": job.digest(fingerprint(job.dataset, sources))}
    lines = []
    for method in (method for method in job.scored_as if method in wanted):
        if method == "limit":
            use_true_conditional(model, job)
        values = scores(model, data, method, job.draws)
        rounded = {name: None if value is None else round(value, 6) for name, value in values.items()}
        lines.append(job.base(method) | rounded | about)
    return lines


def fit(job: Job, data: Study, device: str) -> Model:
    """Fit the job's model to the data that its treatment of gaps may use."""
    is_oracle = job.covariates == "oracle"
    visible = {part: data.with_all_covariates(part) if is_oracle else data.masked[part] for part in data.masked}
    # Where a covariate does not exist for some (the onset of the healthy), the oracle takes its mean for them.
    exists = not any(data.complete[part][data.x].isna().any(axis=None) for part in data.complete)
    treatment = "mean" if is_oracle and not exists else job.covariates
    model = MODELS[job.model](data.schema, networks=job.preset, covariates=treatment, **job.settings)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="measurement column.* constant")  # the margins of clean images are
        model.fit(visible["train"], visible["validation"], seed=job.seed, device=device, progress=False, **job.fit)
    return model


def use_true_conditional(model: Model, job: Job) -> None:
    """Make a fitted model draw missing covariates from their true distribution, however it was trained."""
    encoder, vae = model.fitted()
    model.fill = None
    vae.covariate_prior = TruePrior(true_conditional(job.dataset), encoder, job.seed)


def scores(model: Model, data: Study, method: str, draws: int) -> dict[str, float | None]:
    """Score the prediction of Y from X, and the imputation of X from the observed part of both."""
    visible = data.with_all_covariates("test") if method == "oracle" else data.masked["test"]
    test = data.with_all_measurements(visible)
    predictive = model.score(test, draws=draws)
    values: dict[str, float | None] = {"nll": predictive["nll"], "nll_plugin": plugin_nll(model, test)}
    values |= {"crps": predictive["crps"], "coverage90": predictive["coverage90"], "mse": predictive["rmse"] ** 2}
    nothing = dict.fromkeys(("covariate_mse", "covariate_mse_all_rows", "covariate_accuracy", "covariate_brier"))
    values |= nothing if method in ("oracle", "limit") else covariate_scores(model, visible, data.complete["test"])
    return values | {name: predictive[name] for name in ("rmse", "coverage50", "coverage95")}
