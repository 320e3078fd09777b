"""Parquet files read in pieces of whole patients."""

import re

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from lacova import DataError
from lacova.data.io.parquet import Surveyor, open_source, unit_starts
from tests.data.cases import opened
from tests.tables import RAGGED_ROWS, ragged_visits


def laid_out(source):
    """Return the layout of a source."""
    surveyor = Surveyor(source)
    for _ in source.walk(["id"], 50, surveyor):
        pass
    return surveyor.finish()


def read(part):
    """Return the rows of a part as pandas."""
    return part.table.to_pandas()


# The rows in order.


@pytest.mark.parametrize("rows", [1, 10, 33, 1000])
def test_a_walk_has_all_rows_in_order_and_never_splits_a_patient(written, rows):
    frame = ragged_visits()
    parts = [read(part) for part in opened(written(frame)).walk(None, rows)]
    pd.testing.assert_frame_equal(pd.concat(parts, ignore_index=True), frame)
    patients = [set(part["id"]) for part in parts]
    assert sum(map(len, patients)) == frame["id"].nunique()
    assert all(rows <= len(part) < rows + 6 for part in parts[:-1])
    assert len(parts) > 1 or rows == 1000


def test_the_cuts_of_a_walk_depend_on_the_rows_alone(written, tmp_path):
    frame = ragged_visits()
    sizes = []
    for group in (1, 4, 50, 1000):
        sizes.append([len(part.prints) for part in opened(written(frame, group)).walk(["id"], 20)])
    for k, (start, stop) in enumerate([(0, 13), (13, 50), (50, None)]):
        written(frame.iloc[start:stop], 9, f"many/{k}.parquet")
    sizes.append([len(part.prints) for part in opened(tmp_path / "many").walk(["id"], 20)])
    assert all(size == sizes[0] for size in sizes)


def test_without_patients_each_row_is_a_unit(written):
    parts = list(opened(written(ragged_visits()), RAGGED_ROWS).walk(None, 20))
    assert {len(part.prints) for part in parts[:-1]} == {20}
    assert all(unit_starts(part.prints).all() for part in parts)


@pytest.mark.parametrize("group", [1, 2, 5, 1000])
def test_the_pieces_together_are_the_rows_and_each_patient_is_in_one(written, group):
    frame = ragged_visits()
    source = opened(written(frame, group))
    layout = laid_out(source)
    assert (layout.units.sum(), layout.rows.sum()) == (frame["id"].nunique(), len(frame))
    pieces = [k for k in range(len(source.groups)) if layout.units[k]]
    parts = {k: read(source.read(layout, [k], ["id", "row"])) for k in pieces}
    pd.testing.assert_frame_equal(pd.concat(parts.values(), ignore_index=True), frame[["id", "row"]])
    for k, part in parts.items():
        assert (part["id"].nunique(), len(part)) == (layout.units[k], layout.rows[k])
    third = pieces[::3]
    together = read(source.read(layout, third, ["id", "row"]))
    pd.testing.assert_frame_equal(together, pd.concat([parts[k] for k in third], ignore_index=True))


def test_a_patient_longer_than_several_row_groups_is_read_whole(written):
    frame = ragged_visits(3).assign(id="a")
    frame = pd.concat([frame.head(2).assign(id="b"), frame, frame.head(3).assign(id="c")], ignore_index=True)
    source = opened(written(frame, 2))
    layout = laid_out(source)
    assert layout.units.sum() == 3
    counts = [
        read(source.read(layout, [k], ["id"]))["id"].value_counts().to_dict() for k in np.flatnonzero(layout.units)
    ]
    assert {k: v for part in counts for k, v in part.items()} == frame["id"].value_counts().to_dict()


def test_shares_are_random_and_divide_the_patients(written):
    frame = ragged_visits(400, 3)
    source = opened(written(frame, 50))
    parts = [source.share(0.0, 0.3, 5), source.share(0.3, 1.0, 5)]
    chosen, rest = ({label for part in one.walk(["id"], 100) for label in read(part)["id"]} for one in parts)
    assert not chosen & rest
    assert chosen | rest == set(frame["id"])
    assert 80 < len(chosen) < 160  # 4 standard deviations about 120
    again = {label for part in source.share(0.0, 0.3, 6).walk(["id"], 100) for label in read(part)["id"]}
    assert again != chosen
    layouts = [laid_out(one) for one in parts]
    assert [layout.units.sum() for layout in layouts] == [len(chosen), len(rest)]
    assert sum(layout.rows.sum() for layout in layouts) == len(frame)
    for one, layout, own in zip(parts, layouts, (chosen, rest), strict=True):
        pieces = np.flatnonzero(layout.units).tolist()
        assert set(read(one.read(layout, pieces, ["id"]))["id"]) == own


# Refusals.


@pytest.mark.parametrize("group", [3, 1000])
def test_a_patient_in_two_places_is_refused_by_name(written, group):
    frame = ragged_visits()
    frame = pd.concat([frame, frame.head(1)])
    source = opened(written(frame, group))
    message = (
        f"the rows of id 'p0' are in more than one place of {source.name}, but a stream needs those of one instance"
    )
    with pytest.raises(DataError, match=re.escape(message) + ".*; sort the rows by 'id'.$"):
        laid_out(source)
    with pytest.raises(DataError, match="more than one place"):
        list(source.walk(None, 10))


def test_a_row_without_a_patient_is_refused(written):
    frame = ragged_visits()
    frame.loc[[3, 4], "id"] = None
    with pytest.raises(DataError, match=r"^instance column 'id' is missing in 2 row\(s\)"):
        laid_out(opened(written(frame, 1000)))


def test_files_that_change_between_passes_are_noticed(written):
    source = opened(written(ragged_visits()))
    layout = laid_out(source)
    other = opened(written(ragged_visits(seed=1)))
    with pytest.raises(DataError, match=r"t\.parquet has changed since it was first read; leave it alone"):
        other.read(layout, list(range(len(other.groups))), ["id"])


def test_anything_but_parquet_is_refused(written, tmp_path):
    columns = ["id"]
    (tmp_path / "empty").mkdir()
    (tmp_path / "odd.parquet").write_text("id\n1\n")
    (tmp_path / "mixed").mkdir()
    (tmp_path / "mixed" / "a.parquet").write_text("nothing")
    (tmp_path / "t.xlsx").write_text("nothing")
    for path, message in (
        ("empty", "the folder .*empty holds no Parquet files.$"),
        ("odd.parquet", "odd.parquet is no Parquet file"),
        ("mixed", "mixed is no Parquet file, or no folder of such files"),
        ("t.xlsx", "ends in '.xlsx'; expected one of .csv, .csv.gz, .parquet"),
        ("gone.parquet", "there is no file .*gone.parquet"),
    ):
        with pytest.raises(DataError, match=message):
            open_source(tmp_path / path, "id", columns)
    written(ragged_visits().head(0), name="none.parquet")
    with pytest.raises(DataError, match=r"none\.parquet has no rows"):
        open_source(tmp_path / "none.parquet", "id", columns)


def test_datasets_that_are_not_files_of_parquet_are_refused(written, tmp_path):
    path = written(ragged_visits())
    with pytest.raises(DataError, match=r"the dataset cannot be read: .*filter"):
        open_source(ds.dataset(path).filter(ds.field("row") > 3), "id", ["id"])
    ragged_visits().to_csv(tmp_path / "t.csv", index=False)
    for dataset in (ds.dataset(pa.table({"id": [1]})), ds.dataset(tmp_path / "t.csv", format="csv")):
        with pytest.raises(
            DataError, match="the dataset is not made of Parquet files alone; write it as Parquet first"
        ):
            open_source(dataset, "id", ["id"])


def test_absent_columns_are_refused_by_name(written):
    path = written(ragged_visits().drop(columns="dose"))
    with pytest.raises(
        DataError, match=r"^column\(s\) 'dose' are in the schema but not in the table, whose columns are"
    ):
        opened(path)


def test_a_csv_file_is_read_whole(tmp_path):
    ragged_visits().to_csv(tmp_path / "t.csv", index=False)
    assert len(open_source(tmp_path / "t.csv", "id", ["id"])) == len(ragged_visits())
