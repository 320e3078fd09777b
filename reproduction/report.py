"""docs/reproduction.md: published and obtained side by side, from the results file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd

from reproduction import config
from reproduction.summary import ORDER, RIVALS, Figure, better, by_seed, checks, frame, published

Quotes = dict[tuple[str, str, str, str, float], str]
PAGE = Path(__file__).parents[1] / "docs" / "reproduction.md"
PROSE = Path(__file__).with_name("prose")
SHOWN = ("zero", "mean", "knn", "iterative", "paper", "joint", "limit", "oracle")
SETS = {"1": "Dataset 1 (independent covariates)", "2": "Dataset 2 (dependent covariates)",
        "3": "Dataset 3 (driven by time)", "3-discrete": "Dataset 3 with a discrete covariate",
        "trial": "Simulated trial", "health": "Health MNIST", "cdisc": "CDISC pilot"}  # fmt: skip
NUMBERS = {"1": 3, "2": 3, "3": 4, "3-discrete": 4, "trial": 1}  # continuous covariates that lose entries


def page(lines: Iterable[dict[str, Any]]) -> str:
    """The whole page. Cells that have not been run are blank."""
    found, known = frame(lines), quotes()
    parts = [prose("introduction"), "## In short\n", in_short(found), prose("reading")]
    for name in config.NAMES:
        parts += section(name, config.read(name), found, known)
    parts += [covariate_section(found, known), prose("figures"), prose("differences")]
    return "\n".join(part.strip("\n") + "\n" for part in parts if part)


def prose(name: str) -> str:
    return (PROSE / f"{name}.md").read_text(encoding="utf-8")


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [list(head), ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def percent(level: float) -> str:
    return f"{level:.0%}"


def quotes() -> Quotes:
    """The published figures, in brackets."""
    said: Quotes = {}
    for row in published().itertuples():
        key = (row.table, row.dataset, row.covariates, row.metric, row.missing)
        said[key] = f"({row.mean:g})" if pd.isna(row.sd) else f"({row.mean:g} ± {row.sd:g})"
    return said


# --- In short -------------------------------------------------------------------------------------------------------


def in_short(found: pd.DataFrame) -> str:
    if found.empty:
        return "There are no results yet.\n"
    told = checks(found)
    head = ["table", "networks", "cells", "joint beats mean, KNN and paper by > 2 s.e.", "gap closed by joint: mean",
            "least", "by paper: mean", "coverage of 90% (joint)"]  # fmt: skip
    rows = []
    for (name, networks), cells in told.groupby(["table", "networks"], sort=False):
        wins = [[better(row[f"joint − {rival}"]) for rival in RIVALS] for _, row in cells.iterrows()]
        judged = [win for win in wins if all(win)]
        closed = {m: _means(cells[f"{m} closes"]) for m in ("joint", "paper")}
        cover = _means(cells["coverage of 90%"])
        rows.append([
            name, networks, str(len(cells)),
            f"{sum(set(win) == {'yes'} for win in judged)} of {len(judged)}" if judged else "",
            f"{closed['joint'].mean():.0%}" if len(closed["joint"]) else "",
            f"{closed['joint'].min():.0%}" if len(closed["joint"]) else "",
            f"{closed['paper'].mean():.0%}".replace("-", "−") if len(closed["paper"]) else "",
            f"{cover.min():.1%} to {cover.max():.1%}" if len(cover) else "",
        ])  # fmt: skip
    count = found["seed"].nunique()
    text = f"{len(found):,} runs, {count} seed{'s' if count > 1 else ''}.\n\n{markdown(head, rows)}\n"
    return text + order_in_short(told) + exceptions(told)


def _means(figures: pd.Series) -> pd.Series:
    return pd.Series([figure.mean for figure in figures if figure.seeds], dtype=float)


def order_in_short(told: pd.DataFrame) -> str:
    """How often each step of the paper's order holds."""
    rows = []
    for worse, best in pairwise(ORDER):
        said = told[f"{worse} ≥ {best}"]
        rows.append([f"{worse} ≥ {best}", *(str(int((said == word).sum())) for word in ("yes", "≈", "no"))])
    head = ["the paper's order, NLL", "holds", "within 2 s.e.", "the other way round"]
    return "\n" + markdown(head, rows)


def exceptions(told: pd.DataFrame) -> str:
    """The cells in which joint is not better than a rival by two standard errors, or another bound is missed."""
    items = []
    for _, row in told.iterrows():
        where = (
            f"{row['table']}, {SETS.get(row['dataset'], row['dataset'])}, {row['networks']}, {percent(row['missing'])}"
        )
        weak = [rival for rival in RIVALS if better(row[f"joint − {rival}"]) == "no"]
        said = [f"joint − {rival} is {row[f'joint − {rival}'].text(1)}" for rival in weak]
        closed, cover = row["joint closes"], row["coverage of 90%"]
        if closed.seeds and closed.mean < 0.8:
            said.append(f"joint closes {closed.text(0, percent=True)} of the gap")
        if cover.seeds and not 0.85 <= cover.mean <= 0.95:
            said.append(f"intervals of 90% cover {cover.text(1, percent=True)}")
        if said:
            items.append(f"- {where}: {'; '.join(said)}.\n")
    if not items:
        return "\nNo cell is an exception.\n"
    return f"\nExceptions, {len(items)} of {len(told)} cells:\n\n" + "".join(items)


# --- A table of the paper -------------------------------------------------------------------------------------------


def section(name: str, content: dict[str, Any], found: pd.DataFrame, known: Quotes) -> list[str]:
    parts = [f"## {content['title']}\n", f"`reproduction/tables/{name}.toml`\n"]
    decimals = 1 if name in ("trial", "cdisc") else 0
    for dataset in map(str, content["datasets"]):
        for networks, network in content["networks"].items():
            levels = network.get("missing", content["missing"])
            cells = {level: choose(found, name, dataset, networks, level) for level in levels}
            parts.append(f"### {SETS[dataset]}, {networks} networks\n")
            parts.append("Predictive NLL per row.\n\n" + by_level(cells, "nll", decimals, gaps=True))
            parts.append("Plug-in NLL, published in brackets.\n\n" + beside(cells, name, dataset, known, decimals))
            parts.append(check_table(cells))
    if name == "discrete":
        cells = {level: choose(found, name, "3-discrete", "dense", level) for level in content["missing"]}
        parts.append("### Mean squared error of Y, dense networks\n")
        parts.append("Pixels; published in brackets.\n\n" + beside(cells, name, "3-discrete", known, 4, "mse", "mse"))
    return parts


def choose(found: pd.DataFrame, name: str, dataset: str, networks: str, level: float) -> pd.DataFrame:
    if found.empty:
        return found
    mine = (found["table"] == name) & (found["dataset"] == dataset) & (found["networks"] == networks)
    return found[mine & (found["missing"] == level)]


def figures(cell: pd.DataFrame, metric: str) -> dict[str, Figure]:
    """A score of each method of a cell."""
    if cell.empty:
        return {}
    values = by_seed(cell, metric)
    return {method: Figure.of(values[method]) for method in values}


def by_level(cells: dict[float, pd.DataFrame], metric: str, decimals: int, gaps: bool = False) -> str:
    """Methods by missing level."""
    told = {level: figures(cell, metric) for level, cell in cells.items()}
    rows = [[m, *(told[level].get(m, Figure()).text(decimals) for level in cells)] for m in SHOWN]
    if gaps:
        for method in ("paper", "joint"):
            closed = [checks(c)[f"{method} closes"].iloc[0] if len(c) else Figure() for c in cells.values()]
            rows.append([f"gap closed by {method}", *(figure.text(0, percent=True) for figure in closed)])
    return markdown(["", *map(percent, cells)], rows)


def beside(
    cells: dict[float, pd.DataFrame], name: str, dataset: str, known: Quotes, decimals: int,
    metric: str = "nll_plugin", theirs: str = "nll",
) -> str:  # fmt: skip
    """The paper's own score of ours, and what the paper says."""
    told = {level: figures(cell, metric) for level, cell in cells.items()}
    rows = []
    for method in SHOWN:
        row = [method]
        for level in cells:
            said = known.get((name, dataset, method, theirs, level), "")
            row.append(f"{told[level].get(method, Figure()).text(decimals)} {said}".strip())
        rows.append(row)
    return markdown(["", *map(percent, cells)], rows)


def check_table(cells: dict[float, pd.DataFrame]) -> str:
    """Paired differences, the paper's order, and coverage."""
    links = [f"{a} ≥ {b}" for a, b in pairwise(ORDER)]
    rows = []
    for level, cell in cells.items():
        row = [percent(level)]
        if cell.empty:
            rows.append(row + [""] * (len(RIVALS) + len(links) + 2))
            continue
        told = checks(cell).iloc[0]
        gains = [told[f"joint − {rival}"] for rival in RIVALS]
        row += [gain.text(1) for gain in gains]
        wins = [better(gain) for gain in gains]
        row.append("" if not all(wins) else "yes" if set(wins) == {"yes"} else "no")
        rows.append([*row, *(told[link] for link in links), told["coverage of 90%"].text(1, percent=True)])
    head = ["missing", *(f"joint − {rival}" for rival in RIVALS), "all > 2 s.e.", *links, "coverage of 90% (joint)"]
    return markdown(head, rows)


# --- Covariates -----------------------------------------------------------------------------------------------------


def covariate_section(found: pd.DataFrame, known: Quotes) -> str:
    """tab:MSE_labels, tab:MSE_label_disc_cov and tab:MSE_label_clinical."""
    parts = [prose("covariates")]
    for name in config.NAMES:
        content = config.read(name)
        for dataset in map(str, content["datasets"]):
            levels = content["missing"]
            cells = {level: choose(found, name, dataset, "dense", level) for level in levels}
            parts.append(f"### {SETS[dataset]}, {content['model']}, dense networks\n")
            for metric, title, decimals in (
                ("covariate_mse", "Squared error of missing numbers", 2),
                ("covariate_accuracy", "Share of missing categories that are right", 3),
            ):
                if metric == "covariate_accuracy" and dataset in ("1", "2", "3"):
                    continue
                parts.append(title + ".\n\n" + covariate_table(cells, metric, decimals))
            parts += _as_published(cells, name, dataset, known)
    return "\n".join(part.strip("\n") + "\n" for part in parts)


IMPUTERS = ("zero", "mean", "knn", "iterative", "paper", "joint")


def covariate_table(cells: dict[float, pd.DataFrame], metric: str, decimals: int, factor: float = 1.0) -> str:
    rows = []
    for method in IMPUTERS:
        told = [figures(c, metric).get(method, Figure()) for c in cells.values()]
        scaled = [Figure(factor * f.mean, factor * f.error, f.seeds) for f in told]
        rows.append([method, *(figure.text(decimals) for figure in scaled)])
    return markdown(["", *map(percent, cells)], rows)


def _as_published(cells: dict[float, pd.DataFrame], name: str, dataset: str, known: Quotes) -> list[str]:
    """The error as the paper seems to count it: summed over a row's numbers, averaged over all rows."""
    said = {metric for table, there, _, metric, _ in known if (table, there) == (name, dataset)}
    if "covariate_mse" not in said:
        return []
    rows = []
    for method in ("mean", "knn", "paper", "joint"):
        row = [method]
        for level, cell in cells.items():
            told = figures(cell, "covariate_mse_all_rows").get(method, Figure())
            each = Figure(NUMBERS[dataset] * told.mean, NUMBERS[dataset] * told.error, told.seeds).text(2)
            row.append(f"{each} {known.get((name, dataset, method, 'covariate_mse', level), '')}".strip())
        rows.append(row)
    parts = ["Sum over a row's numbers, complete rows counting 0; published in brackets.\n\n"
             + markdown(["", *map(percent, cells)], rows)]  # fmt: skip
    if "covariate_accuracy" in said:
        rows = []
        for method in ("mean", "knn", "paper", "joint"):
            quotes = [known.get((name, dataset, method, "covariate_accuracy", level), "") for level in cells]
            ours = [figures(c, "covariate_accuracy").get(method, Figure()).text(3) for c in cells.values()]
            rows.append([method, *(f"{a} {b}".strip() for a, b in zip(ours, quotes, strict=True))])
        parts.append("Accuracy; published in brackets.\n\n" + markdown(["", *map(percent, cells)], rows))
    return parts
