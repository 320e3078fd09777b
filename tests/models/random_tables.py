"""Random schemas and tables with gaps, and a check that a model takes them."""

import math

import numpy as np
import pandas as pd
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from lacova import Schema
from tests.models.cases import assert_observed_entries_kept

TREATMENTS = ["joint", "factorised", "paper", "mean", "knn", "iterative", "zero"]
few_examples = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def tables(draw):
    """Draw a schema and a table for it: at least two different observed values per column, no gap in the instance."""
    measurements = [f"y{k}" for k in range(draw(st.integers(1, 3)))]
    kinds = draw(st.lists(st.sampled_from(["continuous", "categorical"]), min_size=1, max_size=3))
    covariates = {f"x{k}": kind for k, kind in enumerate(kinds)}
    instance = "id" if draw(st.booleans()) else None
    time = "t" if draw(st.booleans()) else None
    static = [name for name in covariates if instance and draw(st.booleans())]
    schema = Schema(measurements, covariates, instance, time, static)

    rows, rng = draw(st.integers(2, 10)), np.random.default_rng(draw(st.integers(0, 10**6)))
    patient = np.array([0, 1, *draw(st.lists(st.integers(0, 3), min_size=rows - 2, max_size=rows - 2))])
    columns = {"extra": rng.random(rows)}
    if instance:
        columns["id"] = np.array(["b", "a", "c", "d"])[patient]
    for name in (*schema.covariates, *measurements):
        units = patient if name in static else np.arange(rows)
        gaps = np.array(draw(st.lists(st.booleans(), min_size=rows, max_size=rows)))
        # Units 0 and 1 differ; one row of each is observed.
        observed = [draw(st.sampled_from(np.flatnonzero(units == unit).tolist())) for unit in (0, 1)]
        gaps[observed] = False
        if schema.covariates.get(name) == "categorical":
            values = np.array(["u", "v", *rng.choice(["u", "v", "w"], 8)], dtype=object)[units]
        else:
            values = (rng.permutation(10) + rng.random(10))[units] * 10.0 ** draw(st.integers(-3, 4))
        columns[name] = pd.Series(values).mask(gaps)
    frame = pd.DataFrame(columns)[draw(st.permutations(list(columns)))]
    return schema, frame.iloc[draw(st.permutations(range(rows)))].set_axis(np.array(draw(st.permutations(range(rows)))))


def check_no_gap_is_left(model, schema, frame):
    """Fit a model and check that answers are complete and finite, and that the table stays as it was."""
    model.fit(frame, max_epochs=2, batch_size=3)
    before = frame.copy()
    done = model.impute(frame)
    assert_observed_entries_kept(done, frame)
    assert not done[list(schema.columns)].isna().any(axis=None)

    predicted = model.predict(frame, draws=7)
    assert list(predicted.columns) == list(schema.measurements)
    pd.testing.assert_index_equal(predicted.index, frame.index)
    assert np.isfinite(predicted.to_numpy()).all()
    if schema.instance:
        later = model.predict(frame[:2], history=frame[2:], draws=7) if len(frame) > 2 else predicted
        assert np.isfinite(later.to_numpy()).all()

    density = model.log_likelihood(frame, draws=7)
    pd.testing.assert_index_equal(density.index, frame.index)
    assert np.isfinite(density.to_numpy()).all()
    terms = model.elbo(frame)
    assert all(math.isfinite(value) for value in terms.values()), terms
    pd.testing.assert_frame_equal(frame, before, check_exact=True)
