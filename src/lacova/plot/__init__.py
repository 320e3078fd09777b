"""Plots of tables with gaps and of fitted models. Every function takes `ax=` and returns the axes.

Needs matplotlib, which is loaded with this module and not with `lacova` itself. See docs/plots.md.
"""

from lacova.plot.calibration import calibration, pit
from lacova.plot.covariates import covariate
from lacova.plot.effects import effects
from lacova.plot.fit import latent, training
from lacova.plot.gaps import gaps
from lacova.plot.images import images
from lacova.plot.patients import forecast, trajectory

__all__ = [
    "calibration",
    "covariate",
    "effects",
    "forecast",
    "gaps",
    "images",
    "latent",
    "pit",
    "training",
    "trajectory",
]  # fmt: skip
