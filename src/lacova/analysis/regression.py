"""Regressions on several completed tables, pooled: the commonest analyses after `impute(draws=)`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from lacova.analysis.clusters import check_column, chosen_cluster
from lacova.analysis.design import Basis, Design, Floats, design, named_terms, orthogonal_basis
from lacova.analysis.least_squares import Fit, clustered, least_squares
from lacova.analysis.logistic import clustered_logistic, logistic
from lacova.analysis.mixed import mixed
from lacova.analysis.pooling import pool
from lacova.analysis.wald import pool_wald
from lacova.data.errors import DataError, about
from lacova.data.io.dataframes import to_pandas

REGRESSIONS = ("linear", "logistic")


def pool_regression(
    completed: Any, formula: str, *, regression: str = "linear", cluster: str | None = "auto", confidence: float = 0.95
) -> pd.DataFrame:
    """Fit a linear or logistic regression to each completed table, and combine the coefficients by Rubin's rules.

    Visits of a patient are no independent evidence. Name the column of patients as `cluster`, or give each patient a
    random effect in the formula, as in R's lme4: "y ~ arm * week + (1 | patient)", or "(1 + week | patient)" with a
    random slope. Random effects are those of linear regressions.

    A logistic regression is fitted by maximum likelihood, and pooled on the scale of log-odds. Its outcome has two
    levels: text, True and False, or two numbers such as 0 and 1. The event is the second level: the higher number,
    True, the last in the order of a categorical column or of the alphabet. `I(stage == "iv") ~ age` states it.

    Args:
        completed: the result of `model.impute(table, draws=50)`: completed tables, numbered in a column `draw`.
        formula: as in R, such as "weight ~ baseline + arm"; text makes indicators against its first level. Functions
            and arithmetic are those of formulaic: "log(alt) ~ C(grade)", "I(weight - baseline) ~ arm".
        regression: "linear", or "logistic" for an outcome of two levels.
        cluster: a column, such as that of patients: standard errors are robust to any correlation between rows that
            share its value (CR2, with the degrees of freedom of Bell and McCaffrey; of a logistic regression, those
            of the weighted fit, as in Kauermann and Carroll 2001). None states that rows are independent. With
            "auto", the schema's instance column is the cluster if the table came from `impute` as pandas and has
            several rows of an instance; of other tables, one that seems to hold several rows of a patient is refused.
            A formula with random effects needs no cluster.
        confidence: the confidence of the intervals.

    Returns:
        one row per coefficient, with the columns of `pool`. Degrees of freedom are Barnard and Rubin's, given those of
        the complete table: rows less coefficients, Bell and McCaffrey's, or for a mixed model (REML) Satterthwaite's.
        Logistic regression adds `odds_ratio`, `odds_ratio_lower` and `odds_ratio_upper`, the exponentials of estimate
        and limits; that of the intercept is the odds where all terms are 0. `attrs["analysis"]` says which analysis it
        is, and which level is the event.

    Examples:
        >>> table = pd.DataFrame({"draw": [0] * 4 + [1] * 4, "x": [0.0, 1, 2, 3] * 2, "y": [0.0, 1, 3, 3, 0, 1, 3, 3]})
        >>> pool_regression(table, "y ~ x")["estimate"].round(2).to_dict()
        {'Intercept': 0.1, 'x': 1.1}
        >>> table = pd.DataFrame({"arm": list("aaaabbbb"), "well": [0, 0, 0, 1, 0, 1, 1, 1]})
        >>> completed = pd.concat([table.assign(draw=k) for k in range(2)])
        >>> pooled = pool_regression(completed, "well ~ arm", regression="logistic")
        >>> pooled["odds_ratio"].round(2).to_dict(), pooled.attrs["analysis"]
        ({'Intercept': 0.33, 'arm[T.b]': 9.0}, 'logistic regression of well = 1 (against 0), rows independent')
    """
    fits = fit_tables(completed, formula, cluster, regression)
    estimates = pd.DataFrame([fit.coefficients for fit in fits.tables], columns=fits.design.names)
    variances = pd.DataFrame([np.diag(fit.covariance) for fit in fits.tables], columns=fits.design.names)
    pooled = pool(estimates, variances, dof=mean_dof([fit.dof for fit in fits.tables]), confidence=confidence)
    if regression == "logistic":
        pooled = _with_odds_ratios(pooled)
    pooled.attrs["analysis"] = fits.analysis
    return pooled


def pool_terms(
    completed: Any,
    formula: str,
    terms: Sequence[str] | None = None,
    *,
    regression: str = "linear",
    cluster: str | None = "auto",
) -> pd.DataFrame:
    """Test all coefficients of a term at once, pooled: all levels of a factor, or all of an interaction.

    Args:
        completed: completed tables, as in `pool_regression`.
        formula: as in `pool_regression`.
        terms: terms of the formula, such as ["arm", "arm:visit"]; several that are to be tested together are joined by
            +: ["arm + arm:visit"]. Each term of the formula without it.
        regression: as in `pool_regression`.
        cluster: as in `pool_regression`.

    Returns:
        one row per test, with the columns of `pool_wald`.

    Examples:
        >>> table = pd.DataFrame({"arm": list("abc") * 4, "y": [1.0, 2, 4, 1, 3, 4, 2, 2, 5, 1, 2, 4]})
        >>> completed = pd.concat([table.assign(draw=k) for k in range(3)])
        >>> pool_terms(completed, "y ~ arm").loc["arm", ["df1", "p_value"]].round(4).to_dict()
        {'df1': 2.0, 'p_value': 0.0001}
    """
    fits = fit_tables(completed, formula, cluster, regression)
    chosen = {text: named_terms(text, fits.design) for text in (terms or fits.design.terms)}
    rows = []
    for columns in chosen.values():
        covariances, degrees = zip(*(fit.joint(columns) for fit in fits.tables), strict=True)
        estimates = [fit.coefficients[columns] for fit in fits.tables]
        rows.append(pool_wald(estimates, covariances, dof=float(mean_dof(degrees))))
    if not rows:
        raise DataError(f"formula {formula!r} has no term to test; expected one such as 'y ~ x + arm'.")
    tests = pd.DataFrame(rows, index=pd.Index(list(chosen)))
    tests.attrs["analysis"] = fits.analysis
    return tests


def _with_odds_ratios(pooled: pd.DataFrame) -> pd.DataFrame:
    """Return the pooled log-odds with odds ratios and their limits, after those of the log-odds."""
    with np.errstate(over="ignore"):  # an odds ratio per unit of a column of tiny values may have no number
        odds = np.exp(pooled[["estimate", "lower", "upper"]].to_numpy())
    after = list(pooled.columns).index("upper") + 1
    for k, name in enumerate(("odds_ratio", "odds_ratio_lower", "odds_ratio_upper")):
        pooled.insert(after + k, name, odds[:, k])
    return pooled


class Fits(NamedTuple):
    """The fits to all completed tables, their design, and the analysis in words."""

    tables: list[Fit]
    design: Design
    analysis: str


def fit_tables(completed: Any, formula: str, cluster: str | None, regression: str) -> Fits:
    """Fit the regression to each completed table."""
    if regression not in REGRESSIONS:
        raise ValueError(f"regression must be 'linear' or 'logistic'; got {regression!r}.")
    frame, _ = to_pandas(completed)
    if "draw" not in frame.columns:
        raise DataError(
            "the table has no column 'draw' that numbers completed tables; give what impute(draws=50) made."
        )
    frame = frame.reset_index(drop=True)
    whole = design(frame, formula, binary=regression == "logistic")
    if whole.group is not None:
        if cluster not in (None, "auto", whole.group):
            raise DataError(
                f"the formula has random effects of {whole.group!r}, and cluster is {cluster!r}; give one of the two."
            )
        by: str | None = check_column(frame, whole.group)
    else:
        by = chosen_cluster(frame, whole, cluster)
    fit = _analysis(whole, by)
    tables = []
    draw = frame["draw"].to_numpy()
    for k in pd.unique(draw):
        rows = draw == k
        basis = orthogonal_basis(whole.x[rows], whole.names, k)
        codes = None if by is None else pd.factorize(frame.loc[rows, by])[0]
        with about(f"in table {k}" + ("" if whole.event is None else f", outcome {whole.event}")):
            tables.append(fit(whole.y[rows], basis, None if whole.z is None else whole.z[rows], codes))
    return Fits(tables, whole, _words(whole, by, frame))


def _analysis(whole: Design, by: str | None) -> Callable[[Floats, Basis, Any, Any], Fit]:
    """Return the analysis of one table, given its outcome, basis, random effects and clusters."""
    if whole.event is not None:
        if by is None:
            return lambda y, basis, z, codes: logistic(y, basis, whole.names)
        return lambda y, basis, z, codes: clustered_logistic(y, basis, codes, whole.names, by)
    if by is None:
        return lambda y, basis, z, codes: least_squares(y, basis)
    if whole.group is None:
        return lambda y, basis, z, codes: clustered(y, basis, codes, whole.names, by)
    return lambda y, basis, z, codes: mixed(y, basis, z, codes, by)


def _words(whole: Design, by: str | None, frame: pd.DataFrame) -> str:
    method = "least squares" if whole.event is None else f"logistic regression of {whole.event}"
    if by is None:
        return f"{method}, rows independent"
    count = f"{frame[by].nunique()} values of {by!r}"
    if whole.group is None:
        return f"{method}, standard errors robust to clusters ({count})"
    return f"mixed model by REML, random effects of {count}"


def mean_dof(degrees: Sequence[Any]) -> Floats:
    """Return the mean degrees of freedom: 1/ν, the relative error of a squared standard error, is averaged."""
    mean: Floats = 1.0 / np.mean(1.0 / np.asarray(degrees, dtype=float), axis=0)
    return mean
