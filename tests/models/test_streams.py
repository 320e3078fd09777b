"""Answers to Parquet, against the answers to tables in memory."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import lacova
from lacova import CVAE, DataError, Dense, GPPriorVAE
from lacova.cli import main
from lacova.data.labels import Fingerprints
from lacova.models import streams
from tests.tables import RAGGED, ragged_visits

SMALL = {"latent_dim": 1, "networks": Dense((8,), (8,)), "covariates": "factorised"}
OPTIONS = {"max_epochs": 2, "batch_size": 4, "seed": 3, "device": "cpu"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("parquet")


@pytest.fixture(scope="module")
def file(ragged_file):
    return ragged_file


@pytest.fixture(scope="module")
def fitted(file):
    return GPPriorVAE(RAGGED, **SMALL, inducing=5).fit(file, **OPTIONS)


def cut(file, monkeypatch, rows=40):
    """Return the parts in which a stream is answered with so many rows at a time, and their seeds."""
    monkeypatch.setattr(streams, "ROWS_AT_A_TIME", rows)
    frame = pd.read_parquet(file)
    unit = pd.factorize(frame["id"])[0]
    starts = [0]
    while len(ends := np.flatnonzero((np.diff(unit) > 0) & (np.arange(1, len(frame)) >= starts[-1] + rows))):
        starts.append(int(ends[0]) + 1)
    pieces = [frame.iloc[a:b] for a, b in zip(starts, [*starts[1:], None], strict=True)]
    assert len(pieces) > 2
    return [(piece, 7 + 1_000_003 * k) for k, piece in enumerate(pieces)]


@pytest.mark.parametrize("settings", [{}, {"interval": 0.8}, {"draws": 3}])
def test_streamed_imputations_are_those_of_the_parts(file, folder, fitted, monkeypatch, settings):
    pieces = cut(file, monkeypatch)
    out = fitted.impute(file, out=folder / "imputed.parquet", seed=7, **settings)
    assert out == folder / "imputed.parquet"
    expected = pd.concat([fitted.impute(piece, seed=seed, **settings) for piece, seed in pieces], ignore_index=True)
    pd.testing.assert_frame_equal(pd.read_parquet(out), expected, check_exact=True, check_dtype=False)


def test_observed_entries_come_back_as_they_were(file, folder, fitted):
    before, after = (pq.read_table(path) for path in (file, fitted.impute(file, out=folder / "whole.parquet")))
    assert after.schema.equals(before.schema)
    for name in before.column_names:
        seen = before[name].is_valid()
        assert after[name].filter(seen).equals(before[name].filter(seen))
        assert after[name].null_count == 0


def test_columns_keep_their_types_over_parts_with_and_without_gaps(folder, monkeypatch):
    frame = ragged_visits()
    frame.loc[:60, ["sex", "dose", "a"]] = [["m", 0.5, 5.0]] * 61
    frame.loc[:60, "sex"] = np.where(pd.factorize(frame["id"])[0][:61] % 2, "f", "m")
    table = pa.table(
        {
            "id": pa.array(frame["id"]).dictionary_encode(),
            "day": pa.array(frame["day"]).cast(pa.float32()),
            "sex": pa.array(frame["sex"], from_pandas=True).dictionary_encode(),
            "dose": pa.array(frame["dose"], from_pandas=True).cast(pa.float32()),
            "a": pa.array(frame["a"].round(), from_pandas=True).cast(pa.int16()),
            "note": pa.array([{"free": k} for k in range(len(frame))]),
        }
    )
    path = folder / "types.parquet"
    pq.write_table(table, path, row_group_size=13)
    monkeypatch.setattr(streams, "ROWS_AT_A_TIME", 30)
    model = CVAE(RAGGED, **SMALL).fit(path, **OPTIONS)
    answer = pq.read_table(model.impute(path, probabilities=True, interval=0.9, out=folder / "typed.parquet"))
    assert answer.schema.names[:6] == table.schema.names
    assert [answer.schema.field(name).type for name in table.schema.names] == pq.read_schema(path).types
    assert answer["note"].to_pylist() == table["note"].to_pylist()
    assert {"sex_p_f", "sex_p_m", "dose_lower"} <= set(answer.schema.names)  # also where the first part has no gaps


def test_streamed_predictions_stand_beside_the_columns_of_x(file, folder, fitted, monkeypatch):
    pieces = cut(file, monkeypatch)
    frame = pd.read_parquet(file)
    answer = pd.read_parquet(fitted.predict(file, interval=0.5, out=folder / "predicted.parquet", seed=7))
    expected = pd.concat([fitted.predict(piece, interval=0.5, seed=seed) for piece, seed in pieces])
    assert list(answer) == ["id", "row", "day", "sex", "dose", "a", "a_lower", "a_upper"]
    pd.testing.assert_frame_equal(answer[["a", "a_lower", "a_upper"]], expected, check_exact=True)
    pd.testing.assert_frame_equal(answer[["id", "row", "day", "sex", "dose"]], frame.drop(columns="a"))
    answer = pd.read_parquet(fitted.sample(file, draws=2, out=folder / "sampled.parquet", seed=7))
    expected = pd.concat([fitted.sample(piece, draws=2, seed=seed) for piece, seed in pieces])
    assert list(answer) == ["draw", "id", "row", "day", "sex", "dose", "a"]
    assert answer[["draw", "a"]].to_numpy().tolist() == expected[["draw", "a"]].to_numpy().tolist()
    assert answer["row"].tolist() == expected.index.tolist()


def test_predictions_from_a_history(file, folder, fitted, monkeypatch):
    frame = pd.read_parquet(file)
    new = frame.groupby("id").tail(1).drop(columns="a")
    new.to_parquet(folder / "new.parquet", index=False)
    history = frame.drop(new.index)
    answer = pd.read_parquet(fitted.predict(folder / "new.parquet", history, out=folder / "next.parquet"))
    assert answer["a"].tolist() == fitted.predict(new, history)["a"].tolist()
    with pytest.raises(ValueError, match="history must be a table in memory, such as a DataFrame"):
        fitted.predict(folder / "new.parquet", file, out=folder / "next.parquet")


def test_answers_with_independent_noise_do_not_depend_on_the_parts(file, folder, fitted, monkeypatch):
    cut(file, monkeypatch)
    frame = pd.read_parquet(file)
    answer = pd.read_parquet(fitted.impute(file, independent_noise=True, out=folder / "alone.parquet"))
    pd.testing.assert_frame_equal(answer, fitted.impute(frame, independent_noise=True), check_dtype=False)


def test_streamed_scores_are_those_of_the_parts_together(file, fitted, monkeypatch):
    frame = pd.read_parquet(file)
    assert fitted.score(file, seed=7) == fitted.score(frame, seed=7)
    pieces = cut(file, monkeypatch)
    scores = [fitted.scores(piece, seed=seed) for piece, seed in pieces]
    entries = np.array([columns.loc["a", "entries"] for columns, _ in scores])
    columns, overall = fitted.scores(ds.dataset(file), seed=7)
    assert columns.loc["a", "entries"] == entries.sum() == frame["a"].notna().sum()
    for name in ("nll", "crps", "coverage90"):
        mean = np.average([columns.loc["a", name] for columns, _ in scores], weights=entries)
        np.testing.assert_allclose(columns.loc["a", name], mean, rtol=1e-12)
    np.testing.assert_allclose(
        overall["nll"] * len(frame), sum(w["nll"] * len(p) for (_, w), (p, _) in zip(scores, pieces, strict=True))
    )


def test_embeddings_and_likelihoods_stand_beside_the_rows(file, folder, fitted, monkeypatch):
    pieces = cut(file, monkeypatch)
    frame = pd.read_parquet(file)
    answer = pd.read_parquet(fitted.embed(file, out=folder / "embedded.parquet"))
    pd.testing.assert_frame_equal(answer[list(frame)], frame)
    np.testing.assert_allclose(answer[["z1", "z1_var"]], fitted.embed(frame), rtol=1e-5)  # float32, in other batches
    answer = pd.read_parquet(fitted.log_likelihood(file, draws=5, seed=7, out=folder / "likely.parquet"))
    expected = pd.concat([fitted.log_likelihood(piece, draws=5, seed=seed) for piece, seed in pieces])
    pd.testing.assert_series_equal(answer["log_likelihood"], expected, check_exact=True)


def test_an_answer_that_fails_leaves_nothing_behind(folder, fitted, monkeypatch):
    monkeypatch.setattr(streams, "ROWS_AT_A_TIME", 30)
    monkeypatch.setattr(fitted, "unseen", "error")
    good, place = ragged_visits(), folder / "place"
    place.mkdir()
    good.to_parquet(place / "old.parquet", index=False)
    good.loc[len(good) - 1, "sex"] = "other"
    good["sex"] = good["sex"].where(~good["id"].eq(good["id"].iloc[-1]), "other")
    good.to_parquet(folder / "bad.parquet", index=False)
    with pytest.raises(DataError, match="never seen in training"):
        fitted.impute(folder / "bad.parquet", out=place / "old.parquet")
    pd.concat([ragged_visits(), ragged_visits().head(1)]).to_parquet(folder / "twice.parquet", index=False)
    with pytest.raises(DataError, match="more than one place"):
        fitted.impute(folder / "twice.parquet", out=place / "new.parquet")
    assert [path.name for path in place.iterdir()] == ["old.parquet"]
    pd.testing.assert_frame_equal(pd.read_parquet(place / "old.parquet"), ragged_visits())


def test_out_is_needed_for_streams_only(file, folder, fitted):
    for ask in (fitted.impute, fitted.predict, fitted.sample, fitted.embed, fitted.log_likelihood):
        with pytest.raises(ValueError, match=r"goes to a file: give its name, out='answer.parquet'"):
            ask(file)
        with pytest.raises(ValueError, match="the answer to a table comes back as a table"):
            ask(ragged_visits(), out=folder / "x.parquet")


# The command line.


@pytest.fixture
def command(capsys):
    def run(*words, code=0):
        assert main([str(word) for word in words]) == code
        return capsys.readouterr()

    return run


def test_the_command_streams_folders_and_files(file, tmp_path, command, monkeypatch):
    monkeypatch.setattr("lacova.data.holdout.MIN_STREAM_ROWS", 1)
    (tmp_path / "data").mkdir()
    ragged_visits(80).to_parquet(tmp_path / "data" / "a.parquet", index=False)
    RAGGED.to_toml(tmp_path / "s.toml")
    run, small = tmp_path / "run", ["--latent-dim", 1, "--covariates", "factorised"]
    command("fit", tmp_path / "data", "--schema", tmp_path / "s.toml", "--out", run, "--epochs", 1, *small)
    model = lacova.load(run / "model.lacova")
    assert isinstance(model.training_instances, Fingerprints)
    assert 60 <= len(model.training_instances) < 80  # a tenth or so of the patients is held out
    assert "validation" in model.training
    out = tmp_path / "out.parquet"
    command("impute", run, tmp_path / "data", "--out", out, "--seed", 4)
    pd.testing.assert_frame_equal(pd.read_parquet(out), model.impute(ragged_visits(80), seed=4), check_dtype=False)
    command("predict", run, file, "--stream", "--out", out, "--interval", 0.5)
    assert list(pd.read_parquet(out)) == ["id", "row", "day", "sex", "dose", "a", "a_lower", "a_upper"]
    command("predict", run, file, "--stream", "--out", out, "--draws", 2)
    assert len(pd.read_parquet(out)) == 2 * len(ragged_visits())
    assert command("score", run, file, "--stream", "--json").out == command("score", run, file, "--json").out
    assert "over all measurements" in command("score", run, file, "--stream").out
    monkeypatch.setattr("lacova.cli.common.STREAM_BYTES", 10)
    error = command("impute", run, file, code=1).err  # large enough now to be streamed
    assert error == "lacova: the answer to a stream goes to a file: give --out FILE.parquet.\n"
