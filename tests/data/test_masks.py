import numpy as np
import pandas as pd
import pytest

from lacova.data.errors import DataError
from lacova.datasets import mask_at_random, rotated_digits


def visits(patients=300, times=4):
    patient = np.tile(np.arange(patients), times)  # the rows of a patient need not be adjacent
    return pd.DataFrame({"id": patient, "sex": np.where(patient % 2, "f", "m"), "age": 40.0 + patient, "dose": 1.0})


def test_masking_hides_the_stated_share_and_nothing_else():
    table, schema = rotated_digits(1, 100)
    masked = mask_at_random(table, list(schema.covariates), 0.3, seed=0)
    assert masked[list(schema.covariates)].isna().to_numpy().mean() == pytest.approx(0.3, abs=0.06)
    assert masked[list(schema.measurements)].equals(table[list(schema.measurements)])
    seen = masked.notna()
    assert (masked.where(seen, 0) == table.where(seen, 0)).to_numpy().all()
    assert masked.equals(mask_at_random(table, list(schema.covariates), 0.3, seed=0))
    assert not masked.equals(mask_at_random(table, list(schema.covariates), 0.3, seed=1))


def test_static_columns_lose_all_entries_of_a_patient_or_none():
    table, columns = visits(), ["sex", "age", "dose"]
    masked = mask_at_random(table, columns, 0.3, 5, instance="id", static=["sex", "age"])
    share = masked.isna().groupby(table["id"]).mean()
    for name in ("sex", "age"):
        assert set(share[name]) == {0.0, 1.0}
        assert share[name].mean() == pytest.approx(0.3, abs=0.08)  # 3 standard errors
    assert (share["sex"] != share["age"]).any()
    assert set(share["dose"]) > {0.25, 0.5}
    plain = mask_at_random(table, columns, 0.3, 5)
    assert masked["dose"].equals(plain["dose"])
    assert not masked["sex"].equals(plain["sex"])


def test_labels_may_be_of_any_type_and_static_columns_may_stay_complete():
    table = visits()
    text = table.assign(id=["p" + str(-k) for k in table["id"]])
    options = {"instance": "id", "static": ["sex", "age"]}
    masked, other = (mask_at_random(t, ["age", "dose"], 0.3, 5, **options) for t in (table, text))
    assert masked.drop(columns="id").equals(other.drop(columns="id"))
    assert masked["sex"].equals(table["sex"])


def test_refusals():
    table = visits(3)
    with pytest.raises(ValueError, match=r"fraction is 20; expected a number from 0 to 1"):
        mask_at_random(table, ["dose"], 20, 0)
    with pytest.raises(ValueError, match=r"static columns \['sex'\] are constant within a patient: name the instance"):
        mask_at_random(table, ["sex"], 0.2, 0, static=["sex"])
    with pytest.raises(DataError, match=r"no column 'Sex'\. Did you mean 'sex'\?"):
        mask_at_random(table, ["dose"], 0.2, 0, instance="id", static=["Sex"])
