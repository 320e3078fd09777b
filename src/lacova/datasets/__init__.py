"""Generated data sets for demonstrations, tests and studies, and the preparation of SDTM domains."""

from lacova.data.masks import mask_at_random
from lacova.datasets import sdtm
from lacova.datasets.digits import rotated_digits
from lacova.datasets.health import health_mnist
from lacova.datasets.sources import digit_images, mnist
from lacova.datasets.sparse import drop_sparse
from lacova.datasets.trial import simulated_trial, simulated_trial_effects, simulated_trial_mean
from lacova.datasets.truth import true_covariates

__all__ = [
    "digit_images",
    "drop_sparse",
    "health_mnist",
    "mask_at_random",
    "mnist",
    "rotated_digits",
    "sdtm",
    "simulated_trial",
    "simulated_trial_effects",
    "simulated_trial_mean",
    "true_covariates",
]
