"""Imputation is measured on rows that training did not use, or the report says that it was not."""

import numpy as np
import pandas as pd
import pytest

import lacova
from lacova import report
from lacova.report.tested import FLATTERING, GIVEN, HELD_OUT, NEW, SEEN, choose_tested
from tests.report.cases import visits


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    common = rng.normal(size=120)
    table = pd.DataFrame({name: common + 0.5 * rng.normal(size=120) for name in ("alt", "ast")})
    return table.mask(rng.random(table.shape) < 0.1)


def fit(rows, validation, seed=0):
    return lacova.VAE(lacova.Schema(["alt", "ast"], {}), latent_dim=1).fit(rows, validation, max_epochs=5, seed=seed)


def test_the_rows_that_fit_held_out_are_tested(rows):
    model = fit(rows, 0.25)
    content = report.contents(model, rows.sample(frac=1.0, random_state=1), draws=10)
    assert content["tested"] == HELD_OUT
    assert len(content["recovery"].masked) == 30
    assert content["recovery"].share == 0.3  # of so few rows
    assert FLATTERING not in content["warnings"]
    held_out = rows[model.was_held_out(rows)]
    tested = choose_tested(model, rows, None)[0]
    pd.testing.assert_frame_equal(tested, held_out.reset_index(drop=True))


def test_a_report_on_training_rows_says_so(rows):
    content = report.contents(fit(rows, False), rows, draws=10)
    assert content["tested"] == SEEN
    assert len(content["recovery"].masked) == 120
    assert content["recovery"].share == 0.1
    assert FLATTERING in content["warnings"]
    page = report.page.render(content)
    assert "none of which are known to have been held out of training" in page


def test_what_is_given_comes_first(rows):
    content = report.contents(fit(rows, 0.25), rows, held_out=rows.tail(40), draws=10, share=0.2)
    assert content["tested"] == GIVEN
    assert (len(content["recovery"].masked), content["recovery"].share) == (40, 0.2)
    assert FLATTERING not in content["warnings"]


def test_rows_of_new_patients_are_fair_and_too_few_held_out_are_not_enough(model, table):
    assert choose_tested(model, table, None)[1] == SEEN
    assert choose_tested(model, visits(seed=3).assign(id=lambda t: "new " + t["id"]), None)[1] == NEW
    schema = lacova.Schema(["ast"], {"age": "continuous"}, instance="id", time="day")
    few, enough = (
        lacova.GPPriorVAE(schema, latent_dim=1, inducing=4).fit(table, share, max_epochs=1) for share in (0.375, 0.42)
    )
    assert choose_tested(few, table, None)[1] == SEEN  # nine patients
    tested, origin = choose_tested(enough, table, None)
    assert origin == HELD_OUT
    assert not set(tested["id"]) & set(enough.training_instances)
    assert tested["id"].nunique() == 10
