"""What holds for all models of the literature, beyond the contract of all models."""

import math

import numpy as np
import pandas as pd
import pytest

import lacova
from tests.models.literature import MODELS, fit

every_model = pytest.mark.parametrize("name", MODELS)


def answers(model, table):
    """Return the answers of a model in all digits."""
    tables = [model.impute(table), model.predict(table, draws=3), model.sample(table, draws=2), model.embed(table)]
    if model.schema.instance:
        tables.append(model.predict(table[::3], history=table[1::3], draws=3))
    numbers = [model.log_likelihood(table, draws=3).to_list(), model.elbo(table), model.score(table, draws=3)]
    return repr([*(part.to_dict("list") for part in tables), *numbers])


@every_model
def test_gaps_anywhere_are_filled_and_what_is_observed_stays(name, literature_models):
    table = MODELS[name][1]()
    done = literature_models[name].impute(table)
    assert table.isna().any().any()
    assert not done[list(literature_models[name].schema.columns)].isna().any().any()
    for column in table:
        seen = table[column].notna()
        assert done[column][seen].tolist() == table[column][seen].tolist()
    assert all(math.isfinite(value) for value in literature_models[name].elbo(table).values())
    assert np.isfinite(literature_models[name].log_likelihood(table)).all()


@every_model
def test_the_same_seed_and_a_saved_file_give_the_same_model(name, literature_models, tmp_path):
    model, table = literature_models[name], MODELS[name][1]()
    before = answers(model, table)
    assert answers(fit(name), table) == before
    assert fit(name, seed=1).elbo(table) != model.elbo(table)
    model.save(tmp_path / "model.lacova")
    loaded = lacova.load(tmp_path / "model.lacova")
    assert type(loaded) is type(model)
    assert loaded.describe() == model.describe()
    assert answers(loaded, table) == before


@every_model
def test_with_independent_noise_answers_do_not_depend_on_other_rows(name, literature_models):
    table = MODELS[name][1](gaps=0.0)
    one = table[table["id"] == "p3"] if "id" in table else table[7:8]
    together, apart = (literature_models[name].predict(rows, draws=5, independent_noise=True) for rows in (table, one))
    pd.testing.assert_frame_equal(apart, together.loc[one.index], rtol=1e-4)


@pytest.mark.parametrize("name", ["gpvae", "hivae"])
def test_rows_from_a_file_give_the_same_bound(name, tmp_path):
    make, rows = MODELS[name]
    table = rows().convert_dtypes()
    table = table.sort_values("id", ignore_index=True) if "id" in table else table
    table.to_parquet(tmp_path / "rows.parquet")
    one, other = (make().fit(data, max_epochs=2, batch_size=4) for data in (table, tmp_path / "rows.parquet"))
    assert other.elbo(table)["elbo"] == pytest.approx(one.elbo(table)["elbo"], rel=1e-6)
