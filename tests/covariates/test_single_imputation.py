"""Single imputation: the value of each rule at a gap, learnt from the training rows alone."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.impute import KNNImputer
from torch.testing import assert_close

from lacova import DataError, Schema
from lacova.covariates.single_imputation import FILLS, Fill
from lacova.data.table_encoder import TableEncoder

SCHEMA = Schema(["y"], {"dose": "continuous", "arm": "categorical", "age": "continuous", "sex": "categorical"})
RULES = [kind for kind in FILLS if kind != "oracle"]


def frame(n=40, missing=0.25, seed=0):
    rng = np.random.default_rng(seed)
    arm = rng.choice(["a", "b", "c"], n, p=[0.2, 0.5, 0.3])
    age = 50.0 + 8.0 * rng.standard_normal(n)
    dose = 20.0 + 0.5 * age + (arm == "b") * 30.0 + rng.standard_normal(n)
    data = pd.DataFrame({"dose": dose, "arm": arm, "age": age, "sex": rng.choice(["f", "m"], n, p=[0.3, 0.7])})
    data = data.mask(pd.DataFrame(rng.random(data.shape) < missing, columns=data.columns))
    return data.assign(y=rng.standard_normal(n))


def learn(kind, train):
    encoder = TableEncoder.learn(SCHEMA, train)
    return Fill.learn(kind, encoder, encoder.encode(train, dtype=torch.float64)), encoder


def filled(fill, encoder, data):
    """The frame completed by the rule, in its own units."""
    done = fill(encoder.encode(data, dtype=torch.float64))
    return pd.DataFrame(
        {name: encoder.decode_covariate(name, done.x[:, q]) for q, name in enumerate(SCHEMA.covariates)}
    )


@pytest.mark.parametrize("kind", RULES)
@pytest.mark.parametrize("seed", [0, 1])
def test_gaps_are_closed_and_observed_entries_kept(kind, seed):
    train, new = frame(), frame(15, 0.5, seed=seed + 5)
    fill, encoder = learn(kind, train)
    for data in (train, new):
        table = encoder.encode(data, dtype=torch.float64)
        done = fill(table)
        assert done.x_mask.all()
        assert torch.isfinite(done.x).all()
        assert torch.equal(done.x[table.x_mask], table.x[table.x_mask])
        assert done.x.dtype == table.x.dtype
        assert done.y is table.y
        for name in ("arm", "sex"):
            codes = done.x[:, encoder.space.names.index(name)]
            assert set(codes.tolist()) <= set(range(len(encoder.levels[name])))
        assert not table.x_mask.all()  # the argument is not changed
    single = encoder.encode(new)
    assert fill(single).x.dtype == torch.float32


@pytest.mark.parametrize("kind", FILLS)
def test_a_complete_table_is_returned_as_it_is(kind):
    fill, encoder = learn(kind, frame(missing=0.0))
    table = encoder.encode(frame(10, 0.0, seed=3))
    assert fill(table) is table


@pytest.mark.parametrize("kind", RULES)
def test_rules_are_learnt_from_training_rows_only(kind):
    """A new row is completed in the same way by itself, among other rows, and after others."""
    new = frame(12, 0.4, seed=9)
    fill, encoder = learn(kind, frame())
    together = filled(fill, encoder, new)
    for i in range(len(new)):
        single = filled(fill, encoder, new.iloc[[i]])
        pd.testing.assert_frame_equal(single, together.iloc[[i]].reset_index(drop=True), rtol=1e-10)
    pd.testing.assert_frame_equal(filled(fill, encoder, new), together)
    other, other_encoder = learn(kind, frame(seed=4).assign(dose=lambda f: f["dose"] - 100.0))
    assert (kind == "zero") == np.allclose(filled(other, other_encoder, new)["dose"], together["dose"])


def test_mean_fills_means_and_modes():
    train, new = frame(), frame(10, 0.6, seed=2)
    done = filled(*learn("mean", train), new)
    for name in ("dose", "age"):
        assert np.allclose(done[name][new[name].isna()], train[name].mean(), rtol=1e-8)
    for name in ("arm", "sex"):
        assert (done[name][new[name].isna()] == train[name].mode()[0]).all()


def test_zero_is_zero_in_own_units_and_the_first_level():
    new = frame(10, 0.6, seed=2)
    done = filled(*learn("zero", frame()), new)
    for name in ("dose", "age"):
        assert np.allclose(done[name][new[name].isna()], 0.0, atol=1e-10)
    assert (done["arm"][new["arm"].isna()] == "a").all()
    assert (done["sex"][new["sex"].isna()] == "f").all()


def test_knn_is_scikit_learns_on_scaled_numbers_and_one_hot_levels():
    train, new = frame(), frame(15, 0.4, seed=8)

    def features(data):
        parts = [(data[name] - train[name].mean()) / train[name].std(ddof=0) for name in ("dose", "age")]
        for name, levels in (("arm", "abc"), ("sex", "fm")):
            parts += [(data[name] == level).astype(float).where(data[name].notna()) for level in levels]
        return np.stack(parts, 1)

    expected = KNNImputer().fit(features(train)).transform(features(new))
    fill, encoder = learn("knn", train)
    done = fill(encoder.encode(new, dtype=torch.float64)).x
    assert_close(done[:, [0, 2]], torch.tensor(expected[:, :2]), rtol=1e-8, atol=1e-10)
    assert_close(done[:, 1], torch.tensor(expected[:, 2:5]).argmax(1).double())
    assert_close(done[:, 3], torch.tensor(expected[:, 5:]).argmax(1).double())


def test_iterative_follows_the_dependence_between_columns():
    train, new = frame(200), frame(100, 0.0, seed=6)
    error = {
        kind: (filled(*learn(kind, train), new.assign(dose=np.nan))["dose"] - new["dose"]).abs().mean()
        for kind in RULES
    }
    assert error["iterative"] < 0.2 * error["mean"]
    assert error["knn"] < 0.5 * error["mean"]


def test_iterative_predicts_levels_better_than_the_mode():
    """With all levels as features, which sum to one, each would be predicted from the starting values of the others and
    never change. Without the first level, 82% of these are right, against 46% for the mode."""
    train, new = frame(200), frame(100, 0.0, seed=6)
    done = filled(*learn("iterative", train), new.assign(arm=None))["arm"]
    assert (done == new["arm"]).mean() > (new["arm"] == train["arm"].mode()[0]).mean() + 0.15


def test_oracle_refuses_gaps_and_names_their_columns():
    fill, encoder = learn("oracle", frame(missing=0.0))
    data = frame(10, 0.0, seed=3)
    data.loc[[1, 4], "dose"] = np.nan
    data.loc[7, "sex"] = None
    with pytest.raises(DataError, match=r"needs complete covariates, but there are gaps: 2 in 'dose', 1 in 'sex'\.$"):
        fill(encoder.encode(data))


@pytest.mark.parametrize("kind", RULES)
def test_static_columns_stay_constant_within_a_patient(kind):
    """Imputers work row by row, which would give one patient several ages and sexes, and `encode` would refuse them."""
    schema = Schema(["y"], dict(SCHEMA.covariates), instance="id", time="day", static=["age", "sex"])
    data = frame(60).assign(id=np.arange(60) // 3, day=np.arange(60) % 3)
    data[["age", "sex"]] = data.groupby("id")[["age", "sex"]].transform("first")
    data.loc[data["id"] % 3 == 0, ["age", "sex"]] = None
    encoder = TableEncoder.learn(schema, data)
    table = encoder.encode(data, dtype=torch.float64)
    done = Fill.learn(kind, encoder, table)(table)
    for name in ("age", "sex"):
        values = pd.Series(done.x[:, encoder.space.names.index(name)])
        assert (values.groupby(table.patient.numpy()).nunique() == 1).all()
