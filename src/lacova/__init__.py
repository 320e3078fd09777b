"""lacova: conditional and Gaussian-process-prior VAEs that learn through missing covariates."""

from lacova.fit import FitOptions, TrainingError
from lacova.gp.formula import FormulaError
from lacova.models import CVAE, GPPriorVAE, NotFittedError
from lacova.networks import Conv, Dense
from lacova.pooling import pool
from lacova.schema import DataError, Schema, SchemaError

__version__ = "0.1.0"

__all__ = [
    "CVAE", "Conv", "DataError", "Dense", "FitOptions", "FormulaError", "GPPriorVAE", "NotFittedError", "Schema",
    "SchemaError", "TrainingError", "pool",
]  # fmt: skip
