"""lacova: conditional and Gaussian-process-prior VAEs that learn through missing covariates."""

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
from lacova.version import __version__

__all__ = [
    "CVAE", "GPPVAE", "GPVAE", "HIVAE", "LVAE", "MIWAE", "VAE", "Conv", "DataError", "Dense", "FitOptions",
    "FormulaError", "GPPriorVAE", "NotFittedError", "NotMIWAE", "Schema", "SchemaError", "StorageError",
    "TrainingError", "__version__", "compare", "load", "pool", "pool_regression",
    "shift_imputed",
]  # fmt: skip
