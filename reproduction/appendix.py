"""docs/appendix/reproduction.md: published and obtained figures side by side, from the results file."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd

from reproduction import config
from reproduction.markdown import markdown, percent
from reproduction.summary import ORDER, RIVALS, Figure, ahead_of_all, better, by_seed, checks, frame, published

Quotes = dict[tuple[str, str, str, str, float], str]
PROSE = Path(__file__).with_name("prose")
SHOWN = ("zero", "mean", "knn", "iterative", "paper", "joint", "limit", "oracle")
IMPUTERS = ("zero", "mean", "knn", "iterative", "paper", "joint")
SETS = {"1": "Dataset 1 (independent covariates)", "2": "Dataset 2 (dependent covariates)",
        "3": "Dataset 3 (driven by time)", "3-discrete": "Dataset 3 with a discrete covariate",
        "trial": "Simulated trial", "health": "Health MNIST", "cdisc": "CDISC pilot"}  # fmt: skip
NUMBERS = {"1": 3, "2": 3, "3": 4, "3-discrete": 4, "trial": 1}  # continuous covariates that lose entries


def appendix(lines: Iterable[dict[str, Any]]) -> str:
    """Return the appendix with all tables. Cells that have not been run are blank."""
    results, quotes = frame(lines), published_quotes()
    parts = [prose("introduction"), "## In short\n", in_short(results), prose("reading")]
    for name in config.NAMES:
        parts += section(name, config.read(name), results, quotes)
    parts += [covariate_section(results, quotes), prose("figures"), prose("differences")]
    return "\n".join(part.strip("\n") + "\n" for part in parts if part)


def prose(name: str) -> str:
    return (PROSE / f"{name}.md").read_text(encoding="utf-8")


def published_quotes() -> Quotes:
    """Return the published figures in brackets."""
    quotes: Quotes = {}
    for row in published().itertuples():
        key = (row.table, row.dataset, row.covariates, row.metric, row.missing)
        quotes[key] = f"({row.mean:g})" if pd.isna(row.sd) else f"({row.mean:g} ± {row.sd:g})"
    return quotes


# --- In short -------------------------------------------------------------------------------------------------------


def in_short(results: pd.DataFrame) -> str:
    """Summarise each table and kind of network, how often the paper's order holds, and the exceptions."""
    if results.empty:
        return "There are no results yet.\n"
    cells = checks(results)
    head = ["table", "networks", "cells", "joint beats mean, KNN and paper by > 2 s.e.", "gap closed by joint: mean",
            "least", "by paper: mean", "coverage of 90% (joint)"]  # fmt: skip
    rows = []
    for (name, networks), group in cells.groupby(["table", "networks"], sort=False):
        wins = ahead_of_all(group)
        closed = {method: means(group[f"{method} closes"]) for method in ("joint", "paper")}
        coverage = means(group["coverage of 90%"])
        rows.append([
            name, networks, str(len(group)),
            f"{sum(wins)} of {len(wins)}" if wins else "",
            f"{closed['joint'].mean():.0%}" if len(closed["joint"]) else "",
            f"{closed['joint'].min():.0%}" if len(closed["joint"]) else "",
            f"{closed['paper'].mean():.0%}".replace("-", "−") if len(closed["paper"]) else "",
            f"{coverage.min():.1%} to {coverage.max():.1%}" if len(coverage) else "",
        ])  # fmt: skip
    count = results["seed"].nunique()
    text = f"{len(results):,} runs, {count} seed{'s' if count > 1 else ''}.\n\n{markdown(head, rows)}\n"
    return text + order_in_short(cells) + exceptions(cells)


def means(figures: pd.Series) -> pd.Series:
    """Return the means of those figures that have been computed."""
    return pd.Series([figure.mean for figure in figures if figure.seeds], dtype=float)


def order_in_short(cells: pd.DataFrame) -> str:
    """Count how often each step of the paper's order holds."""
    rows = []
    for worse, best in pairwise(ORDER):
        verdicts = cells[f"{worse} ≥ {best}"]
        rows.append([f"{worse} ≥ {best}", *(str(int((verdicts == word).sum())) for word in ("yes", "≈", "no"))])
    head = ["the paper's order, NLL", "holds", "within 2 s.e.", "the other way round"]
    return "\n" + markdown(head, rows)


def exceptions(cells: pd.DataFrame) -> str:
    """List the cells where joint is not ahead of a rival by two standard errors, or another bound is missed."""
    items = []
    for _, row in cells.iterrows():
        where = (
            f"{row['table']}, {SETS.get(row['dataset'], row['dataset'])}, {row['networks']}, {percent(row['missing'])}"
        )
        not_beaten = [rival for rival in RIVALS if better(row[f"joint − {rival}"]) == "no"]
        reasons = [f"joint − {rival} is {row[f'joint − {rival}'].text(1)}" for rival in not_beaten]
        closed, coverage = row["joint closes"], row["coverage of 90%"]
        if closed.seeds and closed.mean < 0.8:
            reasons.append(f"joint closes {closed.text(0, percent=True)} of the gap")
        if coverage.seeds and not 0.85 <= coverage.mean <= 0.95:
            reasons.append(f"intervals of 90% cover {coverage.text(1, percent=True)}")
        if reasons:
            items.append(f"- {where}: {'; '.join(reasons)}.\n")
    if not items:
        return "\nNo cell is an exception.\n"
    return f"\nExceptions, {len(items)} of {len(cells)} cells:\n\n" + "".join(items)


# --- A table of the paper -------------------------------------------------------------------------------------------


def section(name: str, content: dict[str, Any], results: pd.DataFrame, quotes: Quotes) -> list[str]:
    """Return the parts of one table: for each data set and kind of network, both NLLs and the comparisons."""
    parts = [f"## {content['title']}\n", f"`reproduction/tables/{name}.toml`\n"]
    decimals = 1 if name in ("trial", "cdisc") else 0
    for dataset in map(str, content["datasets"]):
        for networks, network in content["networks"].items():
            shares = network.get("missing", content["missing"])
            cells = {share: choose(results, name, dataset, networks, share) for share in shares}
            parts.append(f"### {SETS[dataset]}, {networks} networks\n")
            parts.append("Predictive NLL per row.\n\n" + by_share(cells, "nll", decimals, gaps=True))
            parts.append("Plug-in NLL, published in brackets.\n\n" + beside(cells, name, dataset, quotes, decimals))
            parts.append(check_table(cells))
    if name == "discrete":
        cells = {share: choose(results, name, "3-discrete", "dense", share) for share in content["missing"]}
        parts.append("### Mean squared error of Y, dense networks\n")
        parts.append("Pixels; published in brackets.\n\n" + beside(cells, name, "3-discrete", quotes, 4, "mse", "mse"))
    return parts


def choose(results: pd.DataFrame, name: str, dataset: str, networks: str, share: float) -> pd.DataFrame:
    """Return the results of one cell."""
    if results.empty:
        return results
    rows = (results["table"] == name) & (results["dataset"] == dataset) & (results["networks"] == networks)
    return results[rows & (results["missing"] == share)]


def figures(cell: pd.DataFrame, metric: str) -> dict[str, Figure]:
    """Return one score of each method of a cell."""
    if cell.empty:
        return {}
    values = by_seed(cell, metric)
    return {method: Figure.of(values[method]) for method in values}


def by_share(cells: dict[float, pd.DataFrame], metric: str, decimals: int, gaps: bool = False) -> str:
    """Return a table of methods by share of missing entries."""
    scores = {share: figures(cell, metric) for share, cell in cells.items()}
    rows = [[m, *(scores[share].get(m, Figure()).text(decimals) for share in cells)] for m in SHOWN]
    if gaps:
        for method in ("paper", "joint"):
            closed = [checks(c)[f"{method} closes"].iloc[0] if len(c) else Figure() for c in cells.values()]
            rows.append([f"gap closed by {method}", *(figure.text(0, percent=True) for figure in closed)])
    return markdown(["", *map(percent, cells)], rows)


def beside(
    cells: dict[float, pd.DataFrame], name: str, dataset: str, quotes: Quotes, decimals: int,
    metric: str = "nll_plugin", published_metric: str = "nll",
) -> str:  # fmt: skip
    """Return our values of the paper's own score, with the published ones in brackets."""
    scores = {share: figures(cell, metric) for share, cell in cells.items()}
    rows = []
    for method in SHOWN:
        row = [method]
        for share in cells:
            quote = quotes.get((name, dataset, method, published_metric, share), "")
            row.append(f"{scores[share].get(method, Figure()).text(decimals)} {quote}".strip())
        rows.append(row)
    return markdown(["", *map(percent, cells)], rows)


def check_table(cells: dict[float, pd.DataFrame]) -> str:
    """Return paired differences, the paper's order, and coverage."""
    steps = [f"{a} ≥ {b}" for a, b in pairwise(ORDER)]
    rows = []
    for share, cell in cells.items():
        row = [percent(share)]
        if cell.empty:
            rows.append(row + [""] * (len(RIVALS) + len(steps) + 2))
            continue
        verdicts = checks(cell).iloc[0]
        gains = [verdicts[f"joint − {rival}"] for rival in RIVALS]
        row += [gain.text(1) for gain in gains]
        wins = [better(gain) for gain in gains]
        row.append("" if not all(wins) else "yes" if set(wins) == {"yes"} else "no")
        rows.append([*row, *(verdicts[step] for step in steps), verdicts["coverage of 90%"].text(1, percent=True)])
    head = ["missing", *(f"joint − {rival}" for rival in RIVALS), "all > 2 s.e.", *steps, "coverage of 90% (joint)"]
    return markdown(head, rows)


# --- Covariates -----------------------------------------------------------------------------------------------------


def covariate_section(results: pd.DataFrame, quotes: Quotes) -> str:
    """Return tab:MSE_labels, tab:MSE_label_disc_cov and tab:MSE_label_clinical."""
    parts = [prose("covariates")]
    for name in config.NAMES:
        content = config.read(name)
        for dataset in map(str, content["datasets"]):
            cells = {share: choose(results, name, dataset, "dense", share) for share in content["missing"]}
            parts.append(f"### {SETS[dataset]}, {content['model']}, dense networks\n")
            for metric, title, decimals in (
                ("covariate_mse", "Squared error of missing numbers", 2),
                ("covariate_accuracy", "Share of missing categories that are right", 3),
            ):
                if metric == "covariate_accuracy" and dataset in ("1", "2", "3"):
                    continue
                parts.append(title + ".\n\n" + covariate_table(cells, metric, decimals))
            parts += _as_published(cells, name, dataset, quotes)
    return "\n".join(part.strip("\n") + "\n" for part in parts)


def covariate_table(cells: dict[float, pd.DataFrame], metric: str, decimals: int) -> str:
    """Return one score of imputed covariates, methods by share of missing entries."""
    rows = [
        [method, *(figures(cell, metric).get(method, Figure()).text(decimals) for cell in cells.values())]
        for method in IMPUTERS
    ]
    return markdown(["", *map(percent, cells)], rows)


def _as_published(cells: dict[float, pd.DataFrame], name: str, dataset: str, quotes: Quotes) -> list[str]:
    """Return the error as the paper seems to count it: summed over a row's numbers, averaged over all rows."""
    metrics = {metric for table, there, _, metric, _ in quotes if (table, there) == (name, dataset)}
    if "covariate_mse" not in metrics:
        return []
    rows, count = [], NUMBERS[dataset]
    for method in ("mean", "knn", "paper", "joint"):
        row = [method]
        for share, cell in cells.items():
            figure = figures(cell, "covariate_mse_all_rows").get(method, Figure())
            total = Figure(count * figure.mean, count * figure.error, figure.seeds).text(2)
            row.append(f"{total} {quotes.get((name, dataset, method, 'covariate_mse', share), '')}".strip())
        rows.append(row)
    parts = ["Sum over a row's numbers, complete rows counting 0; published in brackets.\n\n"
             + markdown(["", *map(percent, cells)], rows)]  # fmt: skip
    if "covariate_accuracy" in metrics:
        rows = []
        for method in ("mean", "knn", "paper", "joint"):
            theirs = [quotes.get((name, dataset, method, "covariate_accuracy", share), "") for share in cells]
            ours = [figures(c, "covariate_accuracy").get(method, Figure()).text(3) for c in cells.values()]
            rows.append([method, *(f"{a} {b}".strip() for a, b in zip(ours, theirs, strict=True))])
        parts.append("Accuracy; published in brackets.\n\n" + markdown(["", *map(percent, cells)], rows))
    return parts
