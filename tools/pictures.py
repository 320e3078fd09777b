"""Draw the pictures of the pages on plots and on the report: `python -m tools.pictures` writes them to docs/images.

They show the PBC table of docs/pbc.md (pbcseq.csv in the folder LACOVA_DATA), and digits. Screenshots of the report
need chromium, chromedriver and selenium. `python -m tools.pictures plots`, `digits` or `report` draws some of them.
Other pictures are drawn by `python -m tools.outputs` and `python -m reproduction figures`.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("MPLBACKEND", "agg")

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

import lacova
from lacova import plot, report
from lacova.analysis.recovery import recover
from lacova.datasets import mask_at_random, rotated_digits

FOLDER = Path(__file__).parents[1] / "docs" / "images"
# The roles that docs/pbc.md arrives at.
SCHEMA = lacova.Schema(
    {"bili": "lognormal", "chol": "lognormal", "albumin": "gaussian", "alk_phos": "lognormal", "ast": "lognormal",
     "platelet": "gaussian", "protime": "lognormal"},
    {"trt": "categorical", "age": "continuous", "sex": "categorical", "ascites": "categorical", "hepato": "categorical",
     "spiders": "categorical", "edema": "categorical", "stage": "categorical"},
    instance="id", time="day", static=["trt", "age", "sex"], bounds={"albumin": (0, None), "platelet": (0, None)},
    integers=["chol", "platelet", "day"],
    units={"age": "years", "day": "days", "bili": "mg/dL", "chol": "mg/dL", "albumin": "g/dL", "alk_phos": "U/L",
           "ast": "U/mL", "platelet": "10⁹/L", "protime": "s"},
)  # fmt: skip
TRAIN, KNOWN = 252, 280  # patients up to 252 are for training, up to 280 for early stopping; the others are new
PATIENT, PAST = 294, 1000  # a new patient, whose visits after this day are predicted from the earlier ones
SIDE = 36  # of a digit
# Width and height of the window, colours, and the sections whose beginnings are shown side by side.
SCREENS = {
    "report-desktop": ((1000, 1500), "light", ("",)),
    "report-desktop-dark": ((1000, 1100), "dark", ("patients",)),
    "report-phone": ((390, 1100), "dark", ("", "patients", "effects")),
    "report-phone-light": ((390, 1100), "light", ("quality", "covariates", "latent")),
}


def fitted(table: pd.DataFrame) -> lacova.GPPriorVAE:
    train, validation = table[table.id <= TRAIN], table[table.id.between(TRAIN + 1, KNOWN)]
    return lacova.GPPriorVAE(SCHEMA).fit(train, validation)


def plots(model: lacova.GPPriorVAE, table: pd.DataFrame) -> None:
    """Draw one picture for each function of lacova.plot, for docs/plots.md."""
    new = table[table.id > KNOWN]
    one = new[new.id == PATIENT]
    save(plot.gaps(table, SCHEMA), "gaps")
    save(plot.training(model), "training")
    hidden = one.assign(bili=one.bili.where(one.index.isin(one.index[::2])))
    save(plot.trajectory(model, hidden, PATIENT, "bili", truth=one), "trajectory")
    past, later = one[one.day <= PAST], one[one.day > PAST]
    ax = plot.forecast(model, past, PATIENT, "bili", later)
    ax.plot(later.day, later.bili, "x", color="black", label="true value")
    ax.legend(frameon=False, fontsize=8)
    save(ax, "forecast")
    save(plot.covariate(model, one.assign(stage=float("nan")), "stage", truth=one.stage.iloc[0]), "covariate")
    save(plot.latent(model, table, "bili"), "latent")
    save(plot.effects(model, table[table.id <= KNOWN], "gp(day):cat(stage)", "bili"), "effects")
    figure, axes = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
    recovery = recover(model, new, share=0.2)
    plot.calibration(recovery, ax=axes[0])
    plot.pit(recovery, ax=axes[1])
    save(figure, "calibration")


def digits() -> None:
    """Draw the picture of plot.images: digits that were not in training."""
    truth, schema = rotated_digits(1, rows=600, seed=0)
    masked = mask_at_random(truth, [*schema.covariates, *schema.measurements], 0.2, seed=1)
    model = lacova.GPPriorVAE(schema, latent_dim=8, networks="dense-digits", scaling="none")
    model.fit(masked[:500], max_epochs=40, batch_size=50)
    rows = {"true": truth[500:508], "masked": masked[500:508], "imputed": model.impute(masked[500:508])}
    pixels = list(schema.measurements)
    save(plot.images({name: shown[pixels] for name, shown in rows.items()}, (SIDE, SIDE)), "images")


def save(drawn: Axes | Figure, name: str) -> None:
    figure = drawn if isinstance(drawn, Figure) else drawn.figure
    figure.savefig(file := io.BytesIO(), dpi=90)
    write(Image.open(file), f"plot-{name}")
    plt.close("all")


def screens(model: lacova.GPPriorVAE, table: pd.DataFrame) -> None:
    """Take screenshots of a report on the training and validation patients, with the others held out."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        report.write(model, table[table.id <= KNOWN], page, held_out=table[table.id > KNOWN])
        driver = browser()
        try:
            for name, (size, colours, sections) in SCREENS.items():
                write(side_by_side([screen(driver, page, size, colours, section) for section in sections]), name)
        finally:
            driver.quit()


def browser() -> Any:
    """Start Chromium without a window."""
    from selenium import webdriver

    programs = [shutil.which("chromium"), shutil.which("chromedriver")]
    if None in programs:
        raise SystemExit("no browser: install chromium and chromedriver.")
    options = webdriver.ChromeOptions()
    options.binary_location = str(programs[0])
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(word)
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(programs[1]))


def screen(driver: Any, page: Path, size: tuple[int, int], colours: str, section: str = "") -> Image.Image:
    """Take a screenshot of a page at a window size, from the beginning of a section; "" for the top of the page."""
    metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size[0] < 500}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [{"name": "prefers-color-scheme", "value": colours}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    driver.get(page.as_uri())
    if section:
        driver.execute_script("document.getElementById(arguments[0]).scrollIntoView()", section)
    return Image.open(io.BytesIO(driver.get_screenshot_as_png()))


def side_by_side(pictures: list[Image.Image], between: int = 20) -> Image.Image:
    width = sum(picture.width + between for picture in pictures) - between
    row = Image.new("RGB", (width, max(picture.height for picture in pictures)), "white")
    at = 0
    for picture in pictures:
        row.paste(picture, (at, 0))
        at += picture.width + between
    return row


def write(picture: Image.Image, name: str) -> None:
    """Write a picture with few colours, so that the file is small."""
    picture.convert("RGB").quantize(128).save(FOLDER / f"{name}.png", optimize=True)
    print(f"docs/images/{name}.png")


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("parts", nargs="*", help="plots, digits or report; all by default")
    parts = parser.parse_args(words).parts or ["plots", "digits", "report"]
    if "digits" in parts:
        digits()
    if {"plots", "report"} & set(parts):
        if "LACOVA_DATA" not in os.environ:
            raise SystemExit("LACOVA_DATA, the folder with pbcseq.csv, is not set.")
        table = pd.read_csv(Path(os.environ["LACOVA_DATA"]) / "pbcseq.csv")
        model = fitted(table)
        if "plots" in parts:
            plots(model, table)
        if "report" in parts:
            screens(model, table)


if __name__ == "__main__":
    main()
