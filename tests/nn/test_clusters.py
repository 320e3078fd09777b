"""k-means++ and k-means, against scikit-learn's."""

import numpy as np
import pytest

from lacova.nn.clusters import k_means, k_means_plus_plus


def _rows(seed, rows=150, columns=3):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, columns)) + 3.0 * rng.integers(0, 4, rows)[:, None]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("count", [1, 2, 7, 40])
def test_spread_rows_are_those_of_scikit_learn(seed, count):
    from sklearn.cluster import kmeans_plusplus

    values = _rows(seed)
    expected = kmeans_plusplus(values, count, random_state=seed)[1]
    assert k_means_plus_plus(values, count, seed).tolist() == expected.tolist()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("count", [1, 2, 5, 12])
def test_clusters_are_those_of_scikit_learn(seed, count):
    from sklearn.cluster import KMeans

    values = _rows(seed)
    expected = KMeans(count, n_init=1, random_state=seed).fit_predict(values)
    assert k_means(values, count, seed).tolist() == expected.tolist()


def test_spread_rows_are_distinct_where_few_are():
    values = np.repeat(np.array([[0.1], [0.2], [0.7]]), 20, axis=0)
    assert np.unique(values[k_means_plus_plus(values, 3, 0)]).tolist() == [0.1, 0.2, 0.7]


def test_no_more_clusters_than_distinct_rows_have_members():
    labels = k_means(np.repeat(np.array([[0.0], [1.0]]), 5, axis=0), 2, 0)
    assert len(set(labels[:5])) == len(set(labels[5:])) == 1
    assert labels[0] != labels[-1]
