"""Ridge regression of a number on features of visits, with the shrinkage that foretells left-out patients best."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lacova.covariates.regression import Coefficients
from lacova.data.scaling import Floats

Integers = npt.NDArray[np.int64]

# Grids: precision J relative to the prior's, and shrinkage relative to the square of the features.
PRECISION_GRID = np.concatenate([[0.0], np.geomspace(0.05, 50.0, 11)])
SHRINKAGE_GRID = np.geomspace(1e-4, 1e2, 10)
TINY = 1e-6  # lower bound on divisors


class Ridge(NamedTuple):
    """A regression of x, with J and the shrinkage of a chosen by left-out patients.

    Attributes:
        h: features (n×R).
        x: values (n,).
        group: the patient of each row (n,).
        shrinkage: of a.
        precision: J.
    """

    h: Floats
    x: Floats
    group: Integers
    shrinkage: float
    precision: float

    def fit(self, mean: Floats, var: Floats, count: Floats | None = None) -> Coefficients:
        """Return the coefficients for a conditional prior of x (n,).

        Args:
            mean, var: of the conditional prior.
            count: how often each patient comes in a sample, by the number in `group`; None for once.
        """
        weight = np.ones(len(self.h)) if count is None else count[self.group]
        root, target = _weighted(self.x, mean, var.clip(TINY), self.precision)
        design = np.c_[self.h, np.ones(len(self.h))] * root[:, None]
        penalty = np.diag(np.r_[np.full(self.h.shape[1], self.shrinkage), TINY])
        solution = np.linalg.solve((design.T * weight) @ design + penalty, design.T @ (weight * target))
        return Coefficients(solution[:-1, None], solution[-1:], self.precision)


def _weighted(x: Floats, mean: Floats, var: Floats, precision: float) -> tuple[Floats, Floats]:
    """Return √v and (x − v·mean/var)/√v, which is √v·(aᵀh + b) + N(0, 1)."""
    v = var / (1.0 + precision * var)
    return np.sqrt(v), (x - v / var * mean) / np.sqrt(v)


class LeftOut:
    """Residuals of the rows of each patient, from the fit to all other patients.

    With the hat matrix H = WWᵀ, they are (I − H_gg)⁻¹ times the residuals of the fit to all, H_gg the patient's block.

    Args:
        group: the patient of each row (n,).
    """

    def __init__(self, group: Integers) -> None:
        order = np.argsort(group, kind="stable")
        _, first, size = np.unique(group[order], return_index=True, return_counts=True)
        # Patients of about as many rows are one array (G×m), padded with n.
        self.places: list[Integers] = []
        longest = 2 ** np.ceil(np.log2(size)).astype(int)
        for most in np.unique(longest):
            start, count = first[longest == most, None], size[longest == most, None]
            within = np.arange(count.max())
            at = order[start + np.minimum(within, count - 1)]
            self.places.append(np.where(within < count, at, len(group)))

    def residuals(self, residual: Floats, root: Floats) -> Floats:
        """Return them (n,) from the residuals of the fit to all (n,); `root` is W (n×R)."""
        padded_root, padded = np.r_[root, np.zeros((1, root.shape[1]))], np.r_[residual, 0.0]
        values = np.zeros(len(residual) + 1)
        for places in self.places:
            w, r = padded_root[places], padded[places][..., None]  # G×m×R, G×m×1
            if places.shape[1] <= root.shape[1]:
                blocks = np.eye(w.shape[1]) * (1.0 + TINY) - w @ w.transpose(0, 2, 1)
                values[places] = np.linalg.solve(blocks, r)[..., 0]
            else:  # (cI − WWᵀ)⁻¹ = (I + W (cI − WᵀW)⁻¹ Wᵀ)/c
                blocks = np.eye(w.shape[2]) * (1.0 + TINY) - w.transpose(0, 2, 1) @ w
                solved = w @ np.linalg.solve(blocks, w.transpose(0, 2, 1) @ r)
                values[places] = ((r + solved) / (1.0 + TINY))[..., 0]
        left_out: Floats = values[:-1]
        return left_out


def regress_number(h: Floats, x: Floats, mean: Floats, var: Floats, group: Integers) -> Ridge | None:
    """Regress x ~ N(v·(mean/var + aᵀh + b), v), v = 1/(1/var + J); None where the prior alone foretells x better.

    Args:
        h: features (n×R).
        x: values (n,).
        mean, var: their conditional prior (n,).
        group: the patient of each row (n,).
    """
    var, left_out = var.clip(TINY), LeftOut(group)
    best, chosen = -0.5 * ((x - mean) ** 2 / var + np.log(var)).sum(), None
    for precision in PRECISION_GRID / var.mean():
        root, target = _weighted(x, mean, var, precision)
        # The intercept has no shrinkage: it is projected out.
        intercept = root / np.linalg.norm(root)
        weighted = h * root[:, None]
        u, s, _ = np.linalg.svd(weighted - np.outer(intercept, intercept @ weighted), full_matrices=False)
        centred = target - intercept * (intercept @ target)
        score = u.T @ centred
        for shrinkage in SHRINKAGE_GRID * max(s[0] ** 2, TINY):
            factor = s**2 / (s**2 + shrinkage)
            residual = left_out.residuals(centred - u @ (factor * score), np.c_[intercept, u * np.sqrt(factor)])
            density = -0.5 * (residual**2 + 2.0 * np.log(root)).sum()
            if density > best:
                best, chosen = density, Ridge(h, x, group, float(shrinkage), float(precision))
    return chosen
