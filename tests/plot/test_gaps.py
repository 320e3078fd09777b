"""The pattern of gaps, with few and with many rows and columns."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

import lacova
from lacova import plot
from lacova.data.errors import DataError
from tests.plot.cases import visits


@pytest.mark.parametrize("patients", [5, 500])
def test_gaps_by_patient_and_visit(patients, model):
    data = visits(patients)
    ax = plot.gaps(data.sample(frac=1.0, random_state=0), model.schema)
    drawn = np.asarray(ax.images[0].get_array())
    assert drawn.shape == (min(400, 5 * patients), 6)
    share = data[["alt", "ast", "sex", "age", "arm", "day"]].isna().mean().to_numpy()
    np.testing.assert_allclose(drawn.mean(0), share, atol=0.01)
    assert [t.get_text().split()[0] for t in ax.get_xticklabels()] == ["alt", "ast", "sex", "age", "arm", "day"]
    if patients == 5:
        assert [t.get_text() for t in ax.get_yticklabels()] == list("01234")
        assert np.array_equal(drawn[:, 0], data["alt"].isna())  # rows are in order again
    else:
        assert "500" in ax.get_ylabel()
        assert len(ax.get_yticklabels()) <= 8


def test_gaps_of_many_columns_are_not_named():
    data = pd.DataFrame(np.zeros((4, 101))).rename(columns=str)
    data.iloc[0, 0] = np.nan
    ax = plot.gaps(data, lacova.Schema([str(k) for k in range(100)], {"100": "continuous"}))
    assert list(ax.get_xticks()) == []
    assert ax.get_xlabel() == "100 measurements, 0% missing; 1 covariates, 0% missing"


def test_parts_of_figures(model, table):
    part = plt.figure(layout="constrained").subfigures(1, 2)[1]
    plot.gaps(table, model.schema, ax=part.subplots())
    assert [text.get_text() for text in part.legends[0].get_texts()] == ["missing", "observed"]
    assert len(plot.latent(model, table, "alt", ax=part.add_subplot()).figure.axes) == 3  # with the scale of colours


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, t: plot.gaps(t.drop(columns="age"), m.schema), r"the table has no column 'age'"),
    ],
)  # fmt: skip
def test_bad_input_is_refused(model, table, call, message):
    with pytest.raises((DataError, ValueError), match=message):
        call(model, table)
