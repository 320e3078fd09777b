"""p(z | x): standard normal, conditional, mixture, temporal, Gaussian process."""

from lacova.priors.base import LatentPrior

__all__ = ["LatentPrior"]
