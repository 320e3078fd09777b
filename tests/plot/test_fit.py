"""Training curves and the latent space."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.collections import PathCollection

from lacova import plot
from lacova.data.errors import DataError
from tests.plot.cases import legend, visits


def test_training_by_term(model):
    ax = plot.training(model)
    names = [c for c in model.training if c != "epoch"]
    assert len(ax.lines) == len(names) == len(legend(ax))
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("epoch", "nats per row")
    assert len({line.get_linestyle() + line.get_marker() for line in ax.lines}) == len(names)
    one = plot.training(model.training, terms=["elbo"], ax=plt.subplots()[1])
    np.testing.assert_allclose(one.lines[0].get_ydata(), model.training["elbo"])


@pytest.mark.parametrize(("colour", "groups"), [("arm", 4), ("alt", 2), (None, 1)])
def test_latent_space(model, table, colour, groups):
    ax = plot.latent(model, table, colour)
    clouds = [c for c in ax.collections if isinstance(c, PathCollection)]
    assert len(clouds) == groups
    assert sum(len(c.get_offsets()) for c in clouds) == len(table)
    assert "principal direction of z" in ax.get_xlabel()
    if colour == "alt":
        assert any(other.get_ylabel() == "alt (U/L)" for other in ax.figure.axes)
    assert plot.latent(model, table, dims=(1, 3), ax=plt.subplots()[1]).get_ylabel() == "z3"


def test_marks_of_many_rows_can_be_told_apart_in_greyscale(model):
    rows = visits(500)
    labels = [f"site {min(k % 20, 11):02d}" for k in range(len(rows))]
    ax = plot.latent(model, rows.assign(site=labels), "site")
    clouds = {c.get_label(): c for c in ax.collections}
    assert list(clouds)[-1] == "others"
    assert all(cloud.get_sizes()[0] >= 14 for cloud in clouds.values())
    hollow = [len(cloud.get_facecolors()) == 0 for cloud in clouds.values()]
    assert hollow == [False, True] * 4 + [False]
    assert clouds["others"].get_facecolors()[0][:3].max() < 0.5


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, t: plot.latent(m, t, "size"), r"no column 'size'"),
        (lambda m, t: plot.latent(m, t, dims=(0, 9)), r"expected two whole numbers from 1 to 3"),
        (lambda m, t: plot.training(m, terms=["loss"]), r"no term 'loss'"),
    ],
)  # fmt: skip
def test_bad_input_is_refused(model, table, call, message):
    with pytest.raises((DataError, ValueError), match=message):
        call(model, table)
