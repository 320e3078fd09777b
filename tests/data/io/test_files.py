"""Tables as files: reading undoes writing, and a file is whole, unchanged, or absent."""

import errno
import os

import numpy as np
import pandas as pd
import pytest

from lacova import DataError
from lacova.data.io.files import check_output, read_table, write_table

TABLE = pd.DataFrame({"id": [1, 2, 2], "sex": ["f", None, "m"], "alt": [1.25, np.nan, 1e-300]})


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".parquet", ".CSV"])
def test_reading_undoes_writing(tmp_path, suffix):
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
def test_files_that_are_not_tables_are_refused(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_table(path)


def test_absent_files_are_refused(tmp_path):
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
