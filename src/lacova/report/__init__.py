"""A report on a fitted model: one self-contained HTML file that needs no network. See docs/report.md."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from lacova import __version__
from lacova.analysis.recovery import recover
from lacova.data.errors import DataError, hint
from lacova.data.io.atomic import replacing
from lacova.data.io.dataframes import to_pandas
from lacova.models.base import Model
from lacova.models.checks import in_memory
from lacova.models.settings import arguments
from lacova.plot.style import without_gaps
from lacova.report import facts, page
from lacova.report.covariates import missing_covariates
from lacova.report.effects import component_effects
from lacova.report.joint import joint_facts
from lacova.report.latent import latent_space
from lacova.report.patients import trajectories
from lacova.report.tested import OUT_OF_TRAINING, choose_tested
from lacova.report.warnings import warnings

CHECKED_ROWS, CHECKED_ENTRIES = 2000, 60_000  # maximum sizes of the table of which a share is hidden
SHARE, FEW_SHARE, FEW_ROWS = 0.1, 0.3, 500  # the share, and that of fewer rows that were held out


def write(
    model: Model, data: Any = None, out: str | os.PathLike[str] = "report.html", *, held_out: Any = None,
    patients: bool = True, share: float | None = None, draws: int = 100, seed: int = 0,
    images: tuple[int, int] | None = None, truth: Any = None, command: str | None = None,
) -> Path:  # fmt: skip
    """Write a report on a fitted model and, if given, on data.

    Args:
        model: a fitted model.
        data: rows with measurements and covariates, usually those it was fitted to; None to describe the model alone.
        out: the HTML file, written completely or not at all.
        held_out: rows that were not in training, to measure the quality of imputation on. None for those of `data`
            that `fit` held out; if there are none, for `data`, and the report says so.
        patients: False to leave out everything that belongs to single patients: labels, values, trajectories.
        share: the share of observed entries to hide, to measure how well they are imputed. None for a tenth, or three
            tenths of fewer than 500 rows that were held out.
        draws: the number of draws behind every figure.
        seed: the seed of all random numbers.
        images: height and width, if a row's measurements are the pixels of an image, to show some of them.
        truth: the rows of `data` without gaps, if known, for the images.
        command: the command that writes the report, to show in it.

    Returns:
        the path of the file.
    """
    content = contents(
        model, data, held_out=held_out, patients=patients, share=share, draws=draws, seed=seed, images=images,
        truth=truth, command=command,
    )  # fmt: skip
    return save(content, out)


def contents(
    model: Model, data: Any = None, *, held_out: Any = None, patients: bool = True, share: float | None = None,
    draws: int = 100, seed: int = 0, images: tuple[int, int] | None = None, truth: Any = None,
    command: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Return what `write` writes, by section; `warnings` are sentences. The arguments are those of `write`."""
    model.fitted()
    schema = model.schema
    options = facts.ReportOptions(draws, seed, patients)
    content: dict[str, Any] = {"title": f"lacova report: {type(model).__name__}", "model": model, "options": options}
    content["training"] = facts.training(model)
    frame = None if data is None else _table(data, model, "data")
    if frame is not None and (count := facts.unit_labels(frame, schema).nunique()) < options.min_patients:
        raise DataError(
            f"the data have {count} patient(s), or rows where no column names the patient; in a report without single "
            f"patients every figure rests on {options.min_patients} at least. Give more rows, or describe the model "
            "alone."
        )
    tested, origin = choose_tested(model, frame, None if held_out is None else _table(held_out, model, "held_out"))
    recovery = None
    content |= {"columns": [], "tested": origin}
    shown: list[str] = []
    if tested is not None:
        shown = facts.shown_measurements(tested, schema)
        units = _checked_units(tested, model)
        if share is None:
            share = FEW_SHARE if origin in OUT_OF_TRAINING and len(tested) < FEW_ROWS else SHARE
        recovery = recover(model, facts.sample_units(tested, schema, units, seed), share=share, seed=seed, draws=draws)
        content["calibration"] = facts.calibration(recovery, shown, options)
        content["joint"] = joint_facts(recovery, options)
    if frame is not None:
        content |= {
            "columns": facts.columns(frame, schema, options), "size": facts.describe_size(frame, schema),
            "gaps": facts.gap_map(frame, schema, options), "patients": trajectories(model, frame, shown, options),
            "covariates": missing_covariates(model, frame, options),
            "effects": component_effects(model, frame, shown, options),
            "latent": latent_space(model, frame, shown, options),
        }  # fmt: skip
        if images is not None and patients:
            known = None if truth is None else without_gaps(_table(truth, model, "truth"), frame, schema)
            content["images"] = _images(model, frame, known, images)
    content["recovery"] = recovery
    content["warnings"] = warnings(model, frame, content["columns"], recovery, options.min_patients, origin)
    content["reproduce"] = _reproduce(model, options, share, command)
    return content


def save(content: dict[str, Any], out: str | os.PathLike[str]) -> Path:
    """Write the page of some contents, completely or not at all, and return its path."""
    path = Path(out)
    try:
        with replacing(path) as temporary:
            temporary.write_text(page.render(content), encoding="utf-8", newline="\n")
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror or error}.") from None
    return path


def _table(data: Any, model: Model, what: str) -> pd.DataFrame:
    frame, _ = to_pandas(in_memory(data, "report"), model.schema.columns)
    absent = [name for name in model.schema.columns if name not in frame]
    if absent:
        raise DataError(f"{what} has no column {absent[0]!r}, which the model needs.{hint(absent[:1], frame.columns)}")
    if frame.empty:
        raise DataError(f"{what} has no rows.")
    return model.without_unseen(frame[list(model.schema.columns)].reset_index(drop=True))


def _checked_units(frame: pd.DataFrame, model: Model) -> int:
    """Return the number of patients, or rows, that make up the rows and entries to check."""
    rows = min(CHECKED_ROWS, max(50, CHECKED_ENTRIES // len(model.schema.columns)))
    if model.schema.instance is None:
        return rows
    return max(10, round(rows * frame[model.schema.instance].nunique() / len(frame)))


def _images(model: Model, frame: pd.DataFrame, truth: pd.DataFrame | None, shape: tuple[int, int]) -> bytes:
    """Draw some images: the true ones if known, with their gaps, and imputed."""
    import io

    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from lacova.plot.images import images

    pixels = list(model.schema.measurements)
    shown = frame[frame[pixels].isna().any(axis=1)].head(8)
    shown = frame.head(8) if shown.empty else shown
    lines = {} if truth is None else {"true": truth.loc[shown.index, pixels]}
    lines |= {"masked": shown[pixels], "imputed": model.impute(shown)[pixels]}
    figure = Figure(
        figsize=(0.8 + 1.05 * len(shown), 0.2 + 1.05 * len(lines) * shape[0] / shape[1]), layout="constrained"
    )
    FigureCanvasAgg(figure)
    images(lines, shape, ax=figure.add_subplot())
    file = io.BytesIO()
    figure.savefig(file, dpi=100, format="png", metadata={"Software": None})
    return file.getvalue()


def _reproduce(
    model: Model, options: facts.ReportOptions, share: float | None, command: str | None
) -> Mapping[str, str]:
    """Return what is needed to reproduce the report and the model, by name."""
    training = {k: v for k, v in asdict(model.options).items() if v is not None}
    asked = model.held_out.asked
    rows = "train, validation" if model.held_out.given else "train" if asked is None else f"train, validation={asked!r}"
    hidden = "" if share is None else f"share={share:g}, "
    origin = "" if model._written_by is None else (
        f"lacova {model._written_by}; the versions of other packages at training are not stored in it"
    )  # fmt: skip
    return {
        "command": command or f"lacova.report.write(model, data, {hidden}draws={options.draws}, seed={options.seed})",
        "seed of the report": str(options.seed),
        "seed of training": str(training["seed"]),
        "training": f"{type(model).__name__}(schema, {_call(arguments(model))}).fit({rows}, {_call(training)})",
        **({"model file written by": origin} if origin else {}),
        "versions that wrote this report": f"lacova {__version__}, Python {platform.python_version()}, "
        f"torch {torch.__version__}, numpy {np.__version__}, pandas {pd.__version__}",
    }


def _call(values: Mapping[str, Any]) -> str:
    """Write arguments as in a call."""
    return ", ".join(f"{name}={value!r}" for name, value in values.items() if value is not None and value != {})
