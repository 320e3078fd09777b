"""Training from Parquet, and answers to it, against the same from tables in memory."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
import torch

import lacova
import lacova.models.inference
import lacova.training.stream
from lacova import CVAE, DataError, Dense, GPPriorVAE
from lacova.cli import main
from lacova.data.labels import Fingerprints
from lacova.training.loader import TableLoader, tensors
from lacova.training.options import FitOptions
from lacova.training.step import Step
from lacova.training.stream import StreamLoader, ahead
from tests.tables import RAGGED as SCHEMA
from tests.tables import RAGGED_ROWS as ROWS
from tests.tables import ragged_visits as visits

SMALL = {"latent_dim": 1, "networks": Dense((8,), (8,)), "covariates": "factorised"}
OPTIONS = {"max_epochs": 2, "batch_size": 4, "seed": 3, "device": "cpu"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("parquet")


@pytest.fixture(scope="module")
def file(folder):
    """Row groups of 11 rows, so that many patients lie in two of them."""
    path = folder / "visits.parquet"
    visits().to_parquet(path, row_group_size=11, index=False)
    return path


@pytest.fixture(scope="module")
def fitted(file):
    return GPPriorVAE(SCHEMA, **SMALL, inducing=5).fit(file, **OPTIONS)


def begun(data, schema=SCHEMA, covariates="factorised", **options):
    """A model about to be trained: rows and networks."""
    settings = FitOptions(**{"batch_size": 4, "seed": 3, "masked_loss": 1.0, **options})
    model = CVAE(schema, **{**SMALL, "covariates": covariates})
    start = model._begin(data, None, settings, torch.device("cpu"))
    with torch.random.fork_rng():
        torch.manual_seed(3)
        vae = model._assemble(start.encoder, start.table, 3)
    start.train.condition(vae)
    return start.train, vae


def parts(batch):
    """Everything that a batch consists of."""
    given = batch.conditional_prior
    return [batch.y, batch.y_mask, batch.x, batch.x_mask, batch.patient, torch.tensor(batch.patients)] + (
        []
        if given is None
        else [given.distribution.mean, given.distribution.var, given.distribution.log_prob, given.log_marginal]
    )


def same(one, other):
    one, other = list(one), list(other)
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        assert (a.hidden is None) == (b.hidden is None)
        assert a.shown.scale == b.shown.scale
        assert all(torch.equal(x, y) for x, y in zip(tensors(a.how), tensors(b.how), strict=True))
        for mine, theirs in ((a.shown, b.shown), (a.hidden, b.hidden)):
            if mine is not None:
                assert all(torch.equal(x, y) for x, y in zip(parts(mine), parts(theirs), strict=True))


def weights(model):
    return model._fitted()[1].state_dict()


def equal_weights(one, other):
    one, other = weights(one), weights(other)
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


# Batches


@pytest.mark.parametrize("schema", [SCHEMA, ROWS], ids=["patients", "rows"])
def test_one_pool_gives_the_batches_of_the_table_in_memory(file, schema):
    streamed, vae = begun(file, schema, "joint", buffer_rows=len(visits()))
    in_memory, _ = begun(pd.read_parquet(file), schema, "joint")
    assert isinstance(streamed, StreamLoader)
    assert isinstance(in_memory, TableLoader)
    assert (streamed.length, streamed.units, streamed.steps) == (in_memory.length, in_memory.units, in_memory.steps)
    in_memory.condition(vae)
    for epoch in (0, 1):
        same(streamed.epoch(vae, epoch), in_memory.epoch(vae, epoch))
    same(streamed.in_order(vae), in_memory.in_order(vae))
    same(streamed.in_order(vae, hide=False), in_memory.in_order(vae, hide=False))
    noise = [torch.Generator().manual_seed(0) for _ in range(2)]
    one, other = (rows.complete(vae, own) for rows, own in zip((streamed, in_memory), noise, strict=True))
    assert torch.equal(one.x, other.x)


@pytest.fixture(scope="module")
def named(folder):
    """Loader whose first measurement names the patient and whose second names the row."""
    frame = visits(40)
    frame["who"] = pd.factorize(frame["id"])[0]
    path = folder / "named.parquet"
    frame.to_parquet(path, row_group_size=9, index=False)
    return path, frame, replace(SCHEMA, measurements=("who", "row"))


@pytest.mark.parametrize(
    ("buffer_rows", "batch_size"), [(1, 3), (20, 3), (20, 7), (50, 100), (100, 7), (1000, 3), (1000, 100)]
)
def test_an_epoch_has_every_patient_once_whole_and_in_full_batches(named, buffer_rows, batch_size):
    path, frame, schema = named
    model = CVAE(schema, **SMALL, scaling="none")
    settings = FitOptions(batch_size=batch_size, buffer_rows=buffer_rows, masked_loss=1.0)
    start = model._begin(path, None, settings, torch.device("cpu"))
    rows, vae = start.train, model._assemble(start.encoder, start.table, 0)
    rows.condition(vae)
    units = frame["who"].nunique()
    for walk in (rows.epoch(vae, 0), rows.epoch(vae, 1), rows.in_order(vae)):
        seen, sizes = [], []
        for training_batch in walk:
            who, row = training_batch.shown.y.long().T.tolist()
            sizes.append(training_batch.shown.patients)
            assert row == [r for w in dict.fromkeys(who) for r in frame.index[frame["who"] == w]]  # whole, in order
            assert training_batch.shown.patient.tolist() == pd.factorize(np.array(who))[0].tolist()
            assert torch.equal(training_batch.hidden.y, training_batch.shown.y)
            assert not (training_batch.hidden.x_mask & ~training_batch.shown.x_mask).any()
            seen += row
        assert sorted(seen) == list(range(len(frame)))
        assert len(sizes) == rows.steps
        assert set(sizes[:-1]) <= {min(batch_size, units)}
        assert sum(sizes) == units
    scales = [training_batch.shown.scale for training_batch in rows.epoch(vae, 0)]
    assert scales == [units / size for size in sizes]
    assert {training_batch.shown.scale for training_batch in rows.in_order(vae)} == {1.0}


@pytest.mark.parametrize("buffer_rows", [15, 40])
def test_epochs_differ_and_seeds_reproduce_them(file, buffer_rows):
    rows, vae = begun(file, buffer_rows=buffer_rows)
    again, _ = begun(file, buffer_rows=buffer_rows)
    again.ahead = True  # in another thread, as where a GPU trains
    same(rows.epoch(vae, 5), again.epoch(vae, 5))
    other, _ = begun(file, buffer_rows=buffer_rows, seed=4)
    first = [training_batch.shown.y.tolist() for training_batch in rows.epoch(vae, 0)]
    assert first != [training_batch.shown.y.tolist() for training_batch in rows.epoch(vae, 1)]
    assert first != [training_batch.shown.y.tolist() for training_batch in other.epoch(vae, 0)]


@pytest.mark.parametrize("buffer_rows", [15, 40, 1000])
def test_an_epoch_can_begin_at_any_step(file, buffer_rows, monkeypatch):
    rows, vae = begun(file, buffer_rows=buffer_rows)
    whole = list(rows.epoch(vae, 2))
    read = []
    encode = rows.encode
    monkeypatch.setattr(rows, "encode", lambda table: read.append(len(table)) or encode(table))
    for first in range(rows.steps + 1):
        read.clear()
        same(rows.epoch(vae, 2, first), whole[first:])
        left = sum(len(training_batch.shown) for training_batch in whole[first:])
        assert left <= sum(read) <= left + 2 * buffer_rows + 30  # what is skipped is not even prepared


def test_patients_of_different_row_groups_meet_in_a_batch(named):
    path, frame, schema = named
    rows, vae = begun(path, schema, batch_size=10, buffer_rows=60)
    spans = [np.ptp(training_batch.shown.y[:, 1].numpy()) for training_batch in rows.epoch(vae, 0)]
    assert np.mean(spans) > 1.5  # rows are numbered, with a standard deviation of 1; ten patients in order span 0.8
    assert len(frame) > 100


def test_a_row_group_larger_than_the_buffer_is_shuffled_whole(folder):
    frame = visits(60)
    frame.to_parquet(folder / "one.parquet", index=False)
    rows, _ = begun(folder / "one.parquet", replace(SCHEMA, measurements=("row",)), buffer_rows=30)
    buffers = list(rows._buffers([0], 0, 0, True, True))
    assert len(buffers) == -(-len(frame) // 30)
    assert max(len(buffer.shown) for buffer in buffers) < 50
    assert np.mean([np.ptp(buffer.shown.y[:, 0].numpy()) for buffer in buffers]) > 2.5  # of ± 1.7, scaled


def test_items_are_made_ahead_and_errors_come_through():
    made = []

    def work():
        for k in range(4):
            made.append(k)
            yield k
        raise DataError("enough")

    items = ahead(work())
    assert next(items) == 0
    items.close()  # waits for the one under way, and makes no more
    assert made == [0, 1]
    found = []
    with pytest.raises(DataError, match="enough"):
        found.extend(ahead(work()))


# Training


@pytest.mark.parametrize("make", [CVAE, GPPriorVAE])
@pytest.mark.parametrize("covariates", ["joint", "paper", "mean"])
def test_one_pool_trains_the_model_of_the_table_in_memory(file, make, covariates):
    frame = pd.read_parquet(file)
    settings = {**SMALL, "covariates": covariates}
    one, other = (make(SCHEMA, **settings).fit(data, frame, **OPTIONS) for data in (file, frame))
    pd.testing.assert_frame_equal(one.training, other.training, check_exact=True)
    assert equal_weights(one, other)


def test_validation_can_be_streamed_too_and_small_buffers_train(file):
    frame = pd.read_parquet(file)
    one, other = (GPPriorVAE(SCHEMA, **SMALL).fit(file, held_out, **OPTIONS) for held_out in (str(file), frame))
    pd.testing.assert_frame_equal(one.training, other.training, check_exact=True)
    small = GPPriorVAE(SCHEMA, **SMALL).fit(file, file, buffer_rows=20, prior_every=1, **OPTIONS)
    assert np.isfinite(small.training.to_numpy()).all()
    assert not equal_weights(small, one)


def test_streamed_training_goes_on_from_a_checkpoint(file, folder, monkeypatch):
    settings = {**OPTIONS, "buffer_rows": 30, "checkpoint": folder / "on.checkpoint", "checkpoint_every": 1}
    expected = GPPriorVAE(SCHEMA, **SMALL).fit(file, **{**settings, "checkpoint": None})
    take, taken = Step.__call__, []

    def killed(self, *args):
        taken.append(1)
        if len(taken) == 12:
            raise MemoryError
        return take(self, *args)

    monkeypatch.setattr(Step, "__call__", killed)
    with pytest.raises(MemoryError):
        GPPriorVAE(SCHEMA, **SMALL).fit(file, **settings)
    resumed = GPPriorVAE(SCHEMA, **SMALL).fit(file, **settings)
    assert len(taken) == 12 + 2 * 8 - 11
    assert equal_weights(resumed, expected)
    pd.testing.assert_frame_equal(resumed.training, expected.training, check_exact=True)


def test_the_fingerprint_of_rows_knows_who_is_where_and_what_they_show(file, folder):
    one, again = (begun(file)[0].fingerprint() for _ in range(2))
    others = [pd.read_parquet(file) for _ in range(3)]
    others[0].loc[0, "a"] = 1.5
    others[1]["id"] = others[1]["id"] + "x"
    prints = [one]
    for frame in others:
        frame.to_parquet(folder / "other.parquet", row_group_size=13, index=False)
        prints.append(begun(folder / "other.parquet")[0].fingerprint())
    assert one == again
    assert len(set(prints)) == 4


def test_rows_without_patients_are_streamed(file):
    one, other = (CVAE(ROWS, **SMALL).fit(data, **OPTIONS) for data in (file, pd.read_parquet(file)))
    assert equal_weights(one, other)
    assert len(one._trained) == 0


def test_folders_partitions_and_datasets_are_streamed(file, folder):
    frame = pd.read_parquet(file).sort_values("id", kind="stable")
    frame.to_parquet(folder / "partitioned", partition_cols=["id"], index=False)
    ordered = folder / "ordered.parquet"
    frame.to_parquet(ordered, index=False)
    expected = CVAE(SCHEMA, **SMALL).fit(ordered, **OPTIONS)
    for data in (folder / "partitioned", ds.dataset(ordered), ds.dataset(folder / "partitioned", partitioning="hive")):
        assert equal_weights(CVAE(SCHEMA, **SMALL).fit(data, **OPTIONS), expected)
    frame.to_csv(folder / "t.csv", index=False)
    assert CVAE(SCHEMA, **SMALL).fit(folder / "t.csv", **OPTIONS)._trained == set(frame["id"])


def test_a_streamed_model_knows_whom_it_was_trained_on_and_keeps_that(file, folder, fitted):
    frame = pd.read_parquet(file)
    in_memory = GPPriorVAE(SCHEMA, **SMALL, inducing=5).fit(frame, **OPTIONS)
    assert isinstance(fitted._trained, Fingerprints)
    assert len(fitted._trained) == len(in_memory._trained)
    new = frame.groupby("id").tail(1)
    history = frame.drop(new.index)
    stranger = {name: part.assign(id=part["id"] + "?") for name, part in {"x": new, "history": history}.items()}
    fitted.save(folder / "model.lacova")
    again = lacova.load(folder / "model.lacova")
    assert again._trained == fitted._trained
    for model in (fitted, again):
        expected = in_memory.predict(new, history)
        pd.testing.assert_frame_equal(model.predict(new, history), expected, check_exact=True)
        assert not model.predict(**stranger).equals(expected)  # of others, the history counts in full


def test_an_unseen_level_in_validation_is_refused_before_training(file, folder):
    visits().assign(sex="other").to_parquet(folder / "strange.parquet", index=False)
    with pytest.raises(DataError, match="column 'sex' holds 'other', never seen in training"):
        CVAE(SCHEMA, **SMALL).fit(file, folder / "strange.parquet", **OPTIONS)


def test_buffers_must_hold_a_row(file):
    with pytest.raises(ValueError, match="buffer_rows must be a whole number of at least 1, got 0"):
        CVAE(SCHEMA, **SMALL).fit(file, buffer_rows=0)


# Answers


def cut(file, monkeypatch, rows=40):
    """The parts in which a stream of so many rows at a time is answered, and their seeds."""
    monkeypatch.setattr(lacova.models.inference, "ANSWER_ROWS", rows)
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
    frame = visits()
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
    monkeypatch.setattr(lacova.models.inference, "ANSWER_ROWS", 30)
    model = CVAE(SCHEMA, **SMALL).fit(path, **OPTIONS)
    found = pq.read_table(model.impute(path, probabilities=True, interval=0.9, out=folder / "typed.parquet"))
    assert found.schema.names[:6] == table.schema.names
    assert [found.schema.field(name).type for name in table.schema.names] == pq.read_schema(path).types
    assert found["note"].to_pylist() == table["note"].to_pylist()
    assert {"sex_p_f", "sex_p_m", "dose_lower"} <= set(found.schema.names)  # also where the first part has no gaps


def test_streamed_predictions_stand_beside_the_columns_of_x(file, folder, fitted, monkeypatch):
    pieces = cut(file, monkeypatch)
    frame = pd.read_parquet(file)
    found = pd.read_parquet(fitted.predict(file, interval=0.5, out=folder / "predicted.parquet", seed=7))
    expected = pd.concat([fitted.predict(piece, interval=0.5, seed=seed) for piece, seed in pieces])
    assert list(found) == ["id", "row", "day", "sex", "dose", "a", "a_lower", "a_upper"]
    pd.testing.assert_frame_equal(found[["a", "a_lower", "a_upper"]], expected, check_exact=True)
    pd.testing.assert_frame_equal(found[["id", "row", "day", "sex", "dose"]], frame.drop(columns="a"))
    found = pd.read_parquet(fitted.sample(file, draws=2, out=folder / "sampled.parquet", seed=7))
    expected = pd.concat([fitted.sample(piece, draws=2, seed=seed) for piece, seed in pieces])
    assert list(found) == ["draw", "id", "row", "day", "sex", "dose", "a"]
    assert found[["draw", "a"]].to_numpy().tolist() == expected[["draw", "a"]].to_numpy().tolist()
    assert found["row"].tolist() == expected.index.tolist()


def test_predictions_from_a_history(file, folder, fitted, monkeypatch):
    frame = pd.read_parquet(file)
    new = frame.groupby("id").tail(1).drop(columns="a")
    new.to_parquet(folder / "new.parquet", index=False)
    history = frame.drop(new.index)
    found = pd.read_parquet(fitted.predict(folder / "new.parquet", history, out=folder / "next.parquet"))
    assert found["a"].tolist() == fitted.predict(new, history)["a"].tolist()
    with pytest.raises(ValueError, match="history must be a table in memory, such as a DataFrame"):
        fitted.predict(folder / "new.parquet", file, out=folder / "next.parquet")


def test_answers_alone_do_not_depend_on_the_parts(file, folder, fitted, monkeypatch):
    cut(file, monkeypatch)
    frame = pd.read_parquet(file)
    found = pd.read_parquet(fitted.impute(file, independent_noise=True, out=folder / "alone.parquet"))
    pd.testing.assert_frame_equal(found, fitted.impute(frame, independent_noise=True), check_dtype=False)


def test_streamed_scores_are_those_of_the_parts_together(file, fitted, monkeypatch):
    frame = pd.read_parquet(file)
    assert fitted.score(file, seed=7) == fitted.score(frame, seed=7)
    pieces = cut(file, monkeypatch)
    each = [fitted.scores(piece, seed=seed) for piece, seed in pieces]
    entries = np.array([columns.loc["a", "entries"] for columns, _ in each])
    columns, whole = fitted.scores(ds.dataset(file), seed=7)
    assert columns.loc["a", "entries"] == entries.sum() == frame["a"].notna().sum()
    for name in ("nll", "crps", "coverage90"):
        mean = np.average([columns.loc["a", name] for columns, _ in each], weights=entries)
        np.testing.assert_allclose(columns.loc["a", name], mean, rtol=1e-12)
    np.testing.assert_allclose(
        whole["nll"] * len(frame), sum(w["nll"] * len(p) for (_, w), (p, _) in zip(each, pieces, strict=True))
    )


def test_embeddings_and_likelihoods_stand_beside_the_rows(file, folder, fitted, monkeypatch):
    pieces = cut(file, monkeypatch)
    frame = pd.read_parquet(file)
    found = pd.read_parquet(fitted.embed(file, out=folder / "embedded.parquet"))
    pd.testing.assert_frame_equal(found[list(frame)], frame)
    np.testing.assert_allclose(found[["z1", "z1_var"]], fitted.embed(frame), rtol=1e-5)  # float32, in other batches
    found = pd.read_parquet(fitted.log_likelihood(file, draws=5, seed=7, out=folder / "likely.parquet"))
    expected = pd.concat([fitted.log_likelihood(piece, draws=5, seed=seed) for piece, seed in pieces])
    pd.testing.assert_series_equal(found["log_likelihood"], expected, check_exact=True)


def test_an_answer_that_fails_leaves_nothing_behind(folder, fitted, monkeypatch):
    monkeypatch.setattr(lacova.models.inference, "ANSWER_ROWS", 30)
    good, place = visits(), folder / "place"
    place.mkdir()
    good.to_parquet(place / "old.parquet", index=False)
    good.loc[len(good) - 1, "sex"] = "other"
    good["sex"] = good["sex"].where(~good["id"].eq(good["id"].iloc[-1]), "other")
    good.to_parquet(folder / "bad.parquet", index=False)
    with pytest.raises(DataError, match="never seen in training"):
        fitted.impute(folder / "bad.parquet", out=place / "old.parquet")
    pd.concat([visits(), visits().head(1)]).to_parquet(folder / "twice.parquet", index=False)
    with pytest.raises(DataError, match="more than one place"):
        fitted.impute(folder / "twice.parquet", out=place / "new.parquet")
    assert [path.name for path in place.iterdir()] == ["old.parquet"]
    pd.testing.assert_frame_equal(pd.read_parquet(place / "old.parquet"), visits())


def test_where_answers_go_must_be_said_for_streams_only(file, folder, fitted):
    for ask in (fitted.impute, fitted.predict, fitted.sample, fitted.embed, fitted.log_likelihood):
        with pytest.raises(ValueError, match=r"goes to a file: give its name, out='answer.parquet'"):
            ask(file)
        with pytest.raises(ValueError, match="the answer to a table comes back as a table"):
            ask(visits(), out=folder / "x.parquet")


# The command line


@pytest.fixture
def command(capsys):
    def run(*words, code=0):
        assert main([str(word) for word in words]) == code
        return capsys.readouterr()

    return run


def test_the_command_streams_folders_and_what_it_is_told_to(file, tmp_path, command, monkeypatch):
    monkeypatch.setattr("lacova.cli.fit.MIN_UNITS", 1)
    (tmp_path / "data").mkdir()
    visits(80).to_parquet(tmp_path / "data" / "a.parquet", index=False)
    SCHEMA.to_toml(tmp_path / "s.toml")
    run, small = tmp_path / "run", ["--latent-dim", 1, "--covariates", "factorised"]
    command("fit", tmp_path / "data", "--schema", tmp_path / "s.toml", "--out", run, "--epochs", 1, *small)
    model = lacova.load(run / "model.lacova")
    assert isinstance(model._trained, Fingerprints)
    assert 60 <= len(model._trained) < 80  # a tenth or so of the patients is held out
    assert "validation" in model.training
    out = tmp_path / "out.parquet"
    command("impute", run, tmp_path / "data", "--out", out, "--seed", 4)
    pd.testing.assert_frame_equal(pd.read_parquet(out), model.impute(visits(80), seed=4), check_dtype=False)
    command("predict", run, file, "--stream", "--out", out, "--interval", 0.5)
    assert list(pd.read_parquet(out)) == ["id", "row", "day", "sex", "dose", "a", "a_lower", "a_upper"]
    command("predict", run, file, "--stream", "--out", out, "--draws", 2)
    assert len(pd.read_parquet(out)) == 2 * len(visits())
    assert command("score", run, file, "--stream", "--json").out == command("score", run, file, "--json").out
    assert "over all measurements" in command("score", run, file, "--stream").out
    monkeypatch.setattr("lacova.cli.common.STREAM_BYTES", 10)
    wrong = command("impute", run, file, code=1).err  # large enough now to be streamed
    assert wrong == "lacova: the answer to a stream goes to a file: give --out FILE.parquet.\n"


def test_the_command_streams_validation_and_refuses_to_stream_csv(file, tmp_path, command):
    SCHEMA.to_toml(tmp_path / "s.toml")
    some = [
        "--schema",
        tmp_path / "s.toml",
        "--out",
        tmp_path / "run",
        "--epochs",
        1,
        "--covariates",
        "mean",
        "--stream",
    ]
    visits().to_csv(tmp_path / "t.csv", index=False)
    said = command("fit", tmp_path / "t.csv", *some, code=1).err
    assert said == f"lacova: --stream reads a Parquet file or a folder of them, but DATA is {tmp_path / 't.csv'}.\n"
    command("fit", file, "--validation", file, *some)
    assert "validation" in pd.read_csv(tmp_path / "run" / "training.csv")
