"""Parquet files written part by part."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lacova import DataError
from lacova.data.io.parquet_writer import writing


def interrupted(out):
    with writing(out) as sink:
        sink.write(pa.table({"a": [4]}))
        sink.write(pa.table({"a": [1 // 0]}))


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    out = tmp_path / "out.parquet"
    with writing(out) as sink:
        sink.write(pa.table({"a": [1, 2]}))
        assert not out.exists()
        sink.write(pa.table({"a": [3]}))
    assert pq.read_table(out)["a"].to_pylist() == [1, 2, 3]
    with pytest.raises(ZeroDivisionError):
        interrupted(out)
    assert pq.read_table(out)["a"].to_pylist() == [1, 2, 3]
    assert [path.name for path in tmp_path.iterdir()] == ["out.parquet"]


def test_a_full_disk_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pq.ParquetWriter, "write_table", full)
    with pytest.raises(DataError, match=r"out\.parquet cannot be written: No space left on device\.$"):
        interrupted(tmp_path / "out.parquet")
    assert list(tmp_path.iterdir()) == []


def test_parts_must_fit_the_first(tmp_path):
    with writing(tmp_path / "out.parquet") as sink:
        sink.write(pa.table({"a": pa.array([1.5])}))
        sink.write(pa.table({"a": pa.array([2])}))  # whole numbers are numbers
        with pytest.raises(DataError, match="some rows of the answer do not fit those before"):
            sink.write(pa.table({"a": pa.array(["x"])}))
        with pytest.raises(DataError, match="some rows of the answer do not fit those before"):
            sink.write(pa.table({"b": pa.array([1.0])}))
    assert pq.read_table(tmp_path / "out.parquet")["a"].to_pylist() == [1.5, 2.0]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("out.csv", "out.csv is to hold the answer to a stream, which is written as Parquet; end it in .parquet"),
        ("gone/out.parquet", "there is no folder .*gone to write into"),
    ],
)
def test_impossible_outputs_are_refused(tmp_path, name, message):
    with pytest.raises(DataError, match=message), writing(tmp_path / name):
        raise AssertionError
