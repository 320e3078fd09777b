"""Parts of the patients, and scaling by the training part."""

import numpy as np
import pandas as pd
import pytest

from tests.datasets.sdtm.cases import many, prepared


def test_patients_are_split_whole_and_by_the_seed(tmp_path):
    options = {"validation_share": 0.1, "test_share": 0.2}
    parts = prepared(tmp_path, many(), **options).parts
    people = {part: set(table["patient"]) for part, table in parts.items()}
    assert {part: len(names) for part, names in people.items()} == {"train": 14, "validation": 2, "test": 4}
    assert len(set.union(*people.values())) == 20
    assert sum(map(len, parts.values())) == 100
    again = prepared(tmp_path, many(), **options).parts
    assert all(again[part].equals(parts[part]) for part in parts)
    assert set(prepared(tmp_path, many(), **options, seed=1).parts["test"]["patient"]) != people["test"]
    assert set(prepared(tmp_path, many(), test_share=0.2).parts) == {"train", "test"}


def test_training_patients_alone_determine_common_names_and_scales(tmp_path):
    tables = many()
    held_out = prepared(tmp_path, tables, test_share=0.2).parts["test"]["patient"].unique()
    seen = next(name for name in tables["DM"]["USUBJID"] if name not in held_out)
    tables["AE"] = pd.DataFrame({"USUBJID": [seen, *held_out], "AEDECOD": ["RASH", *["GOUT"] * len(held_out)]})
    tables["AE"] = tables["AE"].assign(AESTDTC="2014", AEENDTC=None)
    tables["LB"].loc[tables["LB"]["USUBJID"].isin(held_out) & (tables["LB"]["LBTESTCD"] == "ALT"), "LBSTRESN"] += 1e6
    assert "AE gout" in prepared(tmp_path, tables, events=1).table
    raw = prepared(tmp_path, tables, events=1, test_share=0.2)
    assert "AE rash" in raw.table
    assert "AE gout" not in raw.table
    names = list(raw.schema.measurements)
    for scaling, moments in (("minmax", ("min", "max")), ("standard", ("mean", "std"))):
        study = prepared(tmp_path, tables, events=1, test_share=0.2, scaling=scaling)
        train = study.parts["train"][names]
        assert train["ALT"].agg(moments[0]) == pytest.approx(0.0, abs=1e-12)
        more = {"ddof": 0} if scaling == "standard" else {}
        assert getattr(train["ALT"], moments[1])(**more) == pytest.approx(1.0, rel=1e-12)
        assert study.parts["test"]["ALT"].min() > 1e3
        back = train * study.scales["width"] + study.scales["centre"]
        np.testing.assert_allclose(back, raw.parts["train"][names], rtol=1e-10, atol=1e-10)
