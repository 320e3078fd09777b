"""The kinds of covariates and measurements."""

from __future__ import annotations

from typing import Literal

Kind = Literal["continuous", "categorical"]
Measure = Literal[
    "gaussian", "lognormal", "student", "censored", "bernoulli", "categorical", "ordinal", "poisson",
    "negative_binomial",
]  # fmt: skip
LEVELS = ("bernoulli", "categorical", "ordinal")  # kinds of measurements that have levels rather than numbers
COUNTS = ("poisson", "negative_binomial")
