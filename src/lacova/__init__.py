"""lacova: conditional and Gaussian-process-prior VAEs that learn through missing covariates."""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from lacova.analysis.comparison import compare
    from lacova.analysis.pooling import pool
    from lacova.analysis.regression import pool_regression
    from lacova.analysis.sensitivity import shift_imputed
    from lacova.data.errors import DataError, SchemaError
    from lacova.data.io.archive import StorageError
    from lacova.data.schema import Schema
    from lacova.models.conditional import CVAE, GPPriorVAE
    from lacova.models.inference import NotFittedError
    from lacova.models.literature import GPPVAE, GPVAE, HIVAE, LVAE
    from lacova.models.storage import load
    from lacova.models.unconditional import MIWAE, VAE, NotMIWAE
    from lacova.nn.networks import Conv, Dense
    from lacova.priors.gp.formula import FormulaError
    from lacova.training.options import FitOptions, TrainingError

__all__ = [
    "CVAE", "GPPVAE", "GPVAE", "HIVAE", "LVAE", "MIWAE", "VAE", "Conv", "DataError", "Dense", "FitOptions",
    "FormulaError", "GPPriorVAE", "NotFittedError", "NotMIWAE", "Schema", "SchemaError", "StorageError",
    "TrainingError", "__version__", "compare", "load", "pool", "pool_regression",
    "shift_imputed",
]  # fmt: skip

# Where names live; each module is imported when first asked for: torch takes seconds, and much here does not need it.
_HOMES = {
    "analysis.comparison": ["compare"], "analysis.pooling": ["pool"], "analysis.regression": ["pool_regression"],
    "analysis.sensitivity": ["shift_imputed"], "data.errors": ["DataError", "SchemaError"],
    "data.io.archive": ["StorageError"], "data.schema": ["Schema"], "models.conditional": ["CVAE", "GPPriorVAE"],
    "models.inference": ["NotFittedError"], "models.literature": ["GPPVAE", "GPVAE", "HIVAE", "LVAE"],
    "models.storage": ["load"], "models.unconditional": ["MIWAE", "VAE", "NotMIWAE"], "nn.networks": ["Conv", "Dense"],
    "priors.gp.formula": ["FormulaError"], "training.options": ["FitOptions", "TrainingError"],
}  # fmt: skip


if not TYPE_CHECKING:  # a type checker would take it for any name

    def __getattr__(name):
        for home, names in _HOMES.items():
            if name in names:
                value = globals()[name] = getattr(import_module(f"lacova.{home}"), name)
                return value
        raise AttributeError(f"module 'lacova' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
