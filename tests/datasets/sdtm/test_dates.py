"""Partial dates."""

import numpy as np
import pandas as pd
import pytest

from lacova.data.errors import DataError
from lacova.datasets.sdtm.dates import first_day, is_whole, last_day


def test_partial_dates():
    text = pd.Series(
        ["2014-02-03", "2014-02", "2012-02", "2014", "2014---15", "2014-02-03T10:30", "2014-01/2015", None, "--12-15"]
    )
    assert first_day(text, "X").dt.strftime("%F").fillna("").tolist() == [
        "2014-02-03", "2014-02-01", "2012-02-01", "2014-01-01", "2014-01-01", "2014-02-03", "2014-01-01", "", "",
    ]  # fmt: skip
    assert last_day(text, "X").dt.strftime("%F").fillna("").tolist() == [
        "2014-02-03", "2014-02-28", "2012-02-29", "2014-12-31", "2014-12-31", "2014-02-03", "2015-12-31", "", "",
    ]  # fmt: skip
    assert np.flatnonzero(is_whole(text, "X")).tolist() == [0, 5]
    for wrong in ("2014-02-30", "02/03/2014", "2014-13", "3 May"):
        with pytest.raises(DataError, match=f"X has the date '{wrong}'; expected ISO 8601"):
            first_day(pd.Series([None, "2014", wrong]), "X")
