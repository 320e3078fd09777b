"""lacova: conditional and Gaussian-process-prior VAEs that learn through missing covariates."""

from importlib import import_module
from typing import TYPE_CHECKING

from lacova.version import __version__

if TYPE_CHECKING:
    from lacova.answers import NotFittedError
    from lacova.archive import StorageError
    from lacova.comparison import compare
    from lacova.family import GPPVAE, GPVAE, HIVAE, LVAE
    from lacova.gp.formula import FormulaError
    from lacova.models import CVAE, GPPriorVAE
    from lacova.networks import Conv, Dense
    from lacova.options import FitOptions, TrainingError
    from lacova.pooling import pool
    from lacova.regression import pool_regression
    from lacova.schema import DataError, Schema, SchemaError
    from lacova.sensitivity import shift_imputed
    from lacova.storage import load
    from lacova.unconditional import MIWAE, VAE, NotMIWAE

__all__ = [
    "CVAE", "GPPVAE", "GPVAE", "HIVAE", "LVAE", "MIWAE", "VAE", "Conv", "DataError", "Dense", "FitOptions",
    "FormulaError", "GPPriorVAE", "NotFittedError", "NotMIWAE", "Schema", "SchemaError", "StorageError",
    "TrainingError", "__version__", "compare", "load", "pool", "pool_regression",
    "shift_imputed",
]  # fmt: skip

# Where names live; each module is imported when first asked for: torch takes seconds, and much here does not need it.
_HOMES = {
    "answers": ["NotFittedError"], "archive": ["StorageError"], "comparison": ["compare"],
    "family": ["GPPVAE", "GPVAE", "HIVAE", "LVAE"], "gp.formula": ["FormulaError"], "models": ["CVAE", "GPPriorVAE"],
    "networks": ["Conv", "Dense"], "options": ["FitOptions", "TrainingError"], "pooling": ["pool"],
    "regression": ["pool_regression"], "schema": ["DataError", "Schema", "SchemaError"],
    "sensitivity": ["shift_imputed"], "storage": ["load"], "unconditional": ["MIWAE", "VAE", "NotMIWAE"],
}  # fmt: skip


if not TYPE_CHECKING:  # a type checker would take it for any name

    def __getattr__(name):
        for home, names in _HOMES.items():
            if name in names:
                found = globals()[name] = getattr(import_module(f"lacova.{home}"), name)
                return found
        raise AttributeError(f"module 'lacova' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
