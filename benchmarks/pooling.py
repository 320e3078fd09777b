"""Measure how often 5% tests of pooled analyses reject a true null, and whether Monte Carlo errors are right.

    python benchmarks/pooling.py [--repetitions 1000] [--only visits,dropout,terms,logistic,errors]

- visits: complete data, 4 visits of each patient (or 1 to 7), a random intercept, and an arm without an effect; also
  CR1 with G − 1 degrees of freedom, which lacova does not use.
- dropout: the same with patients who leave, 20 proper imputations by normal regressions on earlier visits and arm.
- terms: D1 of a factor of four levels whose outcome is missing for 40%, with proper imputations.
- logistic: the same as visits and dropout for an outcome of two levels, whose patients have chances of their own
  (beta-binomial); the log-odds ratio of the arm is 0 or 1, and 95% intervals are to cover it. Also CR1 with G − 1
  degrees of freedom, and CR3 (Mancl and DeRouen 2001) with G − p, which lacova does not use.
- errors: Monte Carlo errors by the jackknife, relative to the spread over new sets of imputations of the same table.
"""

from __future__ import annotations

import argparse
import warnings
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import expit, stdtr, stdtrit

import lacova
from lacova.analysis.design import orthogonal_basis
from lacova.analysis.least_squares import Fit, clustered, least_squares
from lacova.analysis.logistic import Maximum, clustered_logistic, logistic, maximum
from lacova.analysis.mixed import mixed
from lacova.analysis.pooling import MonteCarloWarning
from lacova.data.errors import DataError

NAMES = ["Intercept", "arm", "week"]
ANALYSES = {
    "rows independent": ("", None),
    "clustered (CR2)": ("", "patient"),
    "mixed (REML)": (" + (1 | patient)", "auto"),
}


def cr1(y: Any, basis: Any, codes: Any) -> Fit:
    """Fit with the variance of Liang and Zeger, times G/(G − 1) (N − 1)/(N − p), and G − 1 degrees of freedom."""
    (q, c), groups = basis, codes.max() + 1
    gamma = q.T @ y
    scores = np.zeros((groups, len(c)))
    np.add.at(scores, codes, q * (y - q @ gamma)[:, None])
    factor = groups / (groups - 1) * (len(y) - 1) / (len(y) - len(c))
    return Fit(c @ gamma, factor * c @ scores.T @ scores @ c.T, np.full(len(c), groups - 1.0))


def visits(rng: Any, patients: int, treated: int, equal: bool) -> Iterator[tuple[str, bool]]:
    counts = np.full(patients, 4) if equal else rng.integers(1, 8, patients)
    codes, week = np.repeat(np.arange(patients), counts), np.concatenate([np.arange(float(n)) for n in counts])
    arm = (codes < treated).astype(float)
    x = np.column_stack([np.ones(len(codes)), arm, week])
    y = rng.normal(size=patients)[codes] + rng.normal(size=len(codes))
    basis = orthogonal_basis(x, NAMES, 0)
    fits = {
        "rows independent": least_squares(y, basis), "clustered (CR1)": cr1(y, basis, codes),
        "clustered (CR2)": clustered(y, basis, codes, NAMES, "patient"),
        "mixed (REML)": mixed(y, basis, x[:, :1], codes, "patient"),
    }  # fmt: skip
    for name, fit in fits.items():
        t = np.abs(fit.coefficients) / np.sqrt(np.diag(fit.covariance))
        yield name, 2 * stdtr(fit.dof[1], -t[1]) < 0.05


def posterior_draw(rng: Any, y: Any, x: Any, new: Any) -> Any:
    """Draw outcomes of new rows from a normal regression, its coefficients and variance from their posterior."""
    inverse = np.linalg.inv(x.T @ x)
    beta = inverse @ x.T @ y
    variance = np.square(y - x @ beta).sum() / rng.chisquare(len(y) - x.shape[1])
    beta = rng.multivariate_normal(beta, variance * inverse)
    return new @ beta + np.sqrt(variance) * rng.normal(size=len(new))


def dropout(rng: Any, patients: int) -> Iterator[tuple[str, bool]]:
    arm = np.arange(patients) % 2
    y = rng.normal(size=(patients, 1)) + rng.normal(size=(patients, 4))
    stays = np.ones((patients, 4), bool)
    for k in range(1, 4):  # whoever was high last time leaves more often: missing at random
        stays[:, k] = stays[:, k - 1] & (rng.random(patients) > 0.15 * (1 + (y[:, k - 1] > 0.5)))
    tables = []
    for draw in range(20):
        full = y.copy()
        for k in range(1, 4):
            x, left = np.column_stack([np.ones(patients), arm, full[:, :k]]), ~stays[:, k]
            full[left, k] = posterior_draw(rng, y[stays[:, k], k], x[stays[:, k]], x[left])
        columns = {
            "draw": draw,
            "patient": np.repeat(np.arange(patients), 4),
            "week": np.tile(np.arange(4.0), patients),
        }
        tables.append(pd.DataFrame(columns | {"arm": np.repeat(arm, 4), "y": full.ravel()}))
    completed = pd.concat(tables)
    for name, (effects, cluster) in ANALYSES.items():
        pooled = lacova.pool_regression(completed, f"y ~ arm + week{effects}", cluster=cluster)
        yield f"{name}, arm", pooled.loc["arm", "p_value"] < 0.05
        tests = lacova.pool_terms(completed, f"y ~ arm * week{effects}", ["arm + arm:week"], cluster=cluster)
        yield f"{name}, D1 of arm + arm:week", tests["p_value"].iloc[0] < 0.05


def other_sandwiches(best: Maximum, codes: Any) -> dict[str, Fit]:
    """Fit with two other variances: CR1 with G − 1 degrees of freedom, and CR3 with G − p."""
    (q, c), groups = best.basis, codes.max() + 1
    scores, m = np.zeros((groups, len(c))), np.zeros((groups, len(c), len(c)))
    np.add.at(scores, codes, q * best.residuals[:, None])
    np.add.at(m, codes, q[:, :, None] * q[:, None, :])
    adjusted = np.linalg.solve(np.eye(len(c)) - m, scores[..., None])[..., 0]  # Q_gᵀ (I − Q_g Q_gᵀ)⁻¹ e_g
    factor = groups / (groups - 1) * (len(q) - 1) / (len(q) - len(c))
    return {
        "clustered (CR1)": Fit(best.coefficients, factor * c @ scores.T @ scores @ c.T, np.full(len(c), groups - 1.0)),
        "clustered (CR3)": Fit(best.coefficients, c @ adjusted.T @ adjusted @ c.T, np.full(len(c), groups - len(c))),
    }


def levels(rng: Any, patients: int, treated: int, effect: float) -> tuple[Any, Any, Any]:
    """Return outcomes of 4 visits, patients and arm; two visits of a patient have correlation 0.3."""
    arm = (np.arange(patients) < treated).astype(float)
    mean, size = expit(-0.5 + effect * arm), 1.0 / 0.3 - 1.0
    chance = rng.beta(size * mean, size * (1.0 - mean))
    return (rng.random((patients, 4)) < chance[:, None]).astype(float), np.repeat(np.arange(patients), 4), arm


def level_visits(rng: Any, patients: int, treated: int, effect: float) -> Iterator[tuple[str, bool]]:
    y, codes, arm = levels(rng, patients, treated, effect)
    x = np.column_stack([np.ones(len(codes)), np.repeat(arm, 4), np.tile(np.arange(4.0), patients)])
    basis = orthogonal_basis(x, NAMES, 0)
    try:
        best = maximum(y.ravel(), basis, NAMES)
    except DataError:
        yield "no finite estimate", True
        return
    yield "no finite estimate", False
    fits = {
        "rows independent": logistic(y.ravel(), basis, NAMES),
        "clustered (CR2)": clustered_logistic(y.ravel(), basis, codes, NAMES, "patient"),
    }
    for name, fit in (fits | other_sandwiches(best, codes)).items():
        distance = np.abs(fit.coefficients - [0.0, effect, 0.0]) / np.sqrt(np.diag(fit.covariance))
        for j, what in ((1, "arm"), (2, "week")):
            yield f"{name}, {what} not covered", distance[j] > stdtrit(fit.dof[j], 0.975)


def level_draw(rng: Any, y: Any, x: Any, new: Any) -> Any:
    """Draw levels of new rows from a logistic regression, with a normal prior of variance 4 and approximation."""
    beta, information = np.zeros(x.shape[1]), np.eye(x.shape[1]) / 4.0
    for _ in range(20):
        mu = expit(x @ beta)
        information = (x * (mu * (1.0 - mu))[:, None]).T @ x + np.eye(x.shape[1]) / 4.0
        beta = beta + np.linalg.solve(information, x.T @ (y - mu) - beta / 4.0)
    drawn = rng.multivariate_normal(beta, np.linalg.inv(information))
    return (rng.random(len(new)) < expit(new @ drawn)).astype(float)


def level_dropout(rng: Any, patients: int, effect: float) -> Iterator[tuple[str, bool]]:
    y, codes, arm = levels(rng, patients, patients // 2, effect)
    stays = np.ones((patients, 4), bool)
    for k in range(1, 4):  # whoever had the event last time leaves more often: missing at random
        stays[:, k] = stays[:, k - 1] & (rng.random(patients) > 0.15 * (1 + y[:, k - 1]))
    tables = []
    for draw in range(20):
        full = y.copy()
        for k in range(1, 4):
            x, left = np.column_stack([np.ones(patients), arm, full[:, :k].mean(axis=1)]), ~stays[:, k]
            full[left, k] = level_draw(rng, y[stays[:, k], k], x[stays[:, k]], x[left])
        columns = {"draw": draw, "patient": codes, "week": np.tile(np.arange(4.0), patients)}
        tables.append(pd.DataFrame(columns | {"arm": np.repeat(arm, 4), "y": full.ravel()}))
    completed = pd.concat(tables)
    for name, cluster in {"rows independent": None, "clustered (CR2)": "patient"}.items():
        options: Any = {"regression": "logistic", "cluster": cluster}
        pooled = lacova.pool_regression(completed, "y ~ arm + week", **options).loc["arm"]
        yield f"{name}, arm not covered", not pooled["lower"] < effect < pooled["upper"]
        if not effect:
            try:
                tests = lacova.pool_terms(completed, "y ~ arm * week", ["arm + arm:week"], **options)
            except DataError:  # an arm without events from the second visit on
                continue
            yield f"{name}, D1 of arm + arm:week", tests["p_value"].iloc[0] < 0.05


def factor(rng: Any, rows: int) -> tuple[pd.DataFrame, Any]:
    table = pd.DataFrame({"group": np.array(list("abcd"))[np.arange(rows) % 4], "y": rng.normal(size=rows)})
    return table, (rng.random(rows) < 0.4) & (np.arange(rows) >= 8)  # two of each group are observed


def imputed(rng: Any, table: pd.DataFrame, gaps: Any, draws: int) -> pd.DataFrame:
    x, y = pd.get_dummies(table["group"]).to_numpy(float), table["y"].to_numpy()
    tables = []
    for draw in range(draws):
        full = y.copy()
        full[gaps] = posterior_draw(rng, y[~gaps], x[~gaps], x[gaps])
        tables.append(table.assign(y=full, draw=draw))
    return pd.concat(tables)


def terms(rng: Any, rows: int, draws: int) -> Iterator[tuple[str, bool]]:
    completed = imputed(rng, *factor(rng, rows), draws)
    yield "D1", lacova.pool_terms(completed, "y ~ group", cluster=None).loc["group", "p_value"] < 0.05


def errors(rng: Any, rows: int, draws: int, sets: int) -> pd.DataFrame:
    """Return the reported Monte Carlo error, root mean square, relative to the spread over sets of imputations."""
    table, gaps = factor(rng, rows)
    table["y"] += 0.6 * (table["group"] == "b")
    results = [lacova.pool_regression(imputed(rng, table, gaps, draws), "y ~ group").loc["group[T.b]"]
               for _ in range(sets)]  # fmt: skip
    found = pd.DataFrame(results)
    figures = ["estimate", "std_error", "p_value"]
    reported = [np.sqrt(np.square(found[f"mc_{name}"]).mean()) for name in figures]
    spread = [found[name].std() for name in figures]
    return pd.DataFrame({"reported": reported, "spread": spread}, index=figures).assign(
        ratio=lambda table: table["reported"] / table["spread"]
    )


def rates(title: str, simulate: Any, repetitions: int, *settings: Any) -> None:
    """Print the percentage of rejections, with its binomial standard error."""
    rng, rejected = np.random.default_rng(0), defaultdict(list)
    for _ in range(repetitions):
        for name, rejects in simulate(rng, *settings):
            rejected[name].append(rejects)
    print(title)
    for name, each in rejected.items():
        share = np.mean(each)
        print(f"  {name:42} {share:6.1%} ± {np.sqrt(share * (1 - share) / len(each)):.1%}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=1000)
    parser.add_argument("--only", default="visits,dropout,terms,logistic,errors", help="parts, separated by commas")
    options = parser.parse_args()
    parts, count = options.only.split(","), options.repetitions
    warnings.simplefilter("ignore", MonteCarloWarning)  # what is judged is the mean of many repetitions
    for patients, few in ((30, 5), (60, 9)) if "visits" in parts else ():
        for treated in (patients // 2, few):
            for equal in (True, False):
                words = "4 visits" if equal else "1 to 7 visits"
                rates(f"{patients} patients, {treated} treated, {words}", visits, count, patients, treated, equal)
    for patients in (30, 60) if "dropout" in parts else ():
        rates(f"{patients} patients, dropout, 20 imputations", dropout, count, patients)
    for rows, draws in ((40, 10), (40, 20), (120, 10), (120, 20)) if "terms" in parts else ():
        rates(f"{rows} rows, {draws} imputations", terms, count, rows, draws)
    for patients, treated in ((30, 15), (30, 5), (60, 30), (60, 9)) if "logistic" in parts else ():
        for effect in (0.0, 1.0):
            words = f"{patients} patients, {treated} treated, 4 visits, two levels, log-odds ratio {effect:g}"
            rates(words, level_visits, count, patients, treated, effect)
    for patients in (30, 60) if "logistic" in parts else ():
        for effect in (0.0, 1.0):
            words = f"{patients} patients, dropout, 20 imputations, two levels, log-odds ratio {effect:g}"
            rates(words, level_dropout, count, patients, effect)
    if "errors" in parts:
        print("Monte Carlo errors of 20 imputations")
        print(errors(np.random.default_rng(0), 80, 20, min(count, 1000)).round(4).to_string())


if __name__ == "__main__":
    main()
