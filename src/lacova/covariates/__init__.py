"""Missing covariates: their prior p(x), their posterior q(x_u | ·), and expectations over both."""

from lacova.covariates.prior import CovariatePrior

__all__ = ["CovariatePrior"]
