"""Levels that training rows do not show: declared ones in a fit, and unseen ones in the tables of every answer."""

import copy
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest

import lacova
from lacova import CVAE, DataError, Dense, GPPriorVAE, Schema, UnseenLevelWarning
from lacova.cli import main
from lacova.models import streams
from lacova.report import contents

LEVELS = {
    "arm": ["a", "b", "c"], "event": ["none", "mild", "severe"], "response": ["worse", "same", "better", "cured"],
    "site": ["p", "q", "r"],
}  # fmt: skip
KINDS = {"alt": "gaussian", "response": "ordinal", "site": "categorical"}
COVARIATES = {"arm": "categorical", "event": "categorical", "day": "continuous"}
VISITS = Schema(KINDS, COVARIATES, instance="id", time="day", static=["arm"], levels=LEVELS)
ROWS = Schema(KINDS, COVARIATES, levels=LEVELS)
SEEN = {"arm": ["a", "b"], "event": ["none", "mild"], "response": ["same", "better", "worse"], "site": ["p", "q"]}
SMALL = {"latent_dim": 1, "networks": Dense((4,), (4,))}


def visits(patients=20, count=3, seed=0):
    rng = np.random.default_rng(seed)
    n, patient = patients * count, np.repeat(np.arange(patients), count)
    table = pd.DataFrame({
        "id": [f"p{p}" for p in patient], "day": np.tile(np.arange(count) * 10.0, patients),
        "arm": np.where(patient % 2, "a", "b"), "event": rng.choice(SEEN["event"], n), "alt": rng.normal(30, 5, n),
        "response": rng.choice(SEEN["response"], n), "site": rng.choice(SEEN["site"], n),
    })  # fmt: skip
    for name in ("event", "alt", "response", "site"):
        table.loc[rng.random(n) < 0.1, name] = None
    table.loc[patient % 7 == 3, "arm"] = None
    return table


def strange(table):
    """Return the table with unseen levels in a few entries, and with gaps in their place."""
    unseen, gaps = table.copy(), table.copy()
    patient = table["id"] == "p2"
    for frame, values in ((unseen, ("z", "fatal", "dead", "x")), (gaps, (None,) * 4)):
        frame.loc[patient, "arm"] = values[0]
        for row, (name, value) in enumerate(zip(("event", "response", "site"), values[1:], strict=True)):
            frame.loc[row, name] = value
    return unseen, gaps


def make(schema, **settings):
    kind = CVAE if schema.instance is None else GPPriorVAE
    inducing = {} if schema.instance is None else {"inducing": 5}
    return kind(schema, **SMALL, **inducing, **settings)


@pytest.fixture(scope="module", params=[VISITS, ROWS], ids=["patients", "rows"])
def ensemble(request):
    """A model of levels that are declared and do not occur, with members on bootstrap samples."""
    return make(request.param).fit(visits(), max_epochs=3, members=2, device="cpu")


@pytest.fixture(scope="module")
def fitted():
    """A model of the levels that occur."""
    schema = Schema(KINDS, COVARIATES, instance="id", time="day", static=["arm"], levels={"response": SEEN["response"]})
    return make(schema).fit(visits(), max_epochs=2, members=1, device="cpu")


# Levels that are declared.


def test_declared_levels_without_data_have_small_probabilities(ensemble):
    assert ensemble.encoder.levels == {name: tuple(levels) for name, levels in LEVELS.items()}
    for vae in (ensemble.vae, *ensemble.members):
        state = vae.state_dict()
        assert not any(value.isnan().any() for value in state.values())
        for q, name in enumerate(ensemble.schema.covariates):
            if name in LEVELS:
                table = ensemble.encode(visits())
                probs = vae.condition(table).conditional_prior.distribution.log_prob[:, q].exp()
                assert (probs > 0.0).all()
                assert (probs[:, len(SEEN[name]) :] < 0.1).all()
    filled = ensemble.impute(visits(), probabilities=True)
    probabilities = filled[[name for name in filled if "_p_" in name]]
    assert len(probabilities.columns) == 13
    assert np.isfinite(probabilities).all(axis=None)
    assert (probabilities[["arm_p_c", "event_p_severe", "response_p_cured", "site_p_r"]].mean() < 0.2).all()


def test_rows_with_declared_levels_without_data_are_answered(ensemble):
    rows = visits().assign(event="severe")
    rows.loc[:2, ["response", "site"]] = ["cured", "r"]
    rows["arm"] = np.where(rows["id"] == "p2", "c", rows["arm"])
    assert np.isfinite(list(ensemble.score(rows, draws=5).values())).all()
    assert np.isfinite(ensemble.log_likelihood(rows, draws=5)).all()
    average = ensemble.what_if(visits(), {"arm": "c", "event": "severe"}, draws=10).average
    assert np.isfinite(average.drop(columns="measurement").to_numpy(float)).all()


def test_declared_levels_are_saved(ensemble, tmp_path):
    ensemble.save(tmp_path / "model.lacova")
    again = lacova.load(tmp_path / "model.lacova")
    assert again.schema == ensemble.schema
    assert again.encoder.levels == ensemble.encoder.levels
    pd.testing.assert_frame_equal(again.impute(visits()), ensemble.impute(visits()))


@pytest.mark.parametrize("kind", [lacova.VAE, lacova.HIVAE])
def test_models_of_measurements_alone_have_declared_levels(kind):
    model = kind(ROWS, **SMALL).fit(visits(), max_epochs=1, members=1, device="cpu")
    assert model.encoder.levels == {name: tuple(LEVELS[name]) for name in ("response", "site")}


def test_categories_of_pandas_declare_levels():
    table = visits().assign(event=pd.Categorical(visits()["event"], LEVELS["event"], ordered=True))
    schema = Schema(["alt"], COVARIATES, instance="id", time="day")
    fitted = make(schema).fit(table, max_epochs=1, members=1, device="cpu")
    assert fitted.encoder.levels == {"arm": ("a", "b"), "event": ("none", "mild", "severe")}
    filled = fitted.impute(table.assign(event=table["event"].astype(object).replace("mild", "severe")))
    assert set(filled["event"][table["event"] == "mild"]) == {"severe"}  # without a warning, which would be an error


def test_training_rows_with_a_level_that_is_not_declared_are_refused():
    table = visits()
    table.loc[0, "event"] = "fatal"
    with pytest.raises(DataError, match="column 'event' holds 'fatal', but the schema declares the levels 'none', "):
        make(VISITS).fit(table, max_epochs=1)


# Levels that are unseen.


ANSWERS = {
    "impute": lambda model, table: model.impute(table),
    "impute with probabilities": lambda model, table: model.impute(table, interval=0.9, probabilities=True),
    "draws": lambda model, table: model.impute(table, draws=2),
    "prior_covariates": lambda model, table: model.prior_covariates(table, draws=2),
    "predict": lambda model, table: model.predict(table),
    "predict from a history": lambda model, table: model.predict(table[::3], table),
    "sample": lambda model, table: model.sample(table, draws=2),
    "what_if": lambda model, table: model.what_if(table, {"arm": "a"}, draws=5).rows,
    "filter": lambda model, table: model.filter(table, draws=5),
    "effects": lambda model, table: model.effects(table, draws=5).rows,
    "log_likelihood": lambda model, table: model.log_likelihood(table, draws=3).to_frame(),
    "score": lambda model, table: model.score(table, columns=True, draws=3),
    "embed": lambda model, table: model.embed(table),
    "elbo": lambda model, table: pd.DataFrame([model.elbo(table)]),
    "recover": lambda model, table: lacova.recover(model, table, share=0.5, draws=4).masked,
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_every_answer_is_that_to_gaps_with_one_warning(fitted, answer, monkeypatch):
    table, gaps = strange(visits())
    expected = answer(fitted, gaps)
    with pytest.warns(UnseenLevelWarning) as caught:
        given = answer(fitted, table)
    assert len(caught) == 1
    assert "of 'arm' ('z')" in str(caught[0].message)
    own = ["draw"] if "draw" in expected else []
    same = [name for name in expected if name in own or name not in ("arm", "event", "response", "site")]
    pd.testing.assert_frame_equal(given[same], expected[same])
    with monkeypatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("error")
        patch.setattr(fitted, "unseen", "missing")
        pd.testing.assert_frame_equal(answer(fitted, table), given)
        patch.setattr(fitted, "unseen", "error")
        with pytest.raises(DataError, match="never seen in training; known levels are"):
            answer(fitted, table)


@pytest.mark.filterwarnings("ignore::lacova.UnseenLevelWarning")
@pytest.mark.parametrize("draws", [None, 2])
def test_entries_of_unseen_levels_stay_as_they_are(fitted, draws):
    table, gaps = strange(visits())
    filled, expected = fitted.impute(table, draws=draws), fitted.impute(gaps, draws=draws)
    many = pd.concat([table] * (draws or 1))
    assert filled[table.columns].notna().all(axis=None)
    assert filled[table.columns].where(many.notna()).equals(many.where(many.notna()))
    elsewhere = (table.notna() == gaps.notna()).to_numpy()
    elsewhere = np.concatenate([elsewhere] * (draws or 1))
    assert filled[table.columns].where(elsewhere).equals(expected[table.columns].where(elsewhere))
    of_polars = fitted.impute(pl.from_pandas(table), draws=draws)
    assert of_polars["arm"].to_list() == filled["arm"].tolist()


def test_a_gap_of_a_patient_with_an_unseen_level_at_another_visit_gets_that_level(fitted):
    table, _ = strange(visits())
    own = np.flatnonzero(table["id"] == "p2")
    table.loc[own[0], "arm"] = None
    with pytest.warns(UnseenLevelWarning, match=r"2 of 'arm' \('z'\)"):
        assert fitted.impute(table)["arm"].iloc[own].tolist() == ["z"] * 3


def test_probabilities_of_an_unseen_entry_are_those_of_a_gap(fitted):
    table, gaps = strange(visits().dropna(subset=["site", "event"]).reset_index(drop=True))
    expected = fitted.impute(gaps, probabilities=True)
    with pytest.warns(UnseenLevelWarning):
        filled = fitted.impute(table, probabilities=True)
    columns = ["site_p_p", "site_p_q", "event_p_none", "event_p_mild"]
    pd.testing.assert_frame_equal(filled[columns], expected[columns])
    assert 0.0 < filled["site_p_p"][2] < 1.0


def test_a_stream_gives_one_warning_with_the_counts_of_all_parts(fitted, tmp_path, monkeypatch):
    monkeypatch.setattr(streams, "ROWS_AT_A_TIME", 9)
    table, _ = strange(visits())
    table.loc[len(table) - 1, "site"] = "y"
    table.to_parquet(tmp_path / "data.parquet", index=False)
    for answer in (
        lambda: fitted.impute(tmp_path / "data.parquet", out=tmp_path / "out.parquet"),
        lambda: fitted.score(tmp_path / "data.parquet", draws=2),
    ):
        with pytest.warns(UnseenLevelWarning, match=r"^7 entries .* 2 of 'site' \('x', 'y'\)") as caught:
            answer()
        assert len(caught) == 1
    filled = pd.read_parquet(tmp_path / "out.parquet")
    assert filled["site"].where(table["site"].notna()).equals(table["site"])


def test_a_report_gives_one_warning(fitted):
    table, _ = strange(visits())
    with pytest.warns(UnseenLevelWarning) as caught:
        content = contents(fitted, table, draws=10)
    assert [warning.category for warning in caught].count(UnseenLevelWarning) == 1
    assert "z" not in next(column for column in content["columns"] if column["name"] == "arm")["summary"]


def test_an_answer_that_is_asked_for_by_name_is_refused(fitted, monkeypatch):
    monkeypatch.setattr(fitted, "unseen", "missing")
    table, _ = strange(visits())
    with pytest.raises(DataError, match="column 'event' holds 'fatal', never seen in training; known levels are"):
        fitted.what_if(table, {"event": "fatal"}, draws=2)


def test_the_setting_is_checked_and_saved(fitted, tmp_path):
    with pytest.raises(ValueError, match="unseen is 'never'; expected one of warn, missing, error"):
        CVAE(ROWS, unseen="never")
    model = copy.copy(fitted)
    model.unseen = "error"
    model.save(tmp_path / "model.lacova")
    assert lacova.load(tmp_path / "model.lacova").unseen == "error"


# Rows to choose the best weights by.


@pytest.mark.parametrize("roles", [{"instance": "id", "time": "day", "static": ["arm"]}, {}], ids=["patients", "rows"])
def test_validation_rows_with_unseen_levels_count_as_gaps(roles):
    schema = Schema({"alt": "gaussian", "site": "categorical"}, COVARIATES, **roles)
    table, gaps = strange(visits(seed=1))
    options = {"max_epochs": 1, "members": 1, "device": "cpu"}
    expected = make(schema).fit(visits(), gaps, **options)
    with pytest.warns(UnseenLevelWarning, match="^5 entries") as caught:
        fitted = make(schema).fit(visits(), table, **options)
    assert [warning.category for warning in caught].count(UnseenLevelWarning) == 1
    pd.testing.assert_frame_equal(fitted.training, expected.training)
    assert fitted.held_out.prints.tolist() == expected.held_out.prints.tolist()
    with pytest.raises(DataError, match="never seen in training"):
        make(schema, unseen="error").fit(visits(), table, **options)


@pytest.mark.parametrize("stream", [(), ("--stream",)], ids=["in memory", "stream"])
def test_fit_does_not_refuse_rare_levels_of_its_own_table(tmp_path, stream, capsys):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"id": np.arange(2500), "event": rng.choice(["none", "mild"], 2500)})
    table["alt"] = rng.normal(size=2500)
    for k in range(5):
        table.loc[400 * k + 7, "event"] = f"rare {k}"
    table.to_parquet(tmp_path / "data.parquet", index=False)
    Schema(["alt"], {"event": "categorical"}, instance="id").to_toml(tmp_path / "s.toml")
    held_out = 0
    for seed in range(4):
        words = ("--epochs", 1, "--set", "members=1", "--latent-dim", 1, "--model", "cvae", "--device", "cpu")
        words = ("fit", tmp_path / "data.parquet", "--schema", tmp_path / "s.toml", *words, *stream, "--seed", seed)
        assert main([str(word) for word in (*words, "--out", tmp_path / f"run{seed}", "--quiet")]) == 0
        assert "never seen" not in capsys.readouterr().err
        fitted = lacova.load(tmp_path / f"run{seed}" / "model.lacova")
        assert fitted.encoder.levels["event"] == ("mild", "none", *(f"rare {k}" for k in range(5)))
        held_out += int(fitted.was_held_out(table[table["event"].str.startswith("rare")]).sum())
    assert (held_out > 0) == bool(stream)  # in memory, they stay in training
