"""lacova: conditional and Gaussian-process-prior VAEs that learn through missing covariates."""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from lacova.analysis.comparison import compare
    from lacova.analysis.correlations import lost_correlations
    from lacova.analysis.permutation import permutation_test
    from lacova.analysis.pooling import pool
    from lacova.analysis.recovery import recover
    from lacova.analysis.regression import pool_regression, pool_terms
    from lacova.analysis.sensitivity import shift_imputed
    from lacova.analysis.wald import pool_wald
    from lacova.data.errors import DataError, FitWarning, SchemaError, UnseenLevelWarning
    from lacova.data.io.archive import StorageError
    from lacova.data.registry import register
    from lacova.data.schema import Schema
    from lacova.models.cvae import CVAE
    from lacova.models.gp_prior_vae import GPPriorVAE
    from lacova.models.gppvae import GPPVAE
    from lacova.models.gpvae import GPVAE
    from lacova.models.hivae import HIVAE
    from lacova.models.inference import NotFittedError
    from lacova.models.lvae import LVAE
    from lacova.models.miwae import MIWAE, NotMIWAE
    from lacova.models.storage import load
    from lacova.models.vae import VAE
    from lacova.nn.networks import Conv, Dense
    from lacova.priors.gp.formula import FormulaError
    from lacova.training.options import FitOptions, TrainingError

__all__ = [
    "CVAE", "GPPVAE", "GPVAE", "HIVAE", "LVAE", "MIWAE", "VAE", "Conv", "DataError", "Dense", "FitOptions",
    "FitWarning", "FormulaError", "GPPriorVAE", "NotFittedError", "NotMIWAE", "Schema", "SchemaError", "StorageError",
    "TrainingError", "UnseenLevelWarning", "__version__", "compare", "load", "lost_correlations", "permutation_test",
    "pool", "pool_regression", "pool_terms", "pool_wald", "recover", "register", "shift_imputed",
]  # fmt: skip

# Where names live; each module is imported when first asked for: torch takes seconds, and much here does not need it.
_HOMES = {
    "analysis.comparison": ["compare"], "analysis.correlations": ["lost_correlations"],
    "analysis.permutation": ["permutation_test"], "analysis.pooling": ["pool"], "analysis.recovery": ["recover"],
    "analysis.regression": ["pool_regression", "pool_terms"],
    "analysis.sensitivity": ["shift_imputed"], "analysis.wald": ["pool_wald"],
    "data.errors": ["DataError", "FitWarning", "SchemaError", "UnseenLevelWarning"],
    "data.io.archive": ["StorageError"], "data.registry": ["register"], "data.schema": ["Schema"],
    "models.cvae": ["CVAE"], "models.gp_prior_vae": ["GPPriorVAE"], "models.gppvae": ["GPPVAE"],
    "models.gpvae": ["GPVAE"], "models.hivae": ["HIVAE"], "models.inference": ["NotFittedError"],
    "models.lvae": ["LVAE"], "models.miwae": ["MIWAE", "NotMIWAE"], "models.storage": ["load"],
    "models.vae": ["VAE"], "nn.networks": ["Conv", "Dense"], "priors.gp.formula": ["FormulaError"],
    "training.options": ["FitOptions", "TrainingError"],
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
