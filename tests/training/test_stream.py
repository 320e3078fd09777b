"""Training from Parquet, against training from tables in memory."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow.dataset as ds
import pytest
import torch

import lacova
from lacova import CVAE, DataError, Dense, GPPriorVAE, UnseenLevelWarning
from lacova.cli import main
from lacova.data.labels import Fingerprints
from lacova.models.builder import build
from lacova.models.fitting import read_training_data
from lacova.training.distributed import SINGLE
from lacova.training.loader import TableLoader
from lacova.training.options import FitOptions
from lacova.training.step import Step
from lacova.training.stream import StreamLoader, ahead
from lacova.training.training_batch import tensors
from tests.tables import RAGGED, RAGGED_ROWS, ragged_visits
from tests.training.cases import Killed, hooked_step, kill

SMALL = {"latent_dim": 1, "networks": Dense((8,), (8,)), "covariates": "factorised"}
OPTIONS = {"max_epochs": 2, "batch_size": 4, "seed": 3, "device": "cpu"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("parquet")


@pytest.fixture(scope="module")
def file(ragged_file):
    return ragged_file


def prepared(data, schema=RAGGED, covariates="factorised", scaling="standard", **options):
    """Return the loader and the networks of a model about to be trained."""
    options = FitOptions(**{"batch_size": 4, "seed": 3, "masked_loss": 1.0, **options})
    model = CVAE(schema, **{**SMALL, "covariates": covariates, "scaling": scaling})
    training_data = read_training_data(model, data, None, options, torch.device("cpu"), SINGLE)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        vae = build(model, training_data.encoder, training_data.table, 3)
    training_data.train.condition(vae)
    return training_data.train, vae


def assert_same_batches(one, other):
    one, other = list(one), list(other)
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        assert (a.masked is None) == (b.masked is None)
        for left, right in ((a.batch, b.batch), (a.masked, b.masked)):
            if left is not None:
                assert (left.scale, left.patients) == (right.scale, right.patients)
        assert all(torch.equal(x, y) for x, y in zip(tensors(a), tensors(b), strict=True))


def weights(model):
    return model.fitted()[1].state_dict()


def equal_weights(one, other):
    one, other = weights(one), weights(other)
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


# Batches.


@pytest.mark.parametrize("schema", [RAGGED, RAGGED_ROWS], ids=["patients", "rows"])
def test_one_pool_gives_the_batches_of_the_table_in_memory(file, schema):
    streamed, vae = prepared(file, schema, "joint", buffer_rows=len(ragged_visits()))
    in_memory, _ = prepared(pd.read_parquet(file), schema, "joint")
    assert isinstance(streamed, StreamLoader)
    assert isinstance(in_memory, TableLoader)
    assert (streamed.length, streamed.units, streamed.steps) == (in_memory.length, in_memory.units, in_memory.steps)
    in_memory.condition(vae)
    for epoch in (0, 1):
        assert_same_batches(streamed.epoch(vae, epoch), in_memory.epoch(vae, epoch))
    assert_same_batches(streamed.in_order(vae), in_memory.in_order(vae))
    assert_same_batches(streamed.in_order(vae, masked=False), in_memory.in_order(vae, masked=False))
    one, other = (loader.complete(vae, torch.Generator().manual_seed(0)) for loader in (streamed, in_memory))
    assert torch.equal(one.x, other.x)


@pytest.fixture(scope="module")
def named(folder):
    """Return a file, its rows, and a schema whose two measurements name the patient and the row."""
    frame = ragged_visits(40)
    frame["patient"] = pd.factorize(frame["id"])[0]
    path = folder / "named.parquet"
    frame.to_parquet(path, row_group_size=9, index=False)
    return path, frame, replace(RAGGED, measurements=("patient", "row"))


@pytest.mark.parametrize(
    ("buffer_rows", "batch_size"), [(1, 3), (20, 3), (20, 7), (50, 100), (100, 7), (1000, 3), (1000, 100)]
)
def test_an_epoch_has_every_patient_once_whole_and_in_full_batches(named, buffer_rows, batch_size):
    path, frame, schema = named
    loader, vae = prepared(path, schema, scaling="none", seed=0, batch_size=batch_size, buffer_rows=buffer_rows)
    units = frame["patient"].nunique()
    size = min(batch_size, units)
    walks = [(loader.in_order(vae), loader.pass_size(size)), (loader.epoch(vae, 0), size), (loader.epoch(vae, 1), size)]
    for walk, full in walks:
        seen, sizes = [], []
        for batch, _, masked, _ in walk:
            patients, rows = batch.y.long().T.tolist()
            sizes.append(batch.patients)
            expected = [row for p in dict.fromkeys(patients) for row in frame.index[frame["patient"] == p]]
            assert rows == expected  # whole patients, in order
            assert batch.patient.tolist() == pd.factorize(np.array(patients))[0].tolist()
            assert torch.equal(masked.y, batch.y)
            assert not (masked.x_mask & ~batch.x_mask).any()
            seen += rows
        assert sorted(seen) == list(range(len(frame)))
        assert len(sizes) == -(-units // full)
        assert set(sizes[:-1]) <= {full}
        assert sum(sizes) == units
    assert len(sizes) == loader.steps
    scales = [training_batch.batch.scale for training_batch in loader.epoch(vae, 0)]
    assert scales == [units / size for size in sizes]
    assert {training_batch.batch.scale for training_batch in loader.in_order(vae)} == {1.0}


@pytest.mark.parametrize("buffer_rows", [15, 40])
def test_epochs_differ_and_a_seed_reproduces_them(file, buffer_rows):
    loader, vae = prepared(file, buffer_rows=buffer_rows)
    again, _ = prepared(file, buffer_rows=buffer_rows)
    again.ahead = True  # in another thread, as where a GPU trains
    assert_same_batches(loader.epoch(vae, 5), again.epoch(vae, 5))
    other, _ = prepared(file, buffer_rows=buffer_rows, seed=4)
    first = [training_batch.batch.y.tolist() for training_batch in loader.epoch(vae, 0)]
    assert first != [training_batch.batch.y.tolist() for training_batch in loader.epoch(vae, 1)]
    assert first != [training_batch.batch.y.tolist() for training_batch in other.epoch(vae, 0)]


@pytest.mark.parametrize("buffer_rows", [15, 40, 1000])
def test_an_epoch_can_begin_at_any_step(file, buffer_rows, monkeypatch):
    loader, vae = prepared(file, buffer_rows=buffer_rows)
    all_batches = list(loader.epoch(vae, 2))
    encoded, encode = [], loader.encode
    monkeypatch.setattr(loader, "encode", lambda table: encoded.append(len(table)) or encode(table))
    for first in range(loader.steps + 1):
        encoded.clear()
        assert_same_batches(loader.epoch(vae, 2, first), all_batches[first:])
        left = sum(len(training_batch.batch) for training_batch in all_batches[first:])
        assert left <= sum(encoded) <= left + 2 * buffer_rows + 30  # what is skipped is not even encoded


def test_patients_of_different_row_groups_meet_in_a_batch(named):
    path, frame, schema = named
    loader, vae = prepared(path, schema, batch_size=10, buffer_rows=60)
    spans = [np.ptp(training_batch.batch.y[:, 1].numpy()) for training_batch in loader.epoch(vae, 0)]
    assert np.mean(spans) > 1.5  # rows are numbered, with a standard deviation of 1; ten patients in order span 0.8
    assert len(frame) > 100


def test_a_row_group_larger_than_the_buffer_is_shuffled_whole(folder):
    frame = ragged_visits(60)
    frame.to_parquet(folder / "one.parquet", index=False)
    loader, _ = prepared(folder / "one.parquet", replace(RAGGED, measurements=("row",)), buffer_rows=30)
    buffers = list(loader._buffers([0], 0, 0, True, True))
    assert len(buffers) == -(-len(frame) // 30)
    assert max(len(buffer.table) for buffer in buffers) < 50
    assert np.mean([np.ptp(buffer.table.y[:, 0].numpy()) for buffer in buffers]) > 2.5  # of ± 1.7, scaled


def test_items_are_made_ahead_and_errors_come_through():
    started = []

    def work():
        for k in range(4):
            started.append(k)
            yield k
        raise DataError("enough")

    items = ahead(work())
    assert next(items) == 0
    items.close()  # waits for the item under way, and makes no more
    assert started == [0, 1]
    with pytest.raises(DataError, match="enough"):
        list(ahead(work()))


# Training.


@pytest.mark.parametrize("make", [CVAE, GPPriorVAE])
@pytest.mark.parametrize("covariates", ["joint", "paper", "mean"])
def test_one_pool_trains_the_model_of_the_table_in_memory(file, make, covariates):
    frame = pd.read_parquet(file)
    settings = {**SMALL, "covariates": covariates}
    one, other = (make(RAGGED, **settings).fit(data, frame, **OPTIONS) for data in (file, frame))
    pd.testing.assert_frame_equal(one.training, other.training, check_exact=True)
    assert equal_weights(one, other)


def test_validation_can_be_streamed_too_and_small_buffers_train(file):
    frame = pd.read_parquet(file)
    one, other = (GPPriorVAE(RAGGED, **SMALL).fit(file, held_out, **OPTIONS) for held_out in (str(file), frame))
    pd.testing.assert_frame_equal(one.training, other.training, check_exact=True)
    small = GPPriorVAE(RAGGED, **SMALL).fit(file, file, buffer_rows=20, prior_every=1, **OPTIONS)
    assert np.isfinite(small.training.to_numpy()).all()
    assert not equal_weights(small, one)


def test_streamed_training_continues_from_a_checkpoint(file, folder, monkeypatch):
    settings = {**OPTIONS, "buffer_rows": 30, "checkpoint": folder / "on.checkpoint", "checkpoint_every": 1}
    expected = GPPriorVAE(RAGGED, **SMALL).fit(file, **{**settings, "checkpoint": None})
    taken = []
    monkeypatch.setattr(Step, "__init__", hooked_step(lambda: taken.append(1) or (len(taken) == 12 and kill())))
    with pytest.raises(Killed):
        GPPriorVAE(RAGGED, **SMALL).fit(file, **settings)
    resumed = GPPriorVAE(RAGGED, **SMALL).fit(file, **settings)
    assert len(taken) == 12 + 2 * 8 - 11
    assert equal_weights(resumed, expected)
    pd.testing.assert_frame_equal(resumed.training, expected.training, check_exact=True)


def test_the_fingerprint_depends_on_patients_their_places_and_their_values(file, folder):
    one, again = (prepared(file)[0].fingerprint() for _ in range(2))
    others = [pd.read_parquet(file) for _ in range(3)]
    others[0].loc[0, "a"] = 1.5
    others[1]["id"] = others[1]["id"] + "x"
    prints = [one]
    for frame in others:
        frame.to_parquet(folder / "other.parquet", row_group_size=13, index=False)
        prints.append(prepared(folder / "other.parquet")[0].fingerprint())
    assert one == again
    assert len(set(prints)) == 4


def test_rows_without_patients_are_streamed(file):
    one, other = (CVAE(RAGGED_ROWS, **SMALL).fit(data, **OPTIONS) for data in (file, pd.read_parquet(file)))
    assert equal_weights(one, other)
    assert len(one.training_instances) == 0


def test_folders_partitions_and_datasets_are_streamed(file, folder):
    frame = pd.read_parquet(file).sort_values("id", kind="stable")
    frame.to_parquet(folder / "partitioned", partition_cols=["id"], index=False)
    ordered = folder / "ordered.parquet"
    frame.to_parquet(ordered, index=False)
    expected = CVAE(RAGGED, **SMALL).fit(ordered, **OPTIONS)
    for data in (folder / "partitioned", ds.dataset(ordered), ds.dataset(folder / "partitioned", partitioning="hive")):
        assert equal_weights(CVAE(RAGGED, **SMALL).fit(data, **OPTIONS), expected)
    frame.to_csv(folder / "t.csv", index=False)
    assert CVAE(RAGGED, **SMALL).fit(folder / "t.csv", **OPTIONS).training_instances == set(frame["id"])


def test_a_streamed_model_keeps_the_labels_of_its_training_patients(file, folder):
    fitted = GPPriorVAE(RAGGED, **SMALL, inducing=5).fit(file, **OPTIONS)
    frame = pd.read_parquet(file)
    in_memory = GPPriorVAE(RAGGED, **SMALL, inducing=5).fit(frame, **OPTIONS)
    assert isinstance(fitted.training_instances, Fingerprints)
    assert len(fitted.training_instances) == len(in_memory.training_instances)
    new = frame.groupby("id").tail(1)
    history = frame.drop(new.index)
    stranger = {name: part.assign(id=part["id"] + "?") for name, part in {"x": new, "history": history}.items()}
    fitted.save(folder / "model.lacova")
    again = lacova.load(folder / "model.lacova")
    assert again.training_instances == fitted.training_instances
    for model in (fitted, again):
        expected = in_memory.predict(new, history)
        pd.testing.assert_frame_equal(model.predict(new, history), expected, check_exact=True)
        assert not model.predict(**stranger).equals(expected)  # the history of new patients counts in full


def test_unseen_levels_in_validation_are_missing_with_one_warning_or_refused_before_training(file, folder, monkeypatch):
    monkeypatch.setattr("lacova.data.survey.CHUNK_ROWS", 30)
    strange, gaps = ragged_visits().assign(sex="other"), ragged_visits().assign(sex=None)
    strange.to_parquet(folder / "strange.parquet", index=False)
    gaps.to_parquet(folder / "gaps.parquet", index=False)
    with pytest.raises(DataError, match="column 'sex' holds 'other', never seen in training"):
        CVAE(RAGGED, **SMALL, unseen="error").fit(file, folder / "strange.parquet", **OPTIONS)
    with pytest.warns(UnseenLevelWarning) as caught:
        fitted = CVAE(RAGGED, **SMALL).fit(file, folder / "strange.parquet", **OPTIONS)
    counts = [str(warning.message) for warning in caught if warning.category is UnseenLevelWarning]
    assert len(counts) == 1
    assert counts[0].startswith(f"{len(strange)} entries hold levels")
    expected = CVAE(RAGGED, **SMALL).fit(file, folder / "gaps.parquet", **OPTIONS)
    pd.testing.assert_frame_equal(fitted.training, expected.training)


def test_buffers_must_hold_a_row(file):
    with pytest.raises(ValueError, match="buffer_rows must be a whole number of at least 1, got 0"):
        CVAE(RAGGED, **SMALL).fit(file, buffer_rows=0)


# The command line.


@pytest.fixture
def command(capsys):
    def run(*words, code=0):
        assert main([str(word) for word in words]) == code
        return capsys.readouterr()

    return run


def test_the_command_streams_validation_and_refuses_to_stream_csv(file, tmp_path, command):
    RAGGED.to_toml(tmp_path / "s.toml")
    words = ["--schema", tmp_path / "s.toml", "--out", tmp_path / "run", "--epochs", 1, "--covariates", "mean"]
    words += ["--stream"]
    ragged_visits().to_csv(tmp_path / "t.csv", index=False)
    error = command("fit", tmp_path / "t.csv", *words, code=1).err
    assert error == f"lacova: --stream reads a Parquet file or a folder of them, but DATA is {tmp_path / 't.csv'}.\n"
    command("fit", file, "--validation", file, *words)
    assert "validation" in pd.read_csv(tmp_path / "run" / "training.csv")
