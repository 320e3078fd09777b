"""The folder RUN that `lacova fit` writes: three files of its own, beside whatever else lies there."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lacova.models.base import Model

MODEL, SCHEMA, TRAINING = "model.lacova", "schema.toml", "training.csv"
FILES = (MODEL, SCHEMA, TRAINING)


def is_run(folder: Path) -> bool:
    """Return whether a folder holds a model."""
    return (folder / MODEL).is_file()


def checkpoint_of(out: Path) -> Path:
    """Return the checkpoint of the fit that writes the folder `out`; it lies beside the folder."""
    return out.parent / f"{out.name}.checkpoint"


def named(out: Path) -> Path:
    """Return a path to the same folder that ends in its name, also of "." and ".."."""
    return out.resolve() if out.name in ("", "..") else out


def identity_of(file: Path) -> int | None:
    """Return a number that changes when a file is replaced; None if there is none."""
    return file.stat().st_ino if file.exists() else None


def check_run(out: Path, force: bool) -> None:
    """Refuse a folder that cannot become a run, or that holds other things, or a model without `force`."""
    from lacova.data.errors import DataError
    from lacova.data.io.files import check_folder, check_output

    if not out.name:
        raise DataError(f"{out} cannot hold a model; name a folder in it for --out.")
    if out.exists() and not out.is_dir():
        raise DataError(f"{out} is a file; --out names a folder for the model.")
    if not out.exists():
        if out.is_symlink():
            raise DataError(f"{out} is a link to a folder that is not there; make that first.")
        check_folder(out.parent)
        return
    check_folder(out)
    if not any(file for file in out.iterdir() if not _is_left_over(file)):
        return
    if not (out / MODEL).exists():
        raise DataError(f"the folder {out} holds other things; choose another for --out.")
    if not force:
        raise DataError(f"there is a model in {out} already; choose another folder, or add --force to replace it.")
    for name in FILES:
        check_output(out / name, None)


def write_run(learner: Model, out: Path, schema: Path) -> None:
    """Write the files of a run; each replaces an older one in a single step, and nothing else in the folder is touched.

    The roles in `schema`, from which the model was fitted, stay as they are if that is the file of the run.
    """
    from lacova.data.errors import DataError
    from lacova.data.io.atomic import replacing_together, sweep

    assert learner.training is not None
    own = (out / SCHEMA).exists() and os.path.samefile(out / SCHEMA, schema)
    names = [MODEL, TRAINING, *(() if own else (SCHEMA,))]
    new = not out.exists()
    try:
        if new:
            out.mkdir()
        for name in FILES:
            sweep(out / name)
        with replacing_together([out / name for name in names]) as (model, training, *roles):
            learner.save(model)
            learner.training.to_csv(training, index=False)
            for file in roles:
                learner.schema.to_toml(file)
    except OSError as error:
        raise DataError(f"{out} cannot be written: {error.strerror or error}.") from None
    finally:
        if new:
            with suppress(OSError):  # it holds the files
                out.rmdir()


def _is_left_over(file: Path) -> bool:
    """Return whether a file was left by a fit that was killed while it wrote a run."""
    from lacova.data.io.atomic import is_temporary

    return any(is_temporary(file, file.with_name(name)) for name in FILES)
