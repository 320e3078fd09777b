"""How well missing covariates are imputed on two real longitudinal tables, for patients not seen in training.

    python -m reproduction.covariates.clinical run --data folder
    python -m reproduction.covariates.clinical table

`run` appends one line per data set, method, share of masked entries, seed and column to clinical.jsonl and skips what
is there; the folder may also be named by LACOVA_DATA. `table` prints means over columns, then each column.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.experimental import enable_iterative_imputer  # noqa: F401  # scikit-learn's switch for the next import
from sklearn.impute import IterativeImputer, KNNImputer

import lacova
from lacova.covariates.longitudinal import LongitudinalPrior
from lacova.covariates.space import CovariateSpace
from lacova.predict import chunks
from lacova.table import Codec
from reproduction.covariates.options import parser as options_parser
from reproduction.covariates.tables import cdisc, pbc

RESULTS = Path(__file__).with_name("clinical.jsonl")
TABLES = {"pbc": pbc, "cdisc": cdisc}
PEERS = ("mode", "locf", "knn", "iterative", "trees")
KEY = ("dataset", "method", "missing", "seed")
SHARES = {"train": 0.70, "validation": 0.15, "test": 0.15}  # of the patients
LEAST_PROBABILITY = 1e-3  # what the log loss takes for a level that a method excludes
FEW = 10  # entries of the rarest level, over all seeds, below which a column says nothing

# A method's answer: per column, the guess of each test row, and the probabilities of its levels where there are any.
Answer = dict[int, tuple[np.ndarray, np.ndarray | None]]


@dataclass(frozen=True)
class Part:
    """Patients of a split, encoded with the training scales: NaN at gaps, rows by patient and day."""

    frame: pd.DataFrame
    x: np.ndarray
    y: np.ndarray
    patient: np.ndarray
    day: np.ndarray


@dataclass(frozen=True)
class Cell:
    """What the methods get."""

    schema: lacova.Schema
    codec: Codec
    train: Part
    validation: Part
    test: Part
    seed: int
    options: argparse.Namespace

    @property
    def space(self) -> CovariateSpace:
        return self.codec.space

    @property
    def asked(self) -> list[int]:
        """The columns that lose entries: all but time."""
        return [q for q, name in enumerate(self.space.names) if name != self.schema.time]


def split(table: pd.DataFrame, schema: lacova.Schema, seed: int) -> dict[str, pd.DataFrame]:
    """Whole patients to training, validation and test."""
    patients = np.random.default_rng(seed).permutation(table[schema.instance].unique())
    ends = np.round(np.cumsum(list(SHARES.values())) * len(patients)).astype(int)
    groups = np.split(patients, ends[:-1])
    return {
        name: table[table[schema.instance].isin(group)].reset_index(drop=True)
        for name, group in zip(SHARES, groups, strict=True)
    }


def mask(table: pd.DataFrame, schema: lacova.Schema, missing: float, seed: int) -> pd.DataFrame:
    """Take away a share of the covariates' entries: of each visit, or of the patient where they are visit-constant."""
    rng = np.random.default_rng(seed)
    masked = table.copy()
    patient = pd.factorize(table[schema.instance])[0]
    for name in schema.covariates:
        if name != schema.time:
            gone = rng.random(len(table)) < missing
            masked.loc[gone[patient] if name in schema.static else gone, name] = np.nan
    return masked


def part(codec: Codec, frame: pd.DataFrame) -> Part:
    table = codec.encode(frame, dtype=torch.float64)
    x = np.where(table.x_mask, table.x, np.nan)
    y = np.where(table.y_mask, table.y, np.nan)
    return Part(frame, x, y, table.patient.numpy(), frame[codec.schema.time].to_numpy())


def by_mode(cell: Cell) -> Answer:
    """Training mean, or frequencies; a visit-constant value counts once per patient."""
    answer: Answer = {}
    for q in cell.asked:
        value, weight = cell.train.x[:, q], weights(cell, cell.train, q)
        seen = ~np.isnan(value)
        if cell.space.levels[q]:
            counts = np.bincount(value[seen].astype(int), weight[seen], minlength=cell.space.levels[q])
            prob = np.tile(counts / counts.sum(), (len(cell.test.x), 1))
            answer[q] = prob.argmax(1), prob
        else:
            answer[q] = np.full(len(cell.test.x), np.average(value[seen], weights=weight[seen])), None
    return answer


def by_last_value(cell: Cell) -> Answer:
    """The patient's last value before the gap, else the mode."""
    answer: Answer = {}
    for q, (mode, _) in by_mode(cell).items():
        last = history(cell.test, q)[:, 0]
        answer[q] = np.where(np.isnan(last), mode, last), None
    return answer


def by_neighbours(cell: Cell) -> Answer:
    """scikit-learn's KNN imputer; shares of neighbours are probabilities."""
    filled = KNNImputer().fit(spread(cell, cell.train)).transform(spread(cell, cell.test))
    return gather(cell, filled, probabilities=True)


def by_iteration(cell: Cell) -> Answer:
    """scikit-learn's iterative imputer, without each category's first level.

    With all levels, each is the others' complement and missing together with them: none would ever leave its mean.
    """
    imputer = IterativeImputer(random_state=0, max_iter=10, tol=1e-2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ten rounds, converged or not
        filled = imputer.fit(spread(cell, cell.train, first=1)).transform(spread(cell, cell.test, first=1))
    return gather(cell, filled, probabilities=False, first=1)


def by_trees(cell: Cell) -> Answer:
    """Boosted trees per column; the number of trees is the best one for the validation patients."""
    answer: Answer = {}
    for q in cell.asked:
        (x, value, weight), (held_x, held, held_weight) = (
            tree_rows(cell, rows, q) for rows in (cell.train, cell.validation)
        )
        settings = {"learning_rate": 0.05, "max_iter": 200, "max_leaf_nodes": 15, "random_state": 0}
        features = tree_features(cell, cell.test, q)
        if cell.space.levels[q]:
            trees = HistGradientBoostingClassifier(**settings).fit(x, value.astype(int), weight)
            place = np.searchsorted(trees.classes_, held)  # the training rows have shown every level
            rows = np.arange(len(held))
            loss = [
                -np.average(np.log(p[rows, place]), weights=held_weight) for p in trees.staged_predict_proba(held_x)
            ]
            stages = itertools.islice(trees.staged_predict_proba(features), int(np.argmin(loss)), None)
            prob = np.zeros((len(features), cell.space.levels[q]))
            prob[:, trees.classes_] = next(stages)
            prob = pool(cell, prob, q)
            answer[q] = prob.argmax(1), prob
        else:
            trees = HistGradientBoostingRegressor(**settings).fit(x, value, weight)
            loss = [np.average((p - held) ** 2, weights=held_weight) for p in trees.staged_predict(held_x)]
            stages = itertools.islice(trees.staged_predict(features), int(np.argmin(loss)), None)
            answer[q] = pool(cell, next(stages), q), None
    return answer


def by_prior(cell: Cell, one_rate: bool = False) -> Answer:
    """lacova's p(x_u | x_o) alone: no look at the measurements."""
    table, test = cell.codec.encode(cell.train.frame), cell.codec.encode(cell.test.frame)
    time = cell.space.names.index(cell.schema.time)
    prior = LongitudinalPrior.learn(cell.space, table, time, cell.seed)
    if one_rate:
        prior = LongitudinalPrior(prior.across.mixture, prior.marginal, prior.rates, time)
    belief = prior.prepare(test).belief
    return from_belief(cell, belief.mean.numpy(), belief.log_prob.exp().numpy())


def by_one_rate(cell: Cell) -> Answer:
    """The same with one rate per column, instead of one for each pair of levels."""
    return by_prior(cell, one_rate=True)


def by_joint(cell: Cell) -> Answer:
    """lacova's GP-prior VAE: q(x_u | y_o, x_o)."""
    model = lacova.GPPriorVAE(cell.schema, latent_dim=8)
    model.fit(
        cell.train.frame, cell.validation.frame, max_epochs=cell.options.epochs, seed=cell.seed, device="cpu",
        **cell.options.fit,
    )  # fmt: skip
    test = model._encode(cell.test.frame)
    prob = np.zeros((*test.x.shape, cell.space.max_levels))
    with torch.no_grad():
        for rows, batch in chunks(test, 1):
            prob[rows] = model._vae.believe(batch).log_prob.exp().numpy()
    return from_belief(cell, cell.codec.encode(model.impute(cell.test.frame)).x.numpy(), prob)


METHODS = {
    "mode": by_mode, "locf": by_last_value, "knn": by_neighbours, "iterative": by_iteration, "trees": by_trees,
    "one rate": by_one_rate, "prior": by_prior, "joint": by_joint,
}  # fmt: skip


def from_belief(cell: Cell, value: np.ndarray, prob: np.ndarray) -> Answer:
    answer: Answer = {}
    for q in cell.asked:
        if levels := cell.space.levels[q]:
            answer[q] = prob[:, q, :levels].argmax(1), prob[:, q, :levels]
        else:
            answer[q] = value[:, q], None
    return answer


def weights(cell: Cell, rows: Part, q: int) -> np.ndarray:
    """Of each row in column q: patients count once where the column is visit-constant."""
    visits = np.bincount(rows.patient)[rows.patient]
    return 1.0 / visits if cell.space.static[q] else np.ones(len(visits))


def pool(cell: Cell, values: np.ndarray, q: int) -> np.ndarray:
    """The patient's average in a visit-constant column."""
    if not cell.space.static[q]:
        return values
    patient = cell.test.patient
    return pd.DataFrame(values).groupby(patient).transform("mean").to_numpy().reshape(values.shape)


def history(rows: Part, q: int) -> np.ndarray:
    """Last and next observed value of column q in the patient's other visits, time since and until: N×4."""
    seen = ~np.isnan(rows.x[:, q])
    both = pd.DataFrame({"value": rows.x[:, q], "day": np.where(seen, rows.day, np.nan)})
    last = both.groupby(rows.patient).ffill().groupby(rows.patient).shift(1)
    after = both.groupby(rows.patient).bfill().groupby(rows.patient).shift(-1)
    return np.column_stack([last["value"], after["value"], rows.day - last["day"], after["day"] - rows.day])


def tree_features(cell: Cell, rows: Part, q: int) -> np.ndarray:
    """The row's other covariates, its measurements, and column q at the patient's other visits.

    Not so where q is visit-constant: the other visits would give the answer in training, and never in test.
    """
    past = [] if cell.space.static[q] else [history(rows, q)]
    return np.column_stack([np.delete(rows.x, q, axis=1), rows.y, *past])


def tree_rows(cell: Cell, rows: Part, q: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, values and weights of the rows that show column q."""
    seen = ~np.isnan(rows.x[:, q])
    return tree_features(cell, rows, q)[seen], rows.x[seen, q], weights(cell, rows, q)[seen]


def spread(cell: Cell, rows: Part, first: int = 0) -> np.ndarray:
    """Standardised numbers and one-hot levels (from the `first` on) of X, then Y; NaN at gaps."""
    columns = []
    for q, levels in enumerate(cell.space.levels):
        value = rows.x[:, q, None]
        hot = np.where(np.isnan(value), np.nan, value == np.arange(first, levels))
        columns.append(hot if levels else value)
    return np.column_stack([*columns, rows.y])


def gather(cell: Cell, filled: np.ndarray, probabilities: bool, first: int = 0) -> Answer:
    """Back from `spread`."""
    answer: Answer = {}
    start = 0
    for q, levels in enumerate(cell.space.levels):
        width = levels - first if levels else 1
        values = pool(cell, filled[:, start : start + width], q)
        start += width
        if q not in cell.asked:
            continue
        if not levels:
            answer[q] = values[:, 0], None
            continue
        if first:
            values = np.column_stack([1.0 - values.sum(1), values])
        answer[q] = values.argmax(1), values if probabilities else None
    return answer


def score(cell: Cell, truth: np.ndarray, answer: Answer) -> list[dict]:
    """One line per column, over the masked entries of the test patients."""
    lines = []
    first = np.r_[True, np.diff(cell.test.patient) != 0]
    for q, (guess, prob) in answer.items():
        name, levels, static = cell.space.names[q], cell.space.levels[q], cell.space.static[q]
        gone = np.isnan(cell.test.x[:, q]) & ~np.isnan(truth[:, q])
        gone = gone & first if static else gone
        line = {"column": name, "static": static, "levels": levels, "entries": int(gone.sum())}
        true, said = truth[gone, q], guess[gone]
        if not gone.any():
            pass
        elif not levels:
            line["mse"] = float(np.mean((said - true) ** 2))
        else:
            counts = np.bincount(true.astype(int), minlength=levels)
            hit = said == true
            line |= {"minority": int(counts.min()), "accuracy": float(hit.mean())}
            if (counts > 0).sum() > 1:  # else it is the accuracy
                line["balanced"] = float(np.mean([hit[true == level].mean() for level in np.flatnonzero(counts)]))
            if prob is not None:
                chosen = prob[gone][np.arange(len(true)), true.astype(int)]
                line["log_loss"] = float(-np.log(chosen.clip(LEAST_PROBABILITY)).mean())
        lines.append({k: round(v, 5) if isinstance(v, float) else v for k, v in line.items()})
    return lines


def cell_of(
    table: pd.DataFrame, schema: lacova.Schema, missing: float, seed: int, options: argparse.Namespace
) -> tuple[Cell, np.ndarray]:
    """Masked data and the true covariates of the test rows; the same for every method."""
    complete = split(table, schema, seed)
    masked = {
        name: mask(rows, schema, missing, 1000 * seed + k) for k, (name, rows) in enumerate(complete.items(), start=1)
    }
    codec = Codec.learn(schema, masked["train"])
    parts = {name: part(codec, rows) for name, rows in masked.items()}
    return Cell(schema, codec, **parts, seed=seed, options=options), part(codec, complete["test"]).x


def done() -> set[tuple]:
    if not RESULTS.exists():
        return set()
    return {tuple(json.loads(line)[k] for k in KEY) for line in RESULTS.read_text().splitlines()}


def run(options: argparse.Namespace) -> None:
    if options.data is None:
        raise SystemExit("name the folder of the data: --data, or the environment variable LACOVA_DATA.")
    torch.set_num_threads(1)
    tables = {name: TABLES[name](options.data) for name in options.datasets}
    for name, (table, schema) in tables.items():
        print(f"{name}: {table[schema.instance].nunique()} patients, {len(table)} rows, "
              f"{len(schema.measurements)} measurements, {len(schema.covariates)} covariates", flush=True)  # fmt: skip
    finished = done()
    for method, seed, missing, name in itertools.product(
        options.methods, options.seeds, options.missing, options.datasets
    ):
        key = dict(zip(KEY, (name, method, missing, seed), strict=True))
        if tuple(key.values()) in finished:
            continue
        cell, truth = cell_of(*tables[name], missing, seed, options)
        started = time.perf_counter()
        answer = METHODS[method](cell)
        took = {"seconds": round(time.perf_counter() - started, 1), "version": lacova.__version__}
        if method == "joint":
            took |= {"epochs": options.epochs}
        lines = [json.dumps(key | line | took) + "\n" for line in score(cell, truth, answer)]
        with RESULTS.open("a") as out:
            out.write("".join(lines))
        print(*key.values(), f"{took['seconds']} s", flush=True)


def plus_minus(values: pd.Series) -> str:
    """Mean and standard error over seeds."""
    values = values.dropna()
    if values.empty:
        return "-"
    error = f" ±{values.sem():.3f}".replace("0.", ".") if len(values) > 1 else ""
    return f"{values.mean():.3f}{error}"


def overview(found: pd.DataFrame) -> pd.DataFrame:
    """Means over columns; categorical columns apart, by whether they vary along the visits."""
    rows = []
    for (name, missing), here in found.groupby(["dataset", "missing"]):
        for method in [m for m in METHODS if m in set(here["method"])]:
            mine = here[here["method"] == method]
            row = {"dataset": name, "missing": missing, "method": method}
            for kind, static in (("varying", False), ("static", True)):
                group = mine[(mine["levels"] > 0) & (mine["static"] == static)].groupby("seed")
                for score in ("accuracy", "balanced", "log_loss"):
                    row[f"{kind} {score}"] = plus_minus(group[score].mean())
            row["mse"] = plus_minus(mine[mine["levels"] == 0].groupby("seed")["mse"].mean())
            rows.append(row)
    return pd.DataFrame(rows)


def columns(found: pd.DataFrame, score: str) -> pd.DataFrame:
    """Each column by method, and what to think of "joint"."""
    rows = []
    better = -1.0 if score in ("mse", "log_loss") else 1.0
    for (name, missing, column), here in found.groupby(["dataset", "missing", "column"], sort=False):
        by_seed = here.pivot_table(index="seed", columns="method", values=score)
        if by_seed.empty:
            continue
        one = here[here["method"] == here["method"].iloc[0]]
        row = {"dataset": name, "missing": missing, "column": column, "entries": int(one["entries"].sum())}
        row["rarest"] = "" if one["minority"].isna().all() else int(one["minority"].sum())
        row |= {m: plus_minus(by_seed[m]) for m in METHODS if m in by_seed}
        peers = [m for m in PEERS if m in by_seed]
        best = (better * by_seed[peers].mean()).idxmax()
        row["best peer"] = best
        row["remark"] = ""
        if row["rarest"] != "" and row["rarest"] < FEW:
            row["remark"] = "too few to tell"
        elif "joint" in by_seed:
            loss = (better * (by_seed[best] - by_seed["joint"])).dropna()
            if len(loss) > 1 and loss.mean() > 2.0 * loss.sem():
                row["remark"] = f"joint loses {loss.mean():.3f}"
        rows.append(row)
    return pd.DataFrame(rows)


def report(options: argparse.Namespace) -> None:
    found = pd.DataFrame([json.loads(line) for line in RESULTS.read_text().splitlines()])
    found = found[found["dataset"].isin(options.datasets) & found["missing"].isin(options.missing)]
    print(overview(found).to_string(index=False))
    for score in ("balanced", "log_loss", "mse"):
        print(f"\n{score} by column, mean ± standard error over seeds")
        print(columns(found[found["levels"].eq(0) == (score == "mse")], score).to_string(index=False))


def main() -> None:
    parser = options_parser(__doc__)
    parser.add_argument("--data", type=Path, default=os.environ.get("LACOVA_DATA"), help="folder with the data sets")
    parser.add_argument("--datasets", nargs="+", choices=list(TABLES), default=list(TABLES))
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--epochs", type=int, default=150)
    options = parser.parse_args()
    if options.results is not None:
        globals()["RESULTS"] = options.results
    if options.action == "run":
        run(options)
    else:
        report(options)


if __name__ == "__main__":
    main()
