"""Domains in every file format."""

from pathlib import Path

import pandas as pd
import pytest

from lacova.datasets import sdtm
from tests.datasets.sdtm.cases import domains, prepared, write


@pytest.mark.parametrize("suffix", [".csv.gz", ".parquet", ".xpt", ".CSV"])
def test_every_format_gives_the_same_table(plain, tmp_path, suffix):
    folder = tmp_path / "other"
    write(folder, domains(), suffix.lower())
    if suffix.isupper():
        for file in list(folder.iterdir()):
            file.rename(folder / file.name.upper())
    study = sdtm.study(folder)
    pd.testing.assert_frame_equal(study.table, plain.table, check_exact=True)
    assert study.notes == plain.notes
    assert study.schema == plain.schema


def test_a_zero_of_an_xpt_file_is_zero_and_its_letters_may_be_latin(tmp_path):
    tables = domains()
    tables["CM"].loc[3, "CMTRT"] = "CAFÉ"
    study = sdtm.study(write(tmp_path / "x", tables, ".xpt"))
    assert study.table["PH"].eq(0.0).all()  # pandas reads 5.4e-79
    assert "CM café" in study.table


def test_sas7bdat_goes_through_pandas(plain, tmp_path, monkeypatch):
    folder = tmp_path / "sas"
    folder.mkdir()
    for name in domains():
        (folder / f"{name.lower()}.sas7bdat").touch()

    def read_sas(path, format, encoding):
        assert (format, encoding) == ("sas7bdat", "infer")
        return domains()[Path(path).stem.upper()].fillna({"AEENDTC": "", "CMENDTC": " "})

    monkeypatch.setattr(pd, "read_sas", read_sas)
    pd.testing.assert_frame_equal(sdtm.study(folder).table, plain.table)


def test_column_names_may_be_in_small_letters(plain, tmp_path):
    study = prepared(tmp_path, {name: table.rename(columns=str.lower) for name, table in domains().items()})
    pd.testing.assert_frame_equal(study.table, plain.table)
