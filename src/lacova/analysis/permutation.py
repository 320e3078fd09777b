"""A permutation test of an effect: what a model finds once the arm has been given out anew at random."""

from __future__ import annotations

import copy
import math
import os
import warnings
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import pandas as pd

from lacova import __version__
from lacova.analysis.assignment import LEAST_ASSIGNMENTS, check_counts, contrast, permutation_of, units_of, with_values
from lacova.analysis.comparison import check_options
from lacova.analysis.result_file import ResultFile, digest_of, key_of, roles_of
from lacova.analysis.workers import work
from lacova.data.columns import require_columns
from lacova.data.errors import FitWarning
from lacova.data.io.dataframes import to_pandas
from lacova.data.levels import without_unseen
from lacova.data.statistics import ColumnStatistics
from lacova.models.base import Model
from lacova.models.checks import check_interval, in_memory, whole_number
from lacova.models.inference import INTERVAL_DRAWS
from lacova.models.registry import OPTIONS
from lacova.models.settings import arguments, identity
from lacova.training.interrupt import InterruptedWarning
from lacova.training.options import TrainingError
from lacova.training.progress import progress as progress_bar

Effect = tuple[dict[str, list[float]], list[str]]  # the ends by measurement, and what fit warned of
SHARE_COVERAGE = 0.95  # of the interval of the share of intervals that exclude 0


@dataclass(frozen=True)
class PermutationTest:
    """The effect that a model finds, beside those that it finds where there is none.

    Attributes:
        covariate, versus, value: the effect: of setting the covariate from `versus` to `value`.
        fits: one line per fit and measurement: the number of the `permutation`, 0 for the study as it is, the
            `measurement`, the average `difference` between both values with its interval, `lower` and `upper`, and
            whether this `excludes_0`.
        summary: one line per measurement. Of the study as it is: `difference`, `lower`, `upper`, and its `p_value`, the
            share of all fits whose difference is at least as far from 0. Of the permutations: the share of intervals
            that `exclude_0`, with a 95% interval (Wilson's), `exclude_0_lower` and `exclude_0_upper`, beside the share
            `expected` of an honest model, and the number of `permutations`.
    """

    covariate: str
    versus: Any
    value: Any
    fits: pd.DataFrame
    summary: pd.DataFrame


def permutation_test(
    data: Any, model: Model, covariate: str, *, value: Any = None, versus: Any = None, rows: Any = None,
    permutations: int = 200, strata: str | Sequence[str] | None = None, validation: float | None = None,
    interval: float = 0.9, draws: int = INTERVAL_DRAWS, seed: int = 0, device: str = "auto", workers: int = 1,
    checkpoint: str | os.PathLike[str] | None = None, progress: bool | None = None, **options: Any,
) -> PermutationTest:  # fmt: skip
    """Give a covariate out anew at random, again and again, and see what the model finds.

    The covariate, such as the arm of a trial, is permuted between patients, or between rows where there are no
    patients. It then has no effect, and of honest 90% intervals a tenth excludes 0. The model is fitted anew each time,
    and once to the study as it is. The permutations are also the null distribution of the effect itself: the p-value
    does not depend on what the model assumes, if the arms were given out at random. See docs/effects.md.

    Args:
        data: a table in memory: pandas, polars or pyarrow.
        model: a model with the settings to judge. It is not changed; of a fitted one, the options of its training are
            used again, too. What `fit` warns of is a warning here, once, of the fit to the study as it is.
        covariate: the covariate to permute; it must not change between the rows of a patient.
        value: what it is set to; may be left out, as may `versus`, if the column holds two values.
        versus: what it is compared with.
        rows: rows whose average difference is the effect, such as the last visits; None for all rows of `data`.
        permutations: how often the covariate is permuted, at least 19.
        strata: column or columns within whose values to permute, such as the site by which a trial was stratified.
        validation: the share of rows or patients that each fit holds out, or False for none. None for what was asked
            of `fit` where the model is fitted, else for what `fit` does by default.
        interval: the central interval, such as 0.9.
        draws: draws behind each interval.
        seed: of permutations, fits and draws.
        device: where models are fitted.
        workers: processes that fit at the same time; above 1, a script needs `if __name__ == "__main__":`.
        checkpoint: a file, or a folder for one, that gains a line of JSON after each fit. Fits of the same test that
            are in the file are not repeated.
        progress: show a progress bar on stderr; None shows it in a terminal only.
        **options: options of training: `max_epochs`, `members`, ...; see `FitOptions`.

    Example:
        >>> import numpy as np, pandas as pd, lacova
        >>> rng = np.random.default_rng(0)
        >>> table = pd.DataFrame({"arm": ["a", "b"] * 30, "chol": rng.normal(5, 1, 60)})
        >>> schema = lacova.Schema(["chol"], {"arm": "categorical"})
        >>> model = lacova.CVAE(schema, latent_dim=1)
        >>> test = lacova.permutation_test(table, model, "arm", permutations=19, draws=20, max_epochs=1)
        >>> len(test.fits), test.summary["permutations"].tolist()
        (20, [19])
    """
    if not isinstance(model, Model):
        raise ValueError(f"model is {model!r}; expected a model, such as lacova.CVAE(schema).")
    schema = model.schema
    names = [] if strata is None else [strata] if isinstance(strata, str) else list(strata)
    used = list(dict.fromkeys([*schema.columns, *names]))
    frame, _ = to_pandas(in_memory(data, "permutation_test"), used)
    require_columns(frame, used)
    whole_number(permutations, "permutations", LEAST_ASSIGNMENTS - 1)
    whole_number(draws, least=2)
    whole_number(workers, "workers")
    check_interval(interval)
    check_options(options)
    validation = model.held_out.asked if validation is None else _checked_share(validation)
    units = units_of(frame, schema, covariate, names)
    versus, value = contrast(units, schema, versus, value)
    check_counts(units, versus, value)
    frame = with_values(frame, units, np.arange(len(units.values)))
    asked = frame
    if rows is not None:
        asked, _ = to_pandas(in_memory(rows, "permutation_test"), schema.columns)
        asked = without_unseen(asked, ColumnStatistics.known_levels(schema, frame), model.unseen)
    training = {**_saved_options(model), **options, "validation": validation}
    study = {
        "version": __version__, "data": digest_of(frame, used), "schema": roles_of(schema), "model": identity(model),
        "training": training, "covariate": covariate, "values": [versus, value], "strata": names, "seed": seed,
        "rows": digest_of(asked, [name for name in schema.covariates if name in asked]), "draws": draws,
        "interval": interval,
    }  # fmt: skip
    blank = copy.deepcopy(type(model)(schema, **arguments(model)))
    keys = [key_of({**study, "permutation": k}) for k in range(permutations + 1)]
    results = ResultFile(checkpoint, "permutation test")
    todo = [k for k, key in enumerate(keys) if key not in results.lines]

    def tasks() -> Iterator[tuple[Any, ...]]:
        for k in todo:
            permuted = with_values(frame, units, permutation_of(units.stratum, seed, k))
            common = (covariate, versus, value, training, seed + k, device, draws, interval)
            yield (blank, permuted, asked, *common)

    with progress_bar(len(keys), progress) as bar, closing(_effects(tasks(), workers)) as effects:
        for done, (place, (effect, concerns)) in enumerate(effects, len(keys) - len(todo) + 1):
            line = {"key": keys[todo[place]], "permutation": todo[place], "effect": effect, "concerns": concerns}
            results.add(line)
            if bar is not None:
                bar.advance_to(done, "")
    for concern in results.lines[keys[0]]["concerns"]:
        warnings.warn(concern, FitWarning, stacklevel=2)
    fits = pd.DataFrame([
        {"permutation": k, "measurement": name, "difference": ends[0], "lower": ends[1], "upper": ends[2]}
        for k, key in enumerate(keys)
        for name, ends in results.lines[key]["effect"].items()
    ])  # fmt: skip
    fits["excludes_0"] = (fits["lower"] > 0.0) | (fits["upper"] < 0.0)
    return PermutationTest(covariate, versus, value, fits, summarise(fits, interval))


def summarise(fits: pd.DataFrame, interval: float) -> pd.DataFrame:
    """Return one line per measurement, from one line per fit and measurement; see `PermutationTest`."""
    lines = []
    for name, own in fits.groupby("measurement", sort=False):
        real, permuted = own[own["permutation"] == 0].iloc[0], own[own["permutation"] > 0]
        count, excluded = len(permuted), int(permuted["excludes_0"].sum())
        as_far = int((permuted["difference"].abs() >= abs(real["difference"])).sum())
        lower, upper = wilson(excluded, count, SHARE_COVERAGE)
        lines.append({
            "measurement": name, "difference": real["difference"], "lower": real["lower"], "upper": real["upper"],
            "p_value": (1 + as_far) / (1 + count), "exclude_0": excluded / count, "exclude_0_lower": lower,
            "exclude_0_upper": upper, "expected": 1.0 - interval, "permutations": count,
        })  # fmt: skip
    return pd.DataFrame(lines)


def wilson(hits: int, count: int, coverage: float) -> tuple[float, float]:
    """Return Wilson's interval of a share: all p with |hits/count − p| ≤ z √(p(1 − p)/count)."""
    z, share = NormalDist().inv_cdf(0.5 + 0.5 * coverage), hits / count
    centre, factor = share + z * z / (2.0 * count), 1.0 + z * z / count
    half = z * math.sqrt(share * (1.0 - share) / count + z * z / (4.0 * count * count))
    return max(0.0, (centre - half) / factor), min(1.0, (centre + half) / factor)


def _checked_share(validation: Any) -> float:
    """Return a share to hold out, or False; rows are refused, as they would be the same for all permutations."""
    if validation is False:
        return False
    number = isinstance(validation, int | float | np.number) and not isinstance(validation, bool)
    if not (number and 0.0 < validation < 1.0):
        raise ValueError(
            f"validation is {validation!r}; expected a share of the rows or patients between 0 and 1, which each fit "
            "holds out by itself, or False for none."
        )
    return float(validation)


def _saved_options(model: Model) -> dict[str, Any]:
    """Return the options with which a fitted model was trained; none of one that was not."""
    return {} if model.vae is None else {k: v for k, v in asdict(model.options).items() if k in OPTIONS}


def _effects(tasks: Iterator[tuple[Any, ...]], workers: int) -> Generator[tuple[int, Effect], None, None]:
    """Yield the place of each task with its effects, as they finish."""
    if workers == 1:
        for place, task in enumerate(tasks):
            yield place, effect_of(*task)
        return
    with closing(work(effect_of, tasks, workers, lambda: True)) as outcomes:
        for place, result, error in outcomes:
            if error is not None:
                raise TrainingError(f"a fit to permuted values failed: {error.strip().splitlines()[-1]}")
            yield place, result


def effect_of(
    blank: Model, table: pd.DataFrame, rows: pd.DataFrame, covariate: str, versus: Any, value: Any,
    options: Mapping[str, Any], seed: int, device: str, draws: int, interval: float,
) -> Effect:  # fmt: skip
    """Fit a model, and return the average effect on each measurement, the difference and the ends of its interval.

    What `fit` warns of is returned with them.
    """
    model = copy.deepcopy(blank)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InterruptedWarning)
        warnings.simplefilter("ignore", FitWarning)
        model.fit(table, seed=seed, device=device, **{**options, "progress": False})
    if model.interrupted:
        raise KeyboardInterrupt
    kind = np.float64 if model.schema.covariates[covariate] == "continuous" else table[covariate].dtype
    setting = rows.assign(**{covariate: pd.Series([versus] * len(rows), rows.index, kind)})
    average = model.what_if(setting, {covariate: value}, draws=draws, interval=interval, seed=seed).average
    columns = ["difference", "difference_lower", "difference_upper"]
    lines = average[["measurement", *columns]].to_numpy().tolist()
    return {name: [float(v) for v in ends] for name, *ends in lines}, list(model.findings.concerns.values())
