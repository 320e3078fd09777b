"""The first pass over Parquet files: statistics, layout and a sample."""

import numpy as np
import pandas as pd
import pytest

import lacova.data.survey
from lacova import DataError, Schema
from lacova.data.survey import MAX_LEVELS, survey
from lacova.data.table_encoder import TableEncoder
from tests.data.cases import opened
from tests.tables import RAGGED, ragged_visits


@pytest.mark.parametrize("group", [5, 1000])
def test_the_statistics_of_a_survey_are_those_of_the_table(written, monkeypatch, group):
    monkeypatch.setattr(lacova.data.survey, "CHUNK_ROWS", 20)
    frame = ragged_visits()
    result = survey(opened(written(frame, group)), RAGGED, 0)
    whole, parts = TableEncoder.learn(RAGGED, frame), TableEncoder.from_statistics(result.statistics)
    for name in ("y_shift", "y_scale", "x_shift", "x_scale"):
        np.testing.assert_allclose(getattr(parts, name), getattr(whole, name), rtol=1e-12)
    assert parts.levels == whole.levels
    pd.testing.assert_frame_equal(result.sample, frame[list(RAGGED.columns)], check_dtype=False)


def test_the_sample_has_whole_patients_and_the_requested_size(written, monkeypatch):
    monkeypatch.setattr(lacova.data.survey, "SAMPLE_ROWS", 60)
    frame = ragged_visits(300, 4)
    samples = []
    for group, chunk in ((11, 30), (400, 500)):
        monkeypatch.setattr(lacova.data.survey, "CHUNK_ROWS", chunk)
        source = opened(written(frame, group))
        samples.append(survey(source, RAGGED, 1).sample)
    pd.testing.assert_frame_equal(*samples)
    sample = samples[0]
    assert 56 < len(sample) <= 60
    chosen = frame[frame["id"].isin(set(sample["id"]))]
    assert sample["id"].tolist() == chosen["id"].tolist()
    assert set(survey(source, RAGGED, 2).sample["id"]) != set(sample["id"])


def test_every_patient_is_equally_likely_in_the_sample(written, monkeypatch):
    monkeypatch.setattr(lacova.data.survey, "SAMPLE_ROWS", 30)
    source = opened(written(ragged_visits(100, 1).assign(sex="f", dose=0.1, a=0.2), 20))
    counts = pd.concat([survey(source, RAGGED, seed).sample["id"] for seed in range(50)]).value_counts()
    assert len(counts) == 100
    assert 1 <= counts.min() < 15 < counts.max() < 32  # 15 ± 3.2 each, more than 4 standard deviations


def test_whatever_occurs_in_the_rows_occurs_in_the_sample(written, monkeypatch):
    monkeypatch.setattr(lacova.data.survey, "SAMPLE_ROWS", 20)
    frame = ragged_visits(200, 4).assign(dose=np.nan)
    last = frame.index[frame["id"] == frame["id"].iloc[-1]]
    frame.loc[last[0], ["sex", "dose"]] = ["x", 3.0]
    frame.loc[last[1:], "sex"] = None
    for seed in range(3):
        sample = survey(opened(written(frame, 50)), RAGGED, seed).sample
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
def test_a_survey_refuses_rows_that_a_table_refuses(written, monkeypatch, column, value, message):
    monkeypatch.setattr(lacova.data.survey, "CHUNK_ROWS", 20)
    frame = ragged_visits().astype({"a": object} if column == "a" else {})
    repeated = frame["id"].duplicated(keep=False) & frame["sex"].notna()
    frame.loc[frame.index[repeated][-1], column] = value
    frame[column] = frame[column].astype(str).where(frame[column].notna(), None) if column == "a" else frame[column]
    with pytest.raises(DataError, match=message):
        survey(opened(written(frame)), RAGGED, 0)


def test_bounds_are_checked_in_every_part(written, monkeypatch):
    monkeypatch.setattr(lacova.data.survey, "CHUNK_ROWS", 20)
    frame = ragged_visits()
    frame.loc[len(frame) - 1, "a"] = -1.0
    schema = Schema(["a"], {"dose": "continuous"}, instance="id", bounds={"a": (0, None)})
    with pytest.raises(DataError, match=r"column 'a' holds .*but the schema says bounds \(0.0, None\)"):
        survey(opened(written(frame)), schema, 0)


def test_more_levels_than_a_stream_takes_are_refused(written):
    frame = ragged_visits(1, 1).loc[np.zeros(MAX_LEVELS + 10, dtype=int)].assign(id=range(MAX_LEVELS + 10))
    frame["sex"] = [f"s{k}" for k in range(len(frame))]
    with pytest.raises(DataError, match="more than 10,000 levels; column 'sex' has some of them"):
        survey(opened(written(frame, 100_000)), RAGGED, 0)


def test_an_empty_share_is_refused(written):
    with pytest.raises(
        DataError, match=r"no rows of .*t\.parquet are in the share from 0.0 to 1e-09; take a larger one"
    ):
        survey(opened(written(ragged_visits())).share(0.0, 1e-9, 0), RAGGED, 0)
