"""Facts about the latent space for a report: points in two dimensions, and their colours."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from lacova.models.base import Model
from lacova.plot.fit import project
from lacova.plot.style import frequent
from lacova.report.facts import Facts, ReportOptions, rounded, sample_units

MAX_POINTS, MAX_LEVELS = 1500, 7  # points, and levels that can be told apart by shape


def latent_space(model: Model, frame: pd.DataFrame, shown: list[str], options: ReportOptions) -> Facts | None:
    """Return the latent means of some rows in two dimensions, and columns to colour them by."""
    if not options.patients or len(frame) < 3:
        return None
    schema = model.schema
    visits = 1.0 if schema.instance is None else len(frame) / frame[schema.instance].nunique()
    rows = sample_units(frame, schema, max(5, round(MAX_POINTS / visits)), options.seed)
    points, labels = project(model, rows)
    colours: list[Facts] = []
    for name in [
        *schema.covariates,
        *(name for name in schema.measurements if name in shown or name in schema.categories),
    ]:
        if name in schema.categories:
            colours.append({"name": name, **_encode_levels(rows[name])})
        else:
            colours.append({"name": schema.label(name), "values": rounded(rows[name])})
    who = None if schema.instance is None else [str(label) for label in rows[schema.instance]]
    return {"x": rounded(points[:, 0]), "y": rounded(points[:, 1]), "labels": labels, "colours": colours, "who": who,
            "rows": len(rows), "of": len(frame)}  # fmt: skip


def _encode_levels(values: pd.Series[Any]) -> Facts:
    """Return the levels that can be told apart, with "others" last if there are more, and the level of each row."""
    more = values.nunique() > MAX_LEVELS
    levels = frequent(values, MAX_LEVELS - 1 if more else MAX_LEVELS)
    codes = np.full(len(values), float(len(levels)))
    for k, level in enumerate(levels):
        codes[(values == level).to_numpy(bool, na_value=False)] = k
    names = [*map(str, levels), *(["others"] if more else [])]
    return {"levels": names, "values": rounded(np.where(values.isna(), np.nan, codes))}
