"""Fingerprints of instance labels."""

import numpy as np
import pandas as pd
import pytest

from lacova.data.labels import Fingerprints, among, fingerprints, random_words

DAY = pd.Timestamp("2020-05-01")


@pytest.mark.parametrize(
    "labels",
    [
        pd.Series([3, -7, 1]),
        pd.Series([3, -7, 1], dtype="int8"),
        pd.Series([3, -7, 1], dtype="Int32"),
        pd.Series([3.0, -7.0, 1.0]),
        pd.Series([3.0, -7.0, 1.0], dtype="float32"),
        pd.Series([3, -7.0, True], dtype=object),
        pd.Series([3, -7, 1]).astype("category"),
    ],
    ids=lambda s: str(s.dtype),
)
def test_numbers_that_are_equal_have_equal_fingerprints(labels):
    assert fingerprints(labels).tolist() == [fingerprints(pd.Series([k]))[0] for k in (3, -7, 1)]


@pytest.mark.parametrize("dtype", [object, "str", "category"])
def test_the_fingerprint_of_a_text_does_not_depend_on_the_type_of_the_column(dtype):
    prints = fingerprints(pd.Series(["a", "b", "a"], dtype=dtype))
    assert prints[0] == prints[2] != prints[1]
    assert prints.tolist() == fingerprints(pd.Series(["a", "b", "a"], dtype=object)).tolist()


def test_dates_have_the_same_fingerprint_in_any_unit_and_in_mixed_columns():
    prints = [fingerprints(pd.Series([DAY], dtype=f"datetime64[{unit}]"))[0] for unit in ("s", "us", "ns")]
    assert len({*prints, fingerprints(pd.Series([DAY, "x"], dtype=object))[0]}) == 1


def test_different_labels_have_different_fingerprints():
    several = pd.Series([0, 1, 0.5, -0.5, "0", "1", "", DAY, None, (1,), b"1", 2**63, 2**62], dtype=object)
    assert len(set(fingerprints(several).tolist())) == len(several)
    assert len(np.unique(fingerprints(pd.Series(np.arange(-50_000, 50_000))))) == 100_000
    assert len(np.unique(fingerprints(pd.Series([f"patient {k}" for k in range(20_000)])))) == 20_000


def test_random_words_are_uniform_and_differ_by_seed():
    prints = fingerprints(pd.Series(np.arange(20_000)))
    one, other = (random_words(prints, seed) / 2.0**64 for seed in (0, 1))
    for uniform in (one, other):
        assert np.abs(np.histogram(uniform, bins=10, range=(0, 1))[0] - 2000).max() < 250  # 6 standard deviations
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.04
    assert (random_words(prints, 1) == random_words(prints, 1)).all()


def test_a_set_of_fingerprints_contains_its_labels():
    known = Fingerprints(fingerprints(pd.Series([5, 7, 7, 2])))
    assert len(known) == 3
    assert known.holds([2, 3, 7.0]).tolist() == [True, False, True]
    assert 5 in known
    assert "5" not in known
    assert known == Fingerprints(fingerprints(pd.Series([2, 5, 7])))
    assert known != Fingerprints(fingerprints(pd.Series([2, 5])))
    assert known.holds([]).tolist() == []
    assert Fingerprints(np.zeros(0, dtype=np.uint64)).holds([1, 2]).tolist() == [False, False]


def test_among_takes_sets_of_labels_and_of_fingerprints():
    labels = ("a", "c", "b")
    for known in (frozenset("ab"), Fingerprints(fingerprints(pd.Series(["a", "b"])))):
        assert among(labels, known).tolist() == [True, False, True]
    assert among((), frozenset()).tolist() == []
