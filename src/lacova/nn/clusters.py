"""k-means++ and k-means of a few thousand rows; scikit-learn, which has both, takes most of a second to import."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lacova.data.scaling import Floats

Indices = npt.NDArray[np.int64]
MAX_ITERATIONS, TOLERANCE = 300, 1e-4  # of the mean variance of the columns


def k_means_plus_plus(values: Floats, count: int, seed: int) -> Indices:
    """Return the indices of `count` rows (of N×F) that lie far from each other.

    Each next row is the best of a few candidates, drawn with probabilities proportional to the squared distance from
    the nearest row so far (Arthur and Vassilvitskii, 2007). The random numbers are those of scikit-learn.
    """
    random, trials = np.random.RandomState(seed), 2 + int(np.log(count))
    chosen = [int(random.choice(len(values), p=np.full(len(values), 1 / len(values))))]
    nearest = _squared_distances(values, values[chosen])[:, 0]
    for _ in range(count - 1):
        candidates = np.searchsorted(nearest.cumsum(), random.uniform(size=trials) * nearest.sum())
        candidates = np.minimum(candidates, len(values) - 1)
        distances = np.minimum(nearest[:, None], _squared_distances(values, values[candidates]))
        best = int(distances.sum(0).argmin())
        nearest = distances[:, best]
        chosen.append(int(candidates[best]))
    return np.array(chosen)


def k_means(values: Floats, count: int, seed: int) -> Indices:
    """Return the cluster of each row (of N×F) by Lloyd's algorithm, started by k-means++; clusters may be empty."""
    values = values - values.mean(0)
    centres = values[k_means_plus_plus(values, count, seed)]
    tolerance, labels = TOLERANCE * values.var(0).mean(), np.full(len(values), -1)
    for _ in range(MAX_ITERATIONS):
        before, labels = labels, _squared_distances(values, centres).argmin(1)
        if (before == labels).all():
            break
        hot = (labels[:, None] == np.arange(count)).astype(float)
        sizes = hot.sum(0)[:, None]
        moved = np.where(sizes > 0, hot.T @ values / np.maximum(sizes, 1.0), centres)
        shift, centres = np.square(moved - centres).sum(), moved
        if shift <= tolerance:
            labels = _squared_distances(values, centres).argmin(1)
            break
    return labels


def _squared_distances(values: Floats, centres: Floats) -> Floats:
    """Return squared distances (N×C) of rows from centres."""
    products = values @ centres.T
    squares: Floats = np.square(values).sum(1)[:, None] + np.square(centres).sum(1) - 2.0 * products
    return np.maximum(squares, 0.0, out=squares)
