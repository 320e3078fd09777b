"""One fit, and all that is said of it."""

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
from reproduction.limit import TruePrior, law_of
from reproduction.scores import covariate_scores, plugin_nll

# In the paper's model, y depends on x through z alone.
MODELS = {"cvae": lacova.CVAE, "gp": partial(lacova.GPPriorVAE, fixed_effects=False)}


def compute(job: Job, wanted: Sequence[str], sources: Sources, device: str) -> list[dict[str, Any]]:
    """Fit one model and score it as each of the `wanted` methods: a line of the results file each."""
    data = study(job.dataset, job.rows, job.missing, job.seed, sources)
    started = time.perf_counter()
    model = fit(job, data, device)
    seconds = time.perf_counter() - started
    about = {"epochs": len(model.training), "seconds": round(seconds, 1), "device": device}
    about |= {"version": lacova.__version__, "settings": job.digest(fingerprint(job.dataset, sources))}
    lines = []
    for method in (method for method in job.answers if method in wanted):
        if method == "limit":
            know_the_law(model, job)
        found = scores(model, data, method, job.draws)
        rounded = {name: None if value is None else round(value, 6) for name, value in found.items()}
        lines.append(job.base(method) | rounded | about)
    return lines


def fit(job: Job, data: Study, device: str) -> Model:
    """The job's model, trained on what its treatment of gaps may see."""
    seen_all = job.covariates == "oracle"
    given = {part: data.seen(part) if seen_all else data.masked[part] for part in data.masked}
    # Where a covariate does not exist for some (the onset of the healthy), the oracle takes its mean for them.
    exists = not any(data.complete[part][data.x].isna().any(axis=None) for part in data.complete)
    treatment = "mean" if seen_all and not exists else job.covariates
    model = MODELS[job.model](data.schema, networks=job.preset, covariates=treatment, **job.settings)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="measurement column.* constant")  # the margins of clean images are
        model.fit(given["train"], given["validation"], seed=job.seed, device=device, progress=False, **job.fit)
    return model


def know_the_law(model: Model, job: Job) -> None:
    """Let a fitted model draw missing covariates from the generator's own law, whatever it was trained with."""
    encoder, vae = model._fitted()
    model._fill = None
    vae.covariate_prior = TruePrior(law_of(job.dataset), encoder, job.seed)


def scores(model: Model, data: Study, method: str, draws: int) -> dict[str, float | None]:
    """Of the prediction of Y from X, and of the imputation of X from what is left of both."""
    given = data.seen("test") if method == "oracle" else data.masked["test"]
    asked = data.asked(given)
    found = model.score(asked, draws=draws)
    answer: dict[str, float | None] = {"nll": found["nll"], "nll_plugin": plugin_nll(model, asked)}
    answer |= {"crps": found["crps"], "coverage90": found["coverage90"], "mse": found["rmse"] ** 2}
    nothing = dict.fromkeys(("covariate_mse", "covariate_mse_all_rows", "covariate_accuracy", "covariate_brier"))
    answer |= nothing if method in ("oracle", "limit") else covariate_scores(model, given, data.complete["test"])
    return answer | {name: found[name] for name in ("rmse", "coverage50", "coverage95")}
