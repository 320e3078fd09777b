"""The prior and the posterior of a missing covariate."""

import pandas as pd
import pytest
from matplotlib.container import BarContainer

from lacova import plot
from lacova.data.errors import DataError


def test_covariate_posterior_prior_and_truth(model, table):
    ax = plot.covariate(model, table, "age", truth=52.0, draws=60)
    assert [line.get_label() for line in ax.lines][-1] == "truth"
    assert len(ax.lines) == 3
    assert ax.get_xlabel() == "age (years)"
    complete = table.assign(age=table["age"].fillna(52.0))
    again = plot.covariate(model, table, "age", truth=complete, draws=60)
    assert again.lines[-1].get_xdata() == ax.lines[-1].get_xdata()
    bars = plot.covariate(model, table, "arm", truth="a", draws=60)
    groups = [c for c in bars.containers if isinstance(c, BarContainer)]
    for group in groups:
        assert sum(bar.get_height() for bar in group) == pytest.approx(1.0)
    assert len({bar.get_hatch() for group in groups for bar in group}) == 2
    assert "a\n(truth)" in [t.get_text() for t in bars.get_xticklabels()]


def test_prior_draws_do_not_depend_on_measurements(model, table):
    before = model.prior_covariates(table, draws=3, seed=1)
    other = model.prior_covariates(table.assign(alt=table["alt"] + 9, ast=3.0), draws=3, seed=1)
    pd.testing.assert_frame_equal(before, other)
    assert list(before) == ["draw", "id", "sex", "age", "arm", "day"]
    known = table["arm"].notna().to_numpy()
    assert (before["arm"].to_numpy()[: len(table)][known] == table["arm"][known].to_numpy()).all()
    assert before["arm"].notna().all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, t: plot.covariate(m, t, "age", truth=t[:3]), r"truth has 3 row\(s\), data \d+; expected"),
        (lambda m, t: plot.covariate(m, t, "day"), r"'day' has no gap"),
        (lambda m, t: plot.covariate(m, t, "arm", int(t["arm"].notna().argmax())), r"is not missing in row"),
    ],
)  # fmt: skip
def test_bad_input_is_refused(model, table, call, message):
    with pytest.raises((DataError, ValueError), match=message):
        call(model, table)
