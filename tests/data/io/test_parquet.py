"""Parquet in pieces of whole patients, the first pass over it, and files written as answers come."""

import re

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import lacova.data.survey
from lacova import DataError, Schema
from lacova.data.encoder import TableEncoder
from lacova.data.io.parquet import Source, Surveyor, beginnings, open_source, writing
from lacova.data.survey import MOST_LEVELS, survey

SCHEMA = Schema(["a"], {"sex": "categorical", "dose": "continuous"}, instance="id", time="day", static=["sex"])
ROWS = Schema(["a"], {"sex": "categorical", "dose": "continuous", "day": "continuous"})


def visits(patients=30, most=6, seed=0):
    rng = np.random.default_rng(seed)
    who = np.repeat(np.arange(patients), rng.integers(1, most + 1, patients))
    frame = pd.DataFrame(
        {
            "id": [f"p{k}" for k in 7 * who % patients],
            "row": np.arange(len(who)),
            "day": rng.uniform(0, 9, len(who)),
            "sex": np.where(who % 2, "f", "m"),
            "dose": rng.normal(size=len(who)),
            "a": rng.normal(5, 2, len(who)),
        }
    )
    for name in ("day", "sex", "dose", "a"):
        frame.loc[rng.random(len(frame)) < 0.2, name] = None
    return frame


@pytest.fixture
def written(tmp_path):
    def write(frame, group=7, name="t.parquet"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        frame.to_parquet(path, row_group_size=group, index=False)
        return path

    return write


def opened(path, schema=SCHEMA):
    source = open_source(path, schema.instance, schema.columns)
    assert isinstance(source, Source)
    return source


def laid_out(source):
    surveyor = Surveyor(source)
    for _ in source.walk(["id"], 50, surveyor):
        pass
    return surveyor.finish()


def read(part):
    return part.table.to_pandas()


# The rows in order


@pytest.mark.parametrize("rows", [1, 10, 33, 1000])
def test_a_walk_has_all_rows_in_order_and_never_splits_a_patient(written, rows):
    frame = visits()
    parts = [read(part) for part in opened(written(frame)).walk(None, rows)]
    pd.testing.assert_frame_equal(pd.concat(parts, ignore_index=True), frame)
    owners = [set(part["id"]) for part in parts]
    assert sum(map(len, owners)) == frame["id"].nunique()
    assert all(rows <= len(part) < rows + 6 for part in parts[:-1])
    assert len(parts) > 1 or rows == 1000


def test_how_a_walk_is_cut_depends_on_the_rows_alone(written, tmp_path):
    frame = visits()
    ends = []
    for group in (1, 4, 50, 1000):
        ends.append([len(part.prints) for part in opened(written(frame, group)).walk(["id"], 20)])
    for k, (start, stop) in enumerate([(0, 13), (13, 50), (50, None)]):
        written(frame.iloc[start:stop], 9, f"many/{k}.parquet")
    ends.append([len(part.prints) for part in opened(tmp_path / "many").walk(["id"], 20)])
    assert all(end == ends[0] for end in ends)


def test_rows_without_patients_are_units_of_their_own(written):
    parts = list(opened(written(visits()), ROWS).walk(None, 20))
    assert {len(part.prints) for part in parts[:-1]} == {20}
    assert all(beginnings(part.prints).all() for part in parts)


@pytest.mark.parametrize("group", [1, 2, 5, 1000])
def test_the_pieces_together_are_the_rows_and_each_patient_is_in_one(written, group):
    frame = visits()
    source = opened(written(frame, group))
    layout = laid_out(source)
    assert (layout.units.sum(), layout.rows.sum()) == (frame["id"].nunique(), len(frame))
    pieces = [k for k in range(len(source.groups)) if layout.units[k]]
    parts = {k: read(source.read(layout, [k], ["id", "row"])) for k in pieces}
    pd.testing.assert_frame_equal(pd.concat(parts.values(), ignore_index=True), frame[["id", "row"]])
    for k, part in parts.items():
        assert (part["id"].nunique(), len(part)) == (layout.units[k], layout.rows[k])
    some = pieces[::3]
    joint = read(source.read(layout, some, ["id", "row"]))
    pd.testing.assert_frame_equal(joint, pd.concat([parts[k] for k in some], ignore_index=True))


def test_a_patient_longer_than_several_row_groups_is_read_whole(written):
    frame = visits(3).assign(id="a")
    frame = pd.concat([frame.head(2).assign(id="b"), frame, frame.head(3).assign(id="c")], ignore_index=True)
    source = opened(written(frame, 2))
    layout = laid_out(source)
    assert layout.units.sum() == 3
    found = [
        read(source.read(layout, [k], ["id"]))["id"].value_counts().to_dict() for k in np.flatnonzero(layout.units)
    ]
    assert {k: v for one in found for k, v in one.items()} == frame["id"].value_counts().to_dict()


def test_shares_are_random_and_divide_the_patients(written):
    frame = visits(400, 3)
    source = opened(written(frame, 50))
    parts = [source.share(0.0, 0.3, 5), source.share(0.3, 1.0, 5)]
    some, rest = ({label for part in one.walk(["id"], 100) for label in read(part)["id"]} for one in parts)
    assert not some & rest
    assert some | rest == set(frame["id"])
    assert 80 < len(some) < 160  # 4 standard deviations about 120
    again = {label for part in source.share(0.0, 0.3, 6).walk(["id"], 100) for label in read(part)["id"]}
    assert again != some
    layouts = [laid_out(one) for one in parts]
    assert [layout.units.sum() for layout in layouts] == [len(some), len(rest)]
    assert sum(layout.rows.sum() for layout in layouts) == len(frame)
    for one, layout, own in zip(parts, layouts, (some, rest), strict=True):
        pieces = np.flatnonzero(layout.units).tolist()
        assert set(read(one.read(layout, pieces, ["id"]))["id"]) == own


# What is refused


@pytest.mark.parametrize("group", [3, 1000])
def test_a_patient_in_two_places_is_refused_by_name(written, group):
    frame = visits()
    frame = pd.concat([frame, frame.head(1)])
    source = opened(written(frame, group))
    message = (
        f"the rows of id 'p0' are in more than one place of {source.name}, but a stream needs those of one instance"
    )
    with pytest.raises(DataError, match=re.escape(message) + ".*; sort the rows by 'id'.$"):
        laid_out(source)
    with pytest.raises(DataError, match="more than one place"):
        list(source.walk(None, 10))


def test_a_row_that_names_no_patient_is_refused(written):
    frame = visits()
    frame.loc[[3, 4], "id"] = None
    with pytest.raises(DataError, match=r"^instance column 'id' is missing in 2 row\(s\)"):
        laid_out(opened(written(frame, 1000)))


def test_files_that_change_between_passes_are_noticed(written):
    source = opened(written(visits()))
    layout = laid_out(source)
    other = opened(written(visits(seed=1)))
    with pytest.raises(DataError, match=r"t\.parquet has changed since it was first read; leave it alone"):
        other.read(layout, list(range(len(other.groups))), ["id"])


def test_what_is_no_parquet_is_refused(written, tmp_path):
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
    written(visits().head(0), name="none.parquet")
    with pytest.raises(DataError, match=r"none\.parquet has no rows"):
        open_source(tmp_path / "none.parquet", "id", columns)


def test_datasets_that_are_not_files_of_parquet_are_refused(written, tmp_path):
    path = written(visits())
    with pytest.raises(DataError, match=r"the dataset cannot be read: .*filter"):
        open_source(ds.dataset(path).filter(ds.field("row") > 3), "id", ["id"])
    visits().to_csv(tmp_path / "t.csv", index=False)
    for dataset in (ds.dataset(pa.table({"id": [1]})), ds.dataset(tmp_path / "t.csv", format="csv")):
        with pytest.raises(
            DataError, match="the dataset is not made of Parquet files alone; write it as Parquet first"
        ):
            open_source(dataset, "id", ["id"])


def test_columns_that_are_not_there_are_refused_by_name(written):
    path = written(visits().drop(columns="dose"))
    with pytest.raises(
        DataError, match=r"^column\(s\) 'dose' are in the schema but not in the table, whose columns are"
    ):
        opened(path)


def test_a_csv_file_is_read_whole(tmp_path):
    visits().to_csv(tmp_path / "t.csv", index=False)
    assert len(open_source(tmp_path / "t.csv", "id", ["id"])) == len(visits())


# The first pass


@pytest.mark.parametrize("group", [5, 1000])
def test_a_survey_teaches_what_the_table_teaches(written, monkeypatch, group):
    monkeypatch.setattr(lacova.data.survey, "CHUNK_ROWS", 20)
    frame = visits()
    found = survey(opened(written(frame, group)), SCHEMA, 0)
    whole, parts = TableEncoder.learn(SCHEMA, frame), TableEncoder.from_statistics(found.statistics)
    for name in ("y_shift", "y_scale", "x_shift", "x_scale"):
        np.testing.assert_allclose(getattr(parts, name), getattr(whole, name), rtol=1e-12)
    assert parts.levels == whole.levels
    pd.testing.assert_frame_equal(found.sample, frame[list(SCHEMA.columns)], check_dtype=False)


def test_the_sample_is_of_whole_patients_of_the_size_asked_for(written, monkeypatch):
    monkeypatch.setattr(lacova.data.survey, "SAMPLE_ROWS", 60)
    frame = visits(300, 4)
    samples = []
    for group, chunk in ((11, 30), (400, 500)):
        monkeypatch.setattr(lacova.data.survey, "CHUNK_ROWS", chunk)
        source = opened(written(frame, group))
        samples.append(survey(source, SCHEMA, 1).sample)
    pd.testing.assert_frame_equal(*samples)
    sample = samples[0]
    assert 56 < len(sample) <= 60
    chosen = frame[frame["id"].isin(set(sample["id"]))]
    assert sample["id"].tolist() == chosen["id"].tolist()
    assert set(survey(source, SCHEMA, 2).sample["id"]) != set(sample["id"])


def test_samples_are_fair(written, monkeypatch):
    monkeypatch.setattr(lacova.data.survey, "SAMPLE_ROWS", 30)
    source = opened(written(visits(100, 1).assign(sex="f", dose=0.1, a=0.2), 20))
    counts = pd.concat([survey(source, SCHEMA, seed).sample["id"] for seed in range(50)]).value_counts()
    assert len(counts) == 100
    assert 1 <= counts.min() < 15 < counts.max() < 32  # 15 ± 3.2 each, more than 4 standard deviations


def test_whatever_occurs_in_the_rows_occurs_in_the_sample(written, monkeypatch):
    monkeypatch.setattr(lacova.data.survey, "SAMPLE_ROWS", 20)
    frame = visits(200, 4).assign(dose=np.nan)
    last = frame.index[frame["id"] == frame["id"].iloc[-1]]
    frame.loc[last[0], ["sex", "dose"]] = ["x", 3.0]
    frame.loc[last[1:], "sex"] = None
    for seed in range(3):
        sample = survey(opened(written(frame, 50)), SCHEMA, seed).sample
        assert "x" in set(sample["sex"])
        assert sample["dose"].max() == 3.0
        assert (sample["id"] == frame["id"].iloc[-1]).sum() == len(last)


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("a", "high", "column 'a' must be numeric, but holds 'high'"),
        ("dose", np.inf, r"column 'dose' holds 1 infinite value\(s\)"),
        ("sex", "other", r"static column 'sex' takes more than one value within instance\(s\) 'p\d+'"),
    ],
)
def test_a_survey_refuses_what_a_table_is_refused_for(written, monkeypatch, column, value, message):
    monkeypatch.setattr(lacova.data.survey, "CHUNK_ROWS", 20)
    frame = visits().astype({"a": object} if column == "a" else {})
    own = frame["id"].duplicated(keep=False) & frame["sex"].notna()
    frame.loc[frame.index[own][-1], column] = value
    frame[column] = frame[column].astype(str).where(frame[column].notna(), None) if column == "a" else frame[column]
    with pytest.raises(DataError, match=message):
        survey(opened(written(frame)), SCHEMA, 0)


def test_bounds_are_checked_in_every_part(written, monkeypatch):
    monkeypatch.setattr(lacova.data.survey, "CHUNK_ROWS", 20)
    frame = visits()
    frame.loc[len(frame) - 1, "a"] = -1.0
    schema = Schema(["a"], {"dose": "continuous"}, instance="id", bounds={"a": (0, None)})
    with pytest.raises(DataError, match=r"column 'a' holds .*but the schema says bounds \(0.0, None\)"):
        survey(opened(written(frame)), schema, 0)


def test_more_levels_than_a_stream_takes_are_refused(written):
    frame = visits(1, 1).loc[np.zeros(MOST_LEVELS + 10, dtype=int)].assign(id=range(MOST_LEVELS + 10))
    frame["sex"] = [f"s{k}" for k in range(len(frame))]
    with pytest.raises(DataError, match="more than 10,000 levels; column 'sex' has some of them"):
        survey(opened(written(frame, 100_000)), SCHEMA, 0)


def test_an_empty_share_is_refused(written):
    with pytest.raises(
        DataError, match=r"no rows of .*t\.parquet are in the share from 0.0 to 1e-09; take a larger one"
    ):
        survey(opened(written(visits())).share(0.0, 1e-9, 0), SCHEMA, 0)


# Files written part by part


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
def test_outputs_that_cannot_be_are_refused(tmp_path, name, message):
    with pytest.raises(DataError, match=message), writing(tmp_path / name):
        raise AssertionError
