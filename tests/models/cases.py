"""Small models and tables with gaps that the tests of models share."""

import numpy as np
import pandas as pd
import pytest

from lacova import CVAE, Dense, GPPriorVAE
from lacova.data.io.archive import digest

SMALL = {"latent_dim": 2, "networks": Dense((8,), (8,))}


def small_cvae(schema, **settings):
    return CVAE(schema, **{**SMALL, **settings})


def small_conditional_cvae(schema, **settings):
    return small_cvae(schema, latent_prior="conditional", **settings)


def small_gp(schema, **settings):
    return GPPriorVAE(schema, **{**SMALL, "inducing": 5, **settings})


MODELS = {"cvae": small_cvae, "conditional": small_conditional_cvae, "gp": small_gp}
every_model = pytest.mark.parametrize("make", MODELS.values(), ids=MODELS.keys())


def numbered_visits(seed=0, patients=8, times=4, gaps=0.25):
    """Return visits for `tests.tables.VISITS` on whole days, numbered from 100: interleaved patients, gaps anywhere."""
    rng = np.random.default_rng(seed)
    patient = np.tile(np.arange(patients), times)
    age, sex = rng.normal(50, 10, patients)[patient], np.array(["f", "m"])[patient % 2]
    day = np.repeat(np.arange(float(times)), patients)
    alt = 30 + 0.4 * (age - 50) + 2 * day + rng.normal(0, 1, len(patient))
    ast = 20 - 3 * (sex == "m") + rng.normal(0, 1, len(patient))
    ids = np.array([f"p{k}" for k in range(patients)])[patient]
    frame = pd.DataFrame({"id": ids, "day": day, "age": age, "sex": sex, "alt": alt, "ast": ast})
    frame.index = pd.Index(np.arange(100, 100 + len(patient)), name="visit")
    holes = rng.random((len(patient), 5)) < gaps
    frame.iloc[:, 1:] = frame.iloc[:, 1:].mask(holes)
    return frame


def assert_observed_entries_kept(done, frame):
    """Assert that a completed table has the columns, the index and the observed entries of the table with gaps."""
    assert list(done.columns) == list(frame.columns)
    pd.testing.assert_index_equal(done.index, frame.index)
    for name in frame.columns:
        seen = frame[name].notna().to_numpy()
        pd.testing.assert_series_equal(done[name][seen], frame[name][seen], check_exact=True)


def same_weights(one, other):
    """Return whether two fitted models have the same weights to the last bit."""
    return digest(one.vae.state_dict()) == digest(other.vae.state_dict())
