import numpy as np
import pandas as pd

from lacova.datasets import drop_sparse


def test_columns_then_rows_then_patients_are_dropped():
    seen, gap = 1.0, np.nan
    table = pd.DataFrame({
        "id": [1] * 5 + [2] * 6, "a": [seen] * 11, "b": [seen] * 10 + [gap], "c": [seen] + [gap] * 10
    })  # fmt: skip
    dense, names = drop_sparse(table, ["a", "b", "c"], "id")  # c goes first, and with it no row
    assert names == ["a", "b"]
    assert len(dense) == 11  # c is 9% observed; the last row has one of two: half
    dense, names = drop_sparse(table, ["a", "b", "c"], "id", columns=0.09)
    assert names == ["a", "b", "c"]
    assert dense.index.tolist() == list(range(10))  # one of three is too little
    assert drop_sparse(table, ["a", "b", "c"], "id", columns=0.09, visits=6)[0].empty
    assert drop_sparse(table, ["a", "b", "c"], "id", rows=0.7)[0]["id"].unique().tolist() == [1, 2]
