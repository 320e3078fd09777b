"""Facts about the components of a GP prior for a report: their shares of the variance and their effects."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from lacova.inference.effects import Effects
from lacova.models.base import Model
from lacova.models.gp_prior_vae import GPPriorVAE
from lacova.plot.effects import MAX_LINES, binned, covariates_of
from lacova.plot.style import frequent
from lacova.report.facts import MIN_PATIENTS, Facts, ReportOptions, rounded, sample_units, unit_labels

ROWS = 400  # from which effects are computed, about


def component_effects(model: Model, frame: pd.DataFrame, shown: list[str], options: ReportOptions) -> Facts | None:
    """Return shares of the variance by component, and the effects of components along their covariates."""
    if not isinstance(model, GPPriorVAE) or not shown:
        return None
    schema = model.schema
    visits = 1.0 if schema.instance is None else len(frame) / frame[schema.instance].nunique()
    count = max(MIN_PATIENTS, round(ROWS / visits))
    rows = sample_units(frame, schema, count, options.seed).reset_index(drop=True)
    result = model.effects(rows, draws=max(10, options.draws // 3), interval=options.interval, seed=options.seed)
    shares = result.shares.set_index("component")[shown]
    names = result.rows["component"].unique().tolist()
    lines = {name: drawn for name in names if (drawn := _lines(model, rows, result, name, shown, options)) is not None}
    return {
        "components": list(shares.index), "measurements": [schema.label(name) for name in shown], "names": shown,
        "shares": [rounded(line) for line in shares.to_numpy()], "lines": lines, "rows": len(rows),
    }  # fmt: skip


def _lines(
    model: GPPriorVAE, rows: pd.DataFrame, result: Effects[pd.DataFrame], component: str, shown: list[str],
    options: ReportOptions,
) -> Facts | None:  # fmt: skip
    """Return the effect of a component by patient, by level or along a covariate; None if too few patients are left."""
    of_patients, along, group = covariates_of(model, component)
    if of_patients and not options.patients:
        return None
    schema, units = model.schema, unit_labels(rows, model.schema).to_numpy()
    counted = np.arange(len(rows)) if options.patients else units
    own = result.rows[result.rows["component"] == component]
    values = [own.loc[own["measurement"] == name, ["mean", "lower", "upper"]].reset_index(drop=True) for name in shown]
    if of_patients:
        label = rows[schema.instance].to_numpy()
        means = [ends.groupby(label).mean().sort_values("mean", kind="stable") for ends in values]
        return {"kind": "patients", "axis": f"{len(means[0])} patients, by size of the effect",
                "measurements": [[_band("", np.arange(1, len(m) + 1), m)] for m in means]}  # fmt: skip
    levels = [None] if group is None else frequent(rows[group], MAX_LINES)
    chosen = [np.ones(len(rows), bool) if level is None else (rows[group] == level).to_numpy(bool, na_value=False)
              for level in levels]  # fmt: skip
    if along is None:
        common = [(level, at) for level, at in zip(levels, chosen, strict=True)
                  if len(set(units[at])) >= options.min_patients]  # fmt: skip
        if not common:
            return None
        means = [pd.DataFrame([ends[at].mean() for _, at in common], columns=list(ends)) for ends in values]
        return {"kind": "levels", "axis": group, "levels": [str(level) for level, _ in common],
                "measurements": [[_band("", range(len(m)), m)] for m in means],
                "note": _note_on_levels(rows, group, len(common))}  # fmt: skip
    at = rows[along].to_numpy(float)
    drawn = []
    for ends in values:
        bands = []
        for level, mask in zip(levels, chosen, strict=True):
            use = mask & ~np.isnan(at)
            if len(set(counted[use])) >= MIN_PATIENTS:
                line = binned(ends[use], at[use], 12, MIN_PATIENTS, counted[use])
                bands.append(_band("" if level is None else f"{group} {level}", line["at"], line))
        drawn.append(bands)
    if not any(drawn):
        return None
    return {"kind": "lines", "axis": schema.label(along), "measurements": drawn,
            "note": _note_on_levels(rows, group, len(drawn[0]))}  # fmt: skip


def _note_on_levels(rows: pd.DataFrame, group: str | None, shown: int) -> str:
    """Say how many levels are shown if not all are."""
    count = 0 if group is None else rows[group].nunique()
    return f"{shown} of {count} levels of {group} are shown, the most frequent." if shown < count else ""


def _band(name: str, at: Any, ends: pd.DataFrame) -> Facts:
    return {"name": name, "at": rounded(list(at)), **{side: rounded(ends[side]) for side in ("mean", "lower", "upper")}}
