"""Tables as files: what is read is what was written, and a file is there whole, as it was, or not at all."""

import errno
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lacova import DataError
from lacova.data.io.atomic import replacing
from lacova.data.io.files import check_output, read_table, write_table

TABLE = pd.DataFrame({"id": [1, 2, 2], "sex": ["f", None, "m"], "alt": [1.25, np.nan, 1e-300]})


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".parquet", ".CSV"])
def test_what_is_written_is_read(tmp_path, suffix):
    path = tmp_path / f"a table{suffix}"
    write_table(TABLE, path)
    pd.testing.assert_frame_equal(read_table(path), TABLE)
    assert os.listdir(tmp_path) == [path.name]
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask()


def umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"", "is empty; expected a header and rows"),
        ("a.csv", b"id,alt\n", "has a header but no rows"),
        ("a.csv", b"id;alt\n1;2\n", "separated by semicolons"),
        ("a.csv", b"id\talt\n1\t2\n", "separated by tabs"),
        ("a.csv", b"id,alt\n1,2\n1,2,3\n", "Expected 2 fields in line 3, saw 3"),
        ("a.csv", b"id,n\xe4me\n1,2\n", "is not text in UTF-8"),
        ("a.csv", b"id,alt,alt\n1,2,3\n", "more than one column named 'alt'"),
        ("a.csv.gz", b"id,alt\n1,2\n", "cannot be read"),
        ("a.parquet", b"id,alt\n1,2\n", "is no Parquet file"),
        ("a.xlsx", b"", r"ends in '.xlsx'; expected one of .csv, .csv.gz, .parquet"),
        ("a", b"", "ends in 'nothing'; expected one of"),
    ],
)
def test_what_is_no_table_is_refused(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_table(path)


def test_what_is_not_there_is_refused(tmp_path):
    with pytest.raises(DataError, match="there is no file"):
        read_table(tmp_path / "a.csv")
    (tmp_path / "b.csv").mkdir()
    with pytest.raises(DataError, match="is a folder; name a file"):
        read_table(tmp_path / "b.csv")


def test_outputs_are_checked_before_any_work(tmp_path):
    check_output(tmp_path / "a.csv")
    with pytest.raises(DataError, match=r"there is no folder .* to write into"):
        check_output(tmp_path / "none" / "a.csv")
    (tmp_path / "b.csv").mkdir()
    with pytest.raises(DataError, match="is a folder; name a file to write"):
        check_output(tmp_path / "b.csv")
    with pytest.raises(DataError, match="expected one of"):
        check_output(tmp_path / "a.txt")
    assert os.listdir(tmp_path) == ["b.csv"]


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("step", ["to_csv", "replace", "fsync"])
def test_a_full_disk_leaves_the_old_file_or_none(tmp_path, monkeypatch, step, there):
    path = tmp_path / "a.csv"
    if there:
        path.write_text("old")

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pd.DataFrame if step == "to_csv" else os, step, full)
    with pytest.raises(DataError, match=r"a.csv cannot be written: No space left on device"):
        write_table(TABLE, path)
    assert os.listdir(tmp_path) == (["a.csv"] if there else [])
    assert not there or path.read_text() == "old"


def test_an_interruption_leaves_nothing(tmp_path):
    def interrupted(path: Path) -> None:
        with replacing(path) as temporary:
            temporary.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted(tmp_path / "a.csv")
    assert os.listdir(tmp_path) == []
