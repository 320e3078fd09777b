"""`lacova report`: write a report as one HTML file."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lacova.cli import options
from lacova.cli.common import load_run, read_in_memory, remark
from lacova.cli.paths import WRITTEN

if TYPE_CHECKING:
    import pandas as pd


def report(
    run: options.Run,
    out: Annotated[Path, typer.Option(help="the HTML file to write", show_default=False), WRITTEN],
    data: Annotated[Path | None, typer.Option(help="a table to report on, usually the one fitted to")] = None,
    held_out: Annotated[
        Path | None,
        typer.Option(help="rows that were not in training, to measure imputation on; else those that fit held out"),
    ] = None,
    without_patients: Annotated[
        bool, typer.Option("--without-patients", help="leave out labels and values of single patients")
    ] = False,
    share: Annotated[
        float | None,
        typer.Option(
            help="share of the observed entries to hide, to measure imputation (by the rows; a tenth of many)"
        ),
    ] = None,
    images: Annotated[str | None, typer.Option(help="HEIGHTxWIDTH, if measurements are pixels")] = None,
    truth: Annotated[Path | None, typer.Option(help="the rows of --data without gaps, for --images")] = None,
    draws: Annotated[int, typer.Option(help="draws behind every figure", min=10)] = 100,
    unseen: options.Unseen = None,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    quiet: options.Quiet = False,
) -> None:
    """Write a report as one HTML file: data and gaps, model, training, quality of imputation, patients, effects."""
    from lacova.data.io.files import check_output
    from lacova.report import contents, save

    if out.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"--out is {out}; expected a name that ends in .html.")
    check_output(out, None)
    model = load_run(run, device, unseen)
    shape = None if images is None else _height_and_width(images)
    if truth is not None and (images is None or data is None):
        raise ValueError("--truth is shown beside the images of --data; add --data and --images HEIGHTxWIDTH.")
    words = ["lacova", "report", str(run)]
    for option, value in (("--data", data), ("--held-out", held_out), ("--share", share), ("--images", images),
                          ("--truth", truth), ("--draws", draws), ("--unseen", unseen), ("--seed", seed),
                          ("--out", out)):  # fmt: skip
        words += [] if value is None else [option, str(value)]
    words += ["--without-patients"] if without_patients else []
    content = contents(
        model, _read(data), held_out=_read(held_out), patients=not without_patients, share=share, draws=draws,
        seed=seed, images=shape, truth=_read(truth), command=shlex.join(words),
    )  # fmt: skip
    save(content, out)
    for sentence in content["warnings"]:
        remark(f"Warning: {sentence}", quiet)
    remark(f"Report written to {out} ({out.stat().st_size / 1e6:.1f} MB); open it in a browser.", quiet)


def _read(path: Path | None) -> pd.DataFrame | None:
    return None if path is None else read_in_memory(path, "a report")


def _height_and_width(text: str) -> tuple[int, int]:
    parts = text.lower().split("x")
    if len(parts) != 2 or not all(part.isdigit() and int(part) > 0 for part in parts):
        raise ValueError(f"--images is {text!r}; expected HEIGHTxWIDTH, such as 28x28.")
    return int(parts[0]), int(parts[1])
