"""The file by itself: what comes back, what is refused, and what a crash leaves behind."""

import errno
import hashlib
import json
import math
import os
import pickle
import re
from enum import StrEnum
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from lacova import StorageError, __version__
from lacova.data.io.archive import MAX_HEADER, digest, pack, read, unpack, write

DOCUMENT = {"name": 'a "quoted" \ud800 ü \\ "sha256": "' + 64 * "0" + '"', "zeros": 64 * "0", "n": [1, 2.5, True, None]}
TENSORS = {
    "a": torch.arange(6.0).reshape(2, 3).T,
    "b": torch.tensor([0.1, math.nan, -math.inf], dtype=torch.float64),
    "empty": torch.zeros(2, 0, 3),
    "scalar": torch.tensor(7),
}


def split(data):
    """Header, document and tensor bytes of a file."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    return header, json.loads(header["__metadata__"]["lacova"]), data[8 + length :]


def seal(header, document, body):
    """A file of those parts with a checksum that fits, as docs/storage.md describes it."""
    if isinstance(document, dict) and "sha256" in document:
        document = {**document, "sha256": 64 * "0"}
    text = document if isinstance(document, str) else json.dumps(document)
    raw = json.dumps({**header, "__metadata__": {"lacova": text}}).encode()
    data = len(raw).to_bytes(8, "little") + raw + body
    mark = rb"\"sha256\": \""
    return data.replace(mark + 64 * b"0", mark + hashlib.sha256(data).hexdigest().encode(), 1)


@pytest.fixture
def path(tmp_path):
    write(tmp_path / "x.lacova", DOCUMENT, TENSORS)
    return tmp_path / "x.lacova"


def put(path, data):
    """Replace a file; much faster than writing into it, which ext4 flushes at once."""
    path.unlink(missing_ok=True)
    path.write_bytes(data)


def refused(path, data, words):
    put(path, data)
    with pytest.raises(StorageError) as caught:
        read(path)
    message = str(caught.value)
    assert re.fullmatch(rf"{re.escape(str(path))} [^\n]*({words})[^\n]*\.", message), message


def test_reading_undoes_writing(path):
    document, tensors = read(path)
    assert document.items() >= DOCUMENT.items()
    assert (document["format"], document["format_version"], document["lacova_version"]) == ("lacova", 2, __version__)
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert tensors[name].dtype == tensor.dtype
        assert tensors[name].shape == tensor.shape
        assert tensors[name].numpy().tobytes() == tensor.contiguous().numpy().tobytes()


def test_it_is_a_safetensors_file(path):
    assert safetensors.torch.load_file(path).keys() == TENSORS.keys()


def test_the_same_content_makes_the_same_file(path, tmp_path):
    write(tmp_path / "y.lacova", DOCUMENT, TENSORS)
    assert (tmp_path / "y.lacova").read_bytes() == path.read_bytes()


def test_the_checksum_is_that_of_the_file_with_zeros_in_its_place(path):
    data = path.read_bytes()
    assert seal(*split(data)) != data  # json.dumps puts blanks where safetensors does not
    digest = split(data)[1]["sha256"]
    blank = data.replace(digest.encode(), 64 * b"0")
    assert hashlib.sha256(blank).hexdigest() == digest
    path.write_bytes(seal(*split(data)))
    assert read(path)[0]["n"] == DOCUMENT["n"]


def test_every_single_byte_counts(path):
    data = path.read_bytes()
    for place in range(len(data)):
        refused(path, data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :], "damaged|not a lacova file|newer")


def test_every_truncation_is_refused(path):
    data = path.read_bytes()
    for size in range(len(data)):
        refused(path, data[:size], "damaged" if size >= 64 else "damaged|not a lacova file")
    refused(path, data + b"\0", "damaged")


@pytest.mark.parametrize(
    "data",
    [b"", b"lacova", b"\0" * 100, pickle.dumps({"lacova": 1}) * 9, safetensors.torch.save({"a": torch.ones(3)})],
    ids=["empty", "short", "zeros", "pickle", "safetensors"],
)
def test_foreign_files_are_refused(tmp_path, data):
    refused(tmp_path / "x", data, "is not a lacova file")


def test_absent_files_and_folders_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere does not exist\."):
        read(tmp_path / "nowhere")
    with pytest.raises(StorageError, match=r"is not a file\."):
        read(tmp_path)
    os.mkfifo(tmp_path / "pipe")  # opening it would wait for ever
    with pytest.raises(StorageError, match=r"is not a file\."):
        read(tmp_path / "pipe")


def test_a_newer_format_is_refused_with_the_version_to_install(path):
    header, document, body = split(path.read_bytes())
    newer = {**document, "format_version": 3, "lacova_version": "3.1.0"}
    refused(path, seal(header, newer, body), r"newer version of lacova, in format 3.*install lacova 3\.1\.0 or newer")
    rude = {**newer, "lacova_version": "3; rm -rf \x1b[31m"}
    refused(path, seal(header, rude, body), r"install lacova \(unknown\)")


@pytest.mark.parametrize("version", [0, -1, 1.0, True, None, "1", [1]])
def test_an_invalid_version_is_refused(path, version):
    header, document, body = split(path.read_bytes())
    refused(path, seal(header, {**document, "format_version": version}, body), "header cannot be read")


def test_invalid_json_is_refused(path):
    header, document, body = split(path.read_bytes())
    for bomb in (100_000 * "[", '{"sha256": ' * 100_000, "NaN", '{"format": ' + 5000 * "9" + "}"):
        refused(path, seal(header, bomb, body), "header cannot be read")
    refused(path, seal(header, {**document, "n": math.nan}, body), "header cannot be read")
    raw = b'{"__metadata__":{"lacova":' + 50_000 * b"["
    refused(path, len(raw).to_bytes(8, "little") + raw, "header cannot be read")


def test_claims_of_terabytes_take_no_memory(path):
    data = path.read_bytes()
    for claim in (2**63, 2**40, MAX_HEADER + 1, len(data) - 7):
        refused(path, claim.to_bytes(8, "little") + data[8:], "shorter or longer than it says")
    header, document, body = split(data)
    for claim in (2**40, 2**63):
        for entry in ({"shape": [claim]}, {"data_offsets": [0, claim]}, {"shape": [claim], "data_offsets": [0, claim]}):
            bomb = {**header, "a": {**header["a"], **entry}}
            refused(path, seal(bomb, document, body), "tensors cannot be read")
    with open(path, "r+b") as file:
        file.truncate(2**40)  # holes take no disk
    with pytest.raises(StorageError, match="shorter or longer"):
        read(path)


def test_a_header_that_could_not_be_read_again_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr("lacova.data.io.archive.MAX_HEADER", 1000)
    with pytest.raises(StorageError, match="too large for a file"):
        write(tmp_path / "x", {"labels": 1000 * "x"}, TENSORS)
    assert os.listdir(tmp_path) == []


# Crashes while writing.


def full_disk(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def interrupt(*_):
    raise KeyboardInterrupt


def break_write(monkeypatch):
    """The disk fills up half way through the file."""
    real = Path.write_bytes

    def write(path, data):
        real(path, data[: len(data) // 2])
        full_disk()

    monkeypatch.setattr(Path, "write_bytes", write)


CRASHES = {
    "write": break_write,
    "fsync": lambda patch: patch.setattr(os, "fsync", full_disk),
    "replace": lambda patch: patch.setattr(os, "replace", full_disk),
    "interrupt": lambda patch: patch.setattr(os, "replace", interrupt),
    "serialise": lambda patch: patch.setattr(safetensors.torch, "save", full_disk),
    "digest": lambda patch: patch.setattr(hashlib, "sha256", full_disk),
}


@pytest.mark.parametrize("crash", CRASHES.values(), ids=CRASHES)
@pytest.mark.parametrize("old", [b"old", None], ids=["over", "new"])
def test_a_crash_leaves_the_old_file_or_none(tmp_path, monkeypatch, crash, old):
    target = tmp_path / "x.lacova"
    if old is not None:
        target.write_bytes(old)
    with monkeypatch.context() as patch:
        crash(patch)
        with pytest.raises((OSError, KeyboardInterrupt)):
            write(target, DOCUMENT, TENSORS)
    assert os.listdir(tmp_path) == ([] if old is None else ["x.lacova"])
    assert old is None or target.read_bytes() == old


def test_data_reach_the_disk_before_the_name_changes(tmp_path, monkeypatch):
    calls = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, real=real, name=name: (calls.append(name), real(*a)))
    write(tmp_path / "x", DOCUMENT, TENSORS)
    assert calls == ["fsync", "replace", "fsync"]  # the file, its name, the folder


def test_a_folder_that_cannot_be_flushed_is_no_failure(tmp_path, monkeypatch):
    real = os.open
    monkeypatch.setattr(os, "open", lambda name, *a: full_disk() if name == tmp_path else real(name, *a))
    write(tmp_path / "x", DOCUMENT, TENSORS)
    assert read(tmp_path / "x")[0]["n"] == DOCUMENT["n"]


def test_a_link_stays_a_link_and_the_usual_rights_apply(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there" / "x")
    write(tmp_path / "link", DOCUMENT, TENSORS)
    assert (tmp_path / "link").is_symlink()
    (tmp_path / "plain").touch()
    assert (tmp_path / "there" / "x").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_places_that_cannot_hold_a_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"the folder .*nowhere does not exist; create it first"):
        write(tmp_path / "nowhere" / "x", DOCUMENT, TENSORS)
    with pytest.raises(IsADirectoryError, match="is a folder"):
        write(tmp_path, DOCUMENT, TENSORS)


# Values with their types.


def same(a, b):
    if isinstance(a, tuple):
        return isinstance(b, tuple) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and (a == b or a != a)


@given(st.lists(st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None))))
def test_values_keep_their_types(values):
    unpacked = unpack(json.loads(json.dumps(pack(values, "test"), allow_nan=False)))
    assert same(tuple(values), unpacked)


def test_containers_and_timestamps():
    stamps = [pd.Timestamp("2020-02-29 12:00:00.123456789"), pd.Timestamp("1500-01-01").as_unit("s")]
    value = {"a": {1: 0.5, False: 2, "x": (1, (2,))}, 2.0: stamps, "set": frozenset({3, 1, 2})}
    unpacked = unpack(json.loads(json.dumps(pack(value, "test"))))
    assert unpacked == {"a": {1: 0.5, False: 2, "x": (1, (2,))}, 2.0: tuple(stamps), "set": (1, 2, 3)}
    assert [stamp.unit for stamp in unpacked[2.0]] == [stamp.unit for stamp in stamps]


@pytest.mark.parametrize(
    ("scalar", "plain"),
    [(np.int32(3), 3), (np.float64(0.1), 0.1), (np.float32(0.1), float(np.float32(0.1))), (np.bool_(True), True),
     (np.str_("x"), "x"), (np.uint64(2**64 - 1), 2**64 - 1), (np.float64("inf"), math.inf)],
)  # fmt: skip
def test_numpy_scalars_become_plain_values(scalar, plain):
    assert same(unpack(pack(scalar, "test")), plain)
    assert scalar == plain  # so that a table with the one still finds the other
    assert hash(scalar) == hash(plain)


class Sex(StrEnum):
    F = "f"


@pytest.mark.parametrize(
    "value",
    [pd.Timestamp("2020", tz="UTC"), pd.NaT, pd.NA, pd.Interval(0, 1), pd.Period("2020"), np.datetime64("2020"),
     np.timedelta64(1, "D"), pd.Timedelta(1), b"x", 1j, np.longdouble(1) / 3, Sex.F, object, [b"x"], {b"x": 1}],
)  # fmt: skip
def test_other_values_are_refused_with_a_sentence(value):
    with pytest.raises(StorageError, match=r"levels of 'a': a file cannot hold .* of type \w+; .* fit again\."):
        pack(value, "levels of 'a'")


@pytest.mark.parametrize(
    "value",
    [{}, {"map": 1}, {"map": [1]}, {"map": [[1, 2, 3]]}, {"map": [[[], 1]], "float": "inf"}, {"float": 1.0},
     {"float": "1e5"}, {"timestamp": [1.5, "s"]}, {"timestamp": ["now", "s"]}, {"timestamp": [1, "D"]},
     {"timestamp": [2**63, "ns"]}, {"map": [[{"map": []}, 1]]}, {"exec": "1"}, [{}]],
)  # fmt: skip
def test_nonsense_is_not_unpacked(value):
    with pytest.raises((ValueError, TypeError, OverflowError)):
        unpack(value)


def test_a_digest_does_not_depend_on_strides():
    """A column of one row out of many has a stride of its own, though it is contiguous."""
    one = torch.arange(12.0)[5:6].as_strided((1,), (7,), 5)
    assert digest({"a": one}) == digest({"a": torch.tensor([5.0])}) != digest({"a": torch.tensor([6.0])})
    wide = torch.arange(12.0).view(3, 4)
    assert digest({"a": wide[:, 1]}) == digest({"a": wide[:, 1].clone()})
