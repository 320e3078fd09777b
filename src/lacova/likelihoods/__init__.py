"""p(y | z): the observation families, patients' random effects, and models of missingness."""

from lacova.likelihoods.base import Family, FamilyColumns

__all__ = ["Family", "FamilyColumns"]
