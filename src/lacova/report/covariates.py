"""Facts about missing covariates for a report: their prior and posterior."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from lacova.data.schema import Schema
from lacova.models.base import Model
from lacova.report.facts import Facts, ReportOptions, rounded, sample_units, unit_labels

MAX_GAPS = 25  # of a covariate


def missing_covariates(model: Model, frame: pd.DataFrame, options: ReportOptions) -> list[Facts]:
    """Return for each covariate with gaps how much narrower the posterior is than the prior, and some of its gaps."""
    schema = model.schema
    gappy = [name for name in schema.covariates if frame[name].isna().any()]
    if not gappy or model.covariates not in ("joint", "factorised", "paper"):
        return []
    rows = frame[frame[gappy].isna().any(axis=1)]
    if schema.instance is not None:
        rows = frame[frame[schema.instance].isin(rows[schema.instance].unique())]
    rows = sample_units(rows, schema, 100, options.seed)
    prior_draws = model.prior_covariates(rows, draws=options.draws, seed=options.seed)
    posterior_draws = model.impute(rows, draws=options.draws, seed=options.seed)
    entries = []
    for name in gappy:
        at = np.flatnonzero(rows[name].isna().to_numpy())
        if len(at) == 0:
            continue
        drawn = [
            table[name].to_numpy().reshape(options.draws, len(rows))[:, at] for table in (prior_draws, posterior_draws)
        ]
        entry: Facts = {"name": name, "label": schema.label(name), "kind": schema.covariates[name], "n": len(at),
                        "all": int(frame[name].isna().sum())}  # fmt: skip
        summarise = _compare_levels if schema.covariates[name] == "categorical" else _compare_numbers
        if unit_labels(rows, schema).iloc[at].nunique() >= options.min_patients:
            entry |= summarise(*drawn)
        if options.patients:
            who = _entry_labels(rows, schema, name)[at]
            _, first = np.unique(who, return_index=True)  # a visit-constant covariate counts once per patient
            prior, posterior = entry.pop("prior"), entry.pop("posterior")
            entry["gaps"] = [{"who": who[k], "prior": prior[k], "posterior": posterior[k]}
                             for k in np.sort(first)[:MAX_GAPS]]  # fmt: skip
        else:
            entry = {key: value for key, value in entry.items() if key not in ("prior", "posterior")}
        entries.append(entry)
    return entries


def _entry_labels(rows: pd.DataFrame, schema: Schema, name: str) -> npt.NDArray[np.str_]:
    """Return a label for each entry of a column: the row, or the patient and, unless visit-constant, the visit."""
    if schema.instance is None:
        return np.arange(1, len(rows) + 1).astype(str)
    label = rows[schema.instance].astype(str)
    if name in schema.static:
        return label.to_numpy(str)
    ordered = rows if schema.time is None else rows.sort_values(schema.time, kind="stable")
    visit = ordered.groupby(schema.instance).cumcount() + 1
    return (label + ", visit " + visit[rows.index].astype(str)).to_numpy(str)


def _compare_numbers(prior: Any, posterior: Any) -> Facts:
    """Return the ends of 90% intervals and the means of draws (draws×gaps), and the ratio of their widths."""
    prior, posterior = np.asarray(prior, float), np.asarray(posterior, float)
    ends = [
        np.stack([*np.quantile(drawn, [0.05, 0.95], axis=0, method="weibull"), drawn.mean(0)]).T
        for drawn in (prior, posterior)
    ]
    ratio = float(posterior.std(0).mean() / max(prior.std(0).mean(), 1e-300))
    return {
        "ratio": round(ratio, 3),
        "prior": [rounded(e) for e in ends[0]],
        "posterior": [rounded(e) for e in ends[1]],
    }


def _compare_levels(prior: Any, posterior: Any) -> Facts:
    """Return the probabilities of levels among draws (draws×gaps), and the mean probability of the most probable."""
    levels = sorted({*prior.ravel().tolist(), *posterior.ravel().tolist()}, key=str)
    probs = [np.stack([(drawn == level).mean(0) for level in levels], 1) for drawn in (prior, posterior)]
    return {"levels": [str(level) for level in levels], "highest": [round(float(p.max(1).mean()), 3) for p in probs],
            "prior": [rounded(p) for p in probs[0]], "posterior": [rounded(p) for p in probs[1]]}  # fmt: skip
