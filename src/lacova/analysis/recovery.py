"""How well a fitted model recovers known entries: some are hidden on purpose, imputed, and compared."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from lacova.analysis import correlations
from lacova.analysis.hidden_jointly import JOINT_COLUMNS, HiddenNumbers
from lacova.data.columns import numbers as numbers_of
from lacova.data.errors import DataError
from lacova.data.io.dataframes import to_pandas
from lacova.data.masks import mask_at_random
from lacova.data.schema import Schema
from lacova.models.base import Model
from lacova.models.checks import in_memory, whole_number

COVERAGES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)  # nominal coverages of central intervals
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Recovery:
    """Hidden entries, their true values and their imputations.

    Attributes:
        schema: the roles of the columns.
        share, seed: the share of entries hidden, and the seed that chose them.
        masked: the table with the entries hidden.
        numbers: one line per hidden number: its `row` (counted from 0), `column`, `truth`, the `mean` of the
            imputation, the ends `lower` and `upper` of its central 90% interval, and `pit`, the share of draws below
            the truth, which is uniform if the model is calibrated.
        categories: one line per hidden category: `row`, `column`, `truth`, the most probable level `guess` and the
            imputed `probability` of the true level.
        joint: one line per row of which at least two numeric measurements were hidden, and per course, the values of a
            measurement hidden at two or more visits of a patient: its `kind` ("row" or "course"), its first `row`, the
            `column` of a course, the number of `entries`, and its scores `energy` and `variogram`. `energy_shuffled`
            and `variogram_shuffled` are those of the same draws, shuffled entry by entry: only marginals are left.
        correlations: whether hidden values, imputed, have the correlations that observed values have, as from
            `lacova.lost_correlations`; the observed ones include the hidden values.
    """

    schema: Schema
    share: float
    seed: int
    masked: pd.DataFrame
    numbers: pd.DataFrame
    categories: pd.DataFrame
    joint: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=list(JOINT_COLUMNS)))
    correlations: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=list(correlations.COLUMNS)))

    def summary(self) -> pd.DataFrame:
        """Summarise each column in a line.

        `n` entries were hidden, in so many `patients` (rows, if there is no patient column). Numbers have `rmse`, the
        `sd` of the truth, and coverages of intervals; categories have `accuracy` and `most_frequent`, the accuracy of
        always naming the most frequent level.
        """
        summary: list[dict[str, Any]] = []
        numbers, categories = (
            dict(list(lines.groupby("column", sort=False))) for lines in (self.numbers, self.categories)
        )
        for name in self.schema.columns:
            if name in numbers:
                part = numbers[name]
                error = (part["mean"] - part["truth"]).to_numpy(float)
                line = {"column": name, "n": len(part), "patients": self.patients(part)}
                line |= {"rmse": float(np.sqrt((error**2).mean())), "sd": float(part["truth"].std(ddof=0))}
                line |= {f"coverage{round(100 * p)}": float(inside(part["pit"], p).mean()) for p in (0.5, 0.9, 0.95)}
                summary.append(line)
            elif name in categories:
                part = categories[name]
                most_frequent = float(part["truth"].value_counts(normalize=True).max())
                hits = float((part["guess"] == part["truth"]).mean())
                summary.append({"column": name, "n": len(part), "patients": self.patients(part), "accuracy": hits,
                                "most_frequent": most_frequent})  # fmt: skip
        return pd.DataFrame(summary, columns=["column", "n", "patients", "rmse", "sd", "coverage50", "coverage90",
                                              "coverage95", "accuracy", "most_frequent"])  # fmt: skip

    def joint_summary(self) -> pd.DataFrame:
        """Summarise the joint scores: a line for rows, then one for the courses of each measurement.

        `n` rows or courses were scored, of so many `patients` (rows, if there is no patient column). The scores are
        means over them. Draws whose joint law is right score lower than the same draws shuffled, the more so the
        stronger the correlations; if they score higher, they would better be independent.
        """
        lines = [
            {"kind": kind, "column": "" if kind == "row" else column, "n": len(part), "patients": self.patients(part)}
            | part[list(JOINT_COLUMNS[4:])].astype(float).mean().to_dict()
            for (kind, column), part in self.joint.groupby(["kind", "column"], sort=False)
        ]
        return pd.DataFrame(lines, columns=["kind", "column", "n", "patients", *JOINT_COLUMNS[4:]])

    def coverage(self, column: str | None = None) -> pd.DataFrame:
        """Compute the share of hidden numbers within central intervals, by nominal coverage, of one column or all."""
        pit = (self.numbers if column is None else self.numbers[self.numbers["column"] == column])["pit"]
        shares = [float(inside(pit, nominal).mean()) for nominal in COVERAGES]
        return pd.DataFrame({"nominal": COVERAGES, "coverage": shares, "n": len(pit)})

    def patients(self, lines: pd.DataFrame) -> int:
        """Count the patients, or the rows if there are none, that lines of `numbers` or `categories` belong to."""
        instance = self.schema.instance
        return int((lines["row"] if instance is None else self.masked[instance].iloc[lines["row"]]).nunique())


def inside(pit: pd.Series[Any], nominal: float) -> npt.NDArray[np.bool_]:
    """Return which true values lie within the central interval of nominal coverage, given their `pit`."""
    return np.asarray(np.abs(pit.to_numpy(float) - 0.5) <= nominal / 2.0)


def recover(model: Model, data: Any, *, share: float = 0.1, seed: int = 0, draws: int = 200) -> Recovery:
    """Hide a share of the observed measurements and covariates, impute them, and compare.

    Visit-constant covariates are hidden at all visits of a patient, or at none. A row may lose all its measurements,
    which are then imputed from covariates and other visits, or from the marginal distribution if the model has neither.
    Entries of levels that training does not know count as missing and are not hidden.
    The entries are hidden from imputation only: if the model was fitted to the same rows, training used them.

    Args:
        model: a fitted model.
        data: rows with measurements and covariates.
        share: the share of observed entries to hide, between 0 and 1.
        seed: of the hidden entries and of the draws.
        draws: the number of completed tables, at least 2.

    Examples:
        >>> import numpy as np, pandas as pd, lacova
        >>> rng = np.random.default_rng(0)
        >>> table = pd.DataFrame(rng.normal(size=(90, 1)) + 0.3 * rng.normal(size=(90, 2)), columns=["a", "b"])
        >>> model = lacova.VAE(lacova.Schema(["a", "b"], {}), latent_dim=1).fit(table, max_epochs=5)
        >>> recovery = lacova.recover(model, table, share=0.4, draws=20)
        >>> recovery.joint_summary()["kind"].tolist(), recovery.correlations[["first", "second"]].values.tolist()
        (['row'], [['a', 'b']])
    """
    if not 0.0 < share < 1.0:
        raise ValueError(f"share is {share!r}; expected a number between 0 and 1, such as 0.1.")
    if whole_number(draws) < 2:
        raise ValueError(f"draws is {draws}; expected at least 2, as joint scores compare draws with each other.")
    schema = model.schema
    frame, _ = to_pandas(in_memory(data, "recover"), schema.columns)
    frame = frame.reset_index(drop=True)
    columns = [name for name in schema.columns if name != schema.instance]
    absent = [name for name in schema.columns if name not in frame]
    if absent:
        raise DataError(f"the table has no column {absent[0]!r}, which the model's schema names.")
    frame = model.without_unseen(frame)
    masked = mask_at_random(frame, columns, share, seed, instance=schema.instance, static=schema.static)
    filled = model.impute(masked[list(schema.columns)], draws=draws, seed=seed)
    generator = np.random.default_rng(seed)
    numbers, categories = [], []
    jointly = HiddenNumbers(model.fitted()[0], frame)
    for name in columns:
        rows = np.flatnonzero((frame[name].notna() & masked[name].isna()).to_numpy())
        if len(rows) == 0:
            continue
        drawn = filled[name].to_numpy().reshape(draws, len(frame))[:, rows]
        truth = frame[name].to_numpy()[rows]
        if name in schema.categories:
            categories.append(_compare_levels(name, rows, truth, drawn))
        else:
            known, values = np.asarray(truth, float), np.asarray(drawn, float)
            numbers.append(_compare_numbers(name, rows, known, values, generator))
            jointly.add(name, rows, known, values)
    empty: dict[str, list[Any]] = {"row": [], "column": [], "truth": []}
    return Recovery(
        schema, share, seed, masked,
        pd.concat(numbers, ignore_index=True) if numbers
        else pd.DataFrame({**empty, "mean": [], "lower": [], "upper": [], "pit": []}),
        pd.concat(categories, ignore_index=True) if categories
        else pd.DataFrame({**empty, "guess": [], "probability": []}),
        jointly.scores(seed), _correlations(schema, frame, frame.notna() & masked.isna(), filled, draws),
    )  # fmt: skip


def _correlations(
    schema: Schema, frame: pd.DataFrame, hidden: pd.DataFrame, filled: pd.DataFrame, draws: int
) -> pd.DataFrame:  # fmt: skip
    """Compare correlations of observed values with those of hidden ones; gaps of the table itself do not count.

    Hidden values are missing completely at random, whatever the table's own gaps depend on.
    """
    chosen = correlations.most_frequent(hidden, correlations.comparable_columns(schema))
    known = np.stack([numbers_of(frame, name) for name in chosen], axis=1) if chosen else np.empty((len(frame), 0))
    used = correlations.spaced(draws)
    drawn = [filled[name].to_numpy(float).reshape(draws, len(frame))[used] for name in chosen]
    values = (
        np.where(np.isnan(known), np.nan, np.stack(drawn, axis=2)) if chosen else np.empty((len(used), *known.shape))
    )
    rows = correlations.Rows.of(frame, schema)
    return correlations.compare_correlations(known, hidden[chosen].to_numpy(), values, chosen, rows, schema)


def _compare_numbers(
    name: str, rows: npt.NDArray[np.int64], truth: Floats, drawn: Floats, generator: np.random.Generator
) -> pd.DataFrame:
    """Compare true values with their draws.

    Ties, as between whole numbers or at bounds, are broken at random, so that `pit` is uniform for them too.
    """
    below, equal = (drawn < truth).sum(0), (drawn == truth).sum(0)
    pit = (below + generator.random(len(truth)) * (equal + 1)) / (len(drawn) + 1)
    lower, upper = np.quantile(drawn, [0.05, 0.95], axis=0, method="weibull")
    return pd.DataFrame(
        {"row": rows, "column": name, "truth": truth, "mean": drawn.mean(0), "lower": lower, "upper": upper, "pit": pit}
    )


def _compare_levels(name: str, rows: npt.NDArray[np.int64], truth: Any, drawn: npt.NDArray[Any]) -> pd.DataFrame:
    table = pd.DataFrame(drawn)
    guess = [table[k].value_counts().index[0] for k in table]
    probability = [float((table[k] == truth[k]).mean()) for k in table]
    return pd.DataFrame(
        {"row": rows, "column": name, "truth": pd.Series(truth, dtype=object), "guess": pd.Series(guess, dtype=object),
         "probability": probability}
    )  # fmt: skip
