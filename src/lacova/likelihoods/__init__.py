"""p(y | z): the observation families, patients' random effects, and models of missingness."""

from lacova.likelihoods.base import Columns, Family

__all__ = ["Columns", "Family"]
