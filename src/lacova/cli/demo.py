"""`lacova demo`: rotated digits with gaps in pixels and covariates, from fit to picture, in a few minutes."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console
    from rich.table import Table as RichTable

    from lacova.data.schema import Schema
    from lacova.models.base import Covariates
    from lacova.models.gp_prior_vae import GPPriorVAE

    Tables = dict[str, pd.DataFrame]

ROWS = {"train": 1000, "validation": 200, "test": 200}
MISSING = 0.2
SHOWN = 8
METHODS: dict[str, Covariates] = {
    "mean imputation": "mean",
    "lacova": "joint",
    "oracle (all of X)": "oracle",
}


def demo(
    out: Annotated[Path, typer.Option(help="folder for the picture and the scores")] = Path("demo"),
    epochs: Annotated[int, typer.Option(help="maximum number of passes over the training rows, per model")] = 30,
) -> None:
    """Fit, impute and predict rotated digits with gaps."""
    run(out, epochs)


def run(
    out: Path, epochs: int = 30, rows: dict[str, int] | None = None, console: Console | None = None
) -> pd.DataFrame:
    """Fit one model per treatment of gaps in X, print how well each predicts unseen images, and save a picture.

    Args:
        out: folder for `digits.png`, `scores.csv` and `report.html`.
        epochs: maximum number of passes over the training rows, per model.
        rows: number of rows of "train", "validation" and "test".
        console: where to print.
    """
    import pandas as pd
    from rich.console import Console

    from lacova import report
    from lacova.data.io.files import write_table
    from lacova.datasets.digits import SIDE
    from lacova.models.gp_prior_vae import GPPriorVAE

    console = console or Console()
    out.mkdir(parents=True, exist_ok=True)
    complete, masked, schema = _data(rows or ROWS)
    x = list(schema.covariates)
    console.print(
        f"{len(masked['train'])} images of a digit, {SIDE}×{SIDE} pixels, with covariates {', '.join(x)}; "
        f"{MISSING:.0%} of all pixels and of all covariates are missing."
    )
    oracle = {name: table.assign(**complete[name][x]) for name, table in masked.items()}
    lines, models = [], {}
    for name, covariates in METHODS.items():
        started = perf_counter()
        tables = oracle if covariates == "oracle" else masked
        model = GPPriorVAE(schema, latent_dim=8, networks="dense-digits", scaling="none", covariates=covariates)
        model.fit(tables["train"], tables["validation"], max_epochs=epochs, batch_size=50, validate_every=5)
        lines.append({"method": name, **_score(model, tables["test"], complete["test"], masked["test"], schema)})
        console.print(f"{name}: fitted and scored in {perf_counter() - started:.0f} s", style="dim")
        models[name] = model
    scores = pd.DataFrame(lines)
    write_table(scores, out / "scores.csv")
    console.print(_table(scores))
    _picture(models["lacova"], complete["test"], masked["test"], out / "digits.png")
    console.print(
        f"True, masked, imputed and predicted digits are in {out / 'digits.png'}, the scores in {out / 'scores.csv'}."
    )
    page = report.write(
        models["lacova"], masked["test"], out / "report.html", held_out=masked["test"], draws=40, images=(SIDE, SIDE),
        truth=complete["test"], command="lacova demo",
    )  # fmt: skip
    console.print(f"A report on the model with missing covariates is in {page}; open it in a browser.", soft_wrap=True)
    return scores


def _data(rows: dict[str, int]) -> tuple[Tables, Tables, Schema]:
    """Return the complete tables, the same with gaps, and their schema."""
    from lacova.datasets import mask_at_random, rotated_digits

    complete, masked = {}, {}
    for seed, (name, count) in enumerate(rows.items()):
        table, schema = rotated_digits(1, count, seed)
        complete[name] = table
        masked[name] = mask_at_random(table, [*schema.covariates, *schema.measurements], MISSING, 100 + seed)
    return complete, masked, schema


def _score(
    model: GPPriorVAE, test: pd.DataFrame, truth: pd.DataFrame, masked: pd.DataFrame, schema: Schema
) -> dict[str, float]:
    """Score the prediction of complete unseen images from covariates with gaps, and the imputed covariates."""
    x = list(schema.covariates)
    score = model.score(truth.assign(**test[x]), draws=100)
    holes = masked[x].isna().to_numpy()
    error = ((model.impute(test)[x] - truth[x]) / truth[x].std()).to_numpy()
    return {k: score[k] for k in ("nll", "rmse", "crps", "coverage90")} | {
        "covariate_mse": float((error[holes] ** 2).mean())
    }


def _table(scores: pd.DataFrame) -> RichTable:
    from rich.table import Table as RichTable

    table = RichTable(
        title="Predicting unseen images from covariates with gaps",
        caption="NLL per image; RMSE and CRPS per pixel; share of pixels inside 90% intervals; "
        "mean squared error of the missing covariates, in units of their variance",
    )
    headings = {
        "method": "gaps in X", "nll": "NLL ↓", "rmse": "RMSE ↓", "crps": "CRPS ↓",
        "coverage90": "coverage of 90%", "covariate_mse": "error in X ↓",
    }  # fmt: skip
    for key, heading in headings.items():
        table.add_column(heading, justify="left" if key == "method" else "right")
    for row in scores.to_dict("records"):
        table.add_row(
            row["method"], f"{row['nll']:.0f}", f"{row['rmse']:.3f}", f"{row['crps']:.4f}",
            f"{row['coverage90']:.1%}", f"{row['covariate_mse']:.2f}",
        )  # fmt: skip
    return table


def _picture(model: GPPriorVAE, complete: pd.DataFrame, masked: pd.DataFrame, path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from lacova import plot
    from lacova.datasets.digits import PIXELS, SIDE

    covariates = list(model.schema.covariates)
    gaps = masked[covariates].isna()
    shown = masked.index[gaps.any(axis=1)][:SHOWN]
    rows = {
        "true": complete.loc[shown],
        "masked": masked.loc[shown],
        "imputed": model.impute(masked.loc[shown]),
        "predicted\nfrom X alone": model.predict(masked.loc[shown]),
    }
    figure = Figure(figsize=(1.25 * len(shown), 5.6), layout="constrained")
    FigureCanvasAgg(figure)
    ax = plot.images(
        {name: table[list(PIXELS)] for name, table in rows.items()}, (SIDE, SIDE), most=SHOWN, ax=figure.subplots()
    )
    missing = [[name for name in covariates if gaps.loc[index, name]] for index in shown]
    ax.set_xticks(
        [(k + 0.5) * (SIDE + 1) for k in range(len(shown))], ["\n".join(["lacks", *names]) for names in missing]
    )
    ax.tick_params(axis="x", length=0, labelsize=8, labeltop=True, labelbottom=False)
    figure.suptitle("Unseen digits: orange pixels and the named covariates are missing", fontsize=10)
    figure.savefig(path, dpi=110)
