import datetime as dt
import math
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch

from lacova import CVAE, DataError, Dense, Schema, UnseenLevelWarning
from lacova.data.io.dataframes import to_pandas
from lacova.data.table_encoder import TableEncoder
from tests import tables
from tests.tables import VISITS

NAN = float("nan")


def visits(seed=0):
    """Three interleaved visits of six patients, the first of unknown sex, with a column outside the schema."""
    table = tables.visits(patients=6, times=3, gaps=0.3, seed=seed)
    table.loc[table["id"] == "p0", "sex"] = None
    table.insert(0, "note", np.arange(float(len(table))))
    return table


LIBRARIES = {
    "polars": (pl.from_pandas, pl.DataFrame, pl.Series),
    "pyarrow": (lambda f: pa.Table.from_pandas(f, preserve_index=False), pa.Table, pa.ChunkedArray),
}
every_library = pytest.mark.parametrize("library", LIBRARIES)


def same(result, expected):
    """Assert that a table of another library has the values of a pandas one, whose dtypes may be wider."""
    result = result.to_pandas()
    pd.testing.assert_frame_equal(result, expected.reset_index(drop=True), check_exact=True, check_dtype=False)


@pytest.fixture(scope="module")
def model():
    return CVAE(VISITS, latent_dim=2, networks=Dense((8,), (8,))).fit(visits(), max_epochs=2)


@every_library
@pytest.mark.parametrize(
    "use",
    [
        lambda m, d: m.impute(d),
        lambda m, d: m.impute(d, draws=2),
        lambda m, d: m.impute(d, interval=0.9, probabilities=True),
        lambda m, d: m.predict(d),
        lambda m, d: m.predict(d, interval=0.5, draws=7),
        lambda m, d: m.predict(d, history=d, draws=7),
        lambda m, d: m.sample(d, draws=3),
    ],
    ids=["impute", "draws", "interval", "predict", "predict interval", "history", "sample"],
)
def test_results_are_those_of_pandas_in_the_callers_library(model, library, use):
    convert, kind, _ = LIBRARIES[library]
    result = use(model, convert(visits()))
    assert isinstance(result, kind)
    same(result, use(model, visits()))


@every_library
def test_numbers_are_those_of_pandas(model, library):
    convert, _, kind = LIBRARIES[library]
    table = convert(visits())
    density = model.log_likelihood(table)
    assert isinstance(density, kind)
    assert density.to_pandas().tolist() == model.log_likelihood(visits()).tolist()
    assert model.elbo(table) == model.elbo(visits())
    assert model.score(table) == model.score(visits())


@every_library
def test_the_library_makes_no_difference_to_the_model(model, library):
    convert = LIBRARIES[library][0]
    options = {"max_epochs": 2}
    one = CVAE(VISITS, latent_dim=2, networks=Dense((8,), (8,))).fit(convert(visits()), convert(visits(1)), **options)
    other = CVAE(VISITS, latent_dim=2, networks=Dense((8,), (8,))).fit(visits(), visits(1), **options)
    a, b = one.vae.state_dict(), other.vae.state_dict()
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert one.training_instances == other.training_instances


def test_history_may_come_from_another_library(model):
    new, past = visits()[12:], visits()[:12]
    expected = model.predict(new, history=past)
    same(model.predict(pl.from_pandas(new), history=past), expected)
    same(model.predict(pa.Table.from_pandas(new), history=pl.from_pandas(past)), expected)


def test_a_column_of_nothing_but_nulls_is_a_gap(model):
    new = {"id": ["p1"], "day": [2.0], "age": [None], "sex": [None]}
    expected = model.predict(pd.DataFrame(new))
    same(model.predict(pl.DataFrame(new)), expected)
    same(model.predict(pa.table(new)), expected)


def test_predict_ignores_measurements(model):
    table = pl.from_pandas(visits())
    strange = table.with_columns(alt=pl.Series([["?"]] * 18), ast=pl.lit("?"))
    assert model.predict(strange).equals(model.predict(table))


# One column at a time: its type is preserved.

ROWS = Schema(["y"], {"x": "continuous", "c": "categorical"})
NUMBERS = [7, 9, None, 12]


def filled(table, column, y=9.6, x=1.0, c=1.0):
    """Return the column after filling gaps with y and x in their own units, and with the level of code c."""
    frame, origin = to_pandas(table, ROWS.columns)
    encoder = TableEncoder.learn(ROWS, frame)
    x = (x - encoder.x_shift[0]) / encoder.x_scale[0]
    done = encoder.fill(frame, np.full((4, 1), y), torch.tensor([[x, c]] * 4, dtype=torch.float64))
    return origin.complete(done)[column]


def polars_table(**columns):
    return pl.DataFrame({"y": [1.0, 2.0, 4.0, 5.0], "x": [1.0, 2.0, 4.0, 5.0], "c": list("uvuv"), **columns})


def arrow_table(**columns):
    return pa.table({"y": [1.0, 2.0, 4.0, 5.0], "x": [1.0, 2.0, 4.0, 5.0], "c": list("uvuv"), **columns})


@pytest.mark.parametrize("role", ["y", "x"])
@pytest.mark.parametrize(
    ("dtype", "value"),
    [(t, 10) for t in (pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.UInt8, pl.UInt16, pl.UInt32, pl.UInt64)]
    + [(pl.Float64, 9.6), (pl.Float32, np.float32(9.6).item()), (pl.Decimal(10, 1), Decimal("9.6"))],
    ids=str,
)
def test_polars_numbers_keep_their_type(role, dtype, value):
    column = pl.Series(NUMBERS).cast(dtype)
    done = filled(polars_table(**{role: column}), role, y=9.6, x=9.6)
    assert done.dtype == dtype
    assert done.to_list() == [7, 9, value, 12]


@pytest.mark.parametrize("role", ["y", "x"])
@pytest.mark.parametrize(
    ("dtype", "value"),
    [(t(), 10) for t in (pa.int8, pa.int16, pa.int32, pa.int64, pa.uint8, pa.uint16, pa.uint32, pa.uint64)]
    + [
        (pa.float64(), 9.6),
        (pa.float32(), np.float32(9.6).item()),
        (pa.float16(), np.float16(9.6).item()),
        (pa.decimal128(10, 1), Decimal("9.6")),
    ],
    ids=str,
)
def test_arrow_numbers_keep_their_type(role, dtype, value):
    column = pa.array(NUMBERS).cast(pa.float32()).cast(dtype) if dtype == pa.float16() else pa.array(NUMBERS, dtype)
    done = filled(arrow_table(**{role: column}), role, y=9.6, x=9.6)
    assert done.type == dtype
    assert done.to_pylist() == [7, 9, value, 12]


@pytest.mark.parametrize(("y", "value"), [(-3.0, 0), (1e9, 255), (2.4, 2)])
def test_integers_stay_within_their_type(y, value):
    assert filled(polars_table(y=pl.Series(NUMBERS, dtype=pl.UInt8)), "y", y=y).to_list()[2] == value
    assert filled(arrow_table(y=pa.array(NUMBERS, pa.uint8())), "y", y=y).to_pylist()[2] == value


def test_large_integers_are_not_rounded():
    large = [2**62 + 1, None, 2**62 + 3, 2**62 + 5]
    expected = [large[0], large[2], *large[2:]]
    assert filled(polars_table(c=large), "c").to_list() == filled(arrow_table(c=large), "c").to_pylist() == expected


LEVELS = ["u", "v", None, "v"]
POLARS_LEVELS = {
    "text": (pl.Series(LEVELS), "v"),
    "Categorical": (pl.Series(LEVELS, dtype=pl.Categorical), "v"),
    "named Categorical": (pl.Series(LEVELS, dtype=pl.Categorical(pl.Categories("arms"))), "v"),
    "Enum": (pl.Series(LEVELS, dtype=pl.Enum(["w", "v", "u"])), "v"),  # levels in the order of the Enum: w, v, u
    "Boolean": (pl.Series([False, True, None, True]), True),
    "Int16": (pl.Series([3, 5, None, 5], dtype=pl.Int16), 5),
    "Float32": (pl.Series([3, 5, None, 5], dtype=pl.Float32), 5.0),
    "Date": (pl.Series([dt.date(2020, 1, 1), dt.date(2021, 1, 1), None, dt.date(2020, 1, 1)]), dt.date(2021, 1, 1)),
}


@pytest.mark.parametrize(("column", "value"), POLARS_LEVELS.values(), ids=POLARS_LEVELS)
def test_polars_levels_keep_their_type(column, value):
    done = filled(polars_table(c=column), "c")
    assert done.dtype == column.dtype
    assert done.to_list() == [*column.to_list()[:2], value, column.to_list()[3]]


ARROW_LEVELS = {
    "string": (pa.array(LEVELS), "v"),
    "large_string": (pa.array(LEVELS, pa.large_string()), "v"),
    "dictionary": (pa.DictionaryArray.from_arrays([2, 0, None, 0], ["v", "w", "u"]), "w"),
    "int8 dictionary": (
        pa.DictionaryArray.from_arrays(pa.array([1, 0, None, 0], pa.int8()), ["v", "u"], ordered=True), "u",
    ),
    "dictionary of numbers": (pa.array([5, 3, None, 3]).dictionary_encode(), 3),
    "bool": (pa.array([False, True, None, True]), True),
    "int16": (pa.array([3, 5, None, 5], pa.int16()), 5),
}  # fmt: skip


@pytest.mark.parametrize(("column", "value"), ARROW_LEVELS.values(), ids=ARROW_LEVELS)
def test_arrow_levels_keep_their_type(column, value):
    done = filled(arrow_table(c=column), "c")
    assert done.type == column.type
    assert done.to_pylist() == [*column.to_pylist()[:2], value, column.to_pylist()[3]]
    if pa.types.is_dictionary(column.type):
        assert done.combine_chunks().dictionary.to_pylist() == column.dictionary.to_pylist()


def test_dictionaries_that_differ_between_chunks():
    chunks = [pa.array(["u", "v"]).dictionary_encode(), pa.array([None, "u"]).dictionary_encode()]
    done = filled(arrow_table(c=pa.chunked_array(chunks)), "c")
    assert done.to_pylist() == ["u", "v", "v", "u"]
    assert done.type == chunks[0].type


@pytest.mark.parametrize(("y", "value"), [(0.7, True), (0.2, False)])
def test_true_or_false_as_a_measurement(y, value):
    column = [True, False, None, True]
    assert filled(polars_table(y=column), "y", y=y).to_list() == [True, False, value, True]
    assert filled(arrow_table(y=column), "y", y=y).to_pylist() == [True, False, value, True]


def test_polars_levels_are_numbered_alike_in_every_process():
    # The numbers behind a Categorical depend on which texts the process met first.
    pl.Series(["v", "u"], dtype=pl.Categorical)
    frame, _ = to_pandas(polars_table(c=pl.Series(["v", "u", None, "v"], dtype=pl.Categorical)))
    assert TableEncoder.learn(ROWS, frame).levels["c"] == ("u", "v")


# A level of the training rows that the table's type does not have.


def learnt():
    return TableEncoder.learn(ROWS, to_pandas(polars_table())[0])


def imputed_as_v(table):
    frame, origin = to_pandas(table, ROWS.columns)
    return origin.complete(learnt().fill(frame, np.zeros((4, 1)), torch.ones(4, 2)))["c"]


def test_an_enum_without_the_level_becomes_text():
    done = imputed_as_v(polars_table(c=pl.Series(["u", None, "u", "u"], dtype=pl.Enum(["u"]))))
    assert done.cast(pl.String).to_list() == ["u", "v", "u", "u"]


def test_a_dictionary_without_the_level_grows():
    column = pa.array(["u", None, "u", "u"]).dictionary_encode()
    done = imputed_as_v(arrow_table(c=column))
    assert done.type == column.type
    assert done.to_pylist() == ["u", "v", "u", "u"]


def test_pandas_categories_without_the_level_grow():
    column = pd.Categorical(["u", None, "u", "u"])
    done = imputed_as_v(polars_table().to_pandas().assign(c=column))
    assert done.cat.categories.tolist() == ["u", "v"]
    assert done.tolist() == ["u", "v", "u", "u"]


def test_a_column_of_no_type_takes_that_of_its_values():
    assert imputed_as_v(polars_table(c=pl.Series([None] * 4))).to_list() == ["v"] * 4
    assert imputed_as_v(arrow_table(c=pa.nulls(4))).to_pylist() == ["v"] * 4


# Columns that the schema does not name never leave their library.


def odd_columns():
    return {
        "list": [[1], None, [2, 3], []],
        "struct": [{"a": 1}, None, {"a": None}, {"a": 2}],
        "date": [dt.date(2020, 1, 1), None, dt.date(2020, 1, 3), None],
        "number": [NAN, None, 1.0, math.inf],
    }


@pytest.mark.parametrize("draws", [1, 2])
def test_other_columns_are_unchanged(draws):
    table = polars_table(y=[1.0, None, NAN, 4.0], **odd_columns()).with_columns(
        cat=pl.Series(["a", None, "b", "a"], dtype=pl.Categorical), time=pl.lit(dt.time(12)), nothing=None
    )
    for one in (table, table.drop("time", "nothing").to_arrow()):
        frame, origin = to_pandas(one, ROWS.columns)
        done = TableEncoder.learn(ROWS, frame).fill(frame, np.zeros((4, 1)), torch.zeros(4, 2))
        result = pl.DataFrame(origin.complete(pd.concat([done] * draws)))
        expected = pl.concat([pl.DataFrame(one)] * draws)
        assert result.schema == expected.schema
        assert result.drop("y").equals(expected.drop("y"))
        assert result["y"].to_list() == [1.0, 0.0, 0.0, 4.0] * draws


@every_library
def test_rows_follow_the_index_of_the_result(library):
    table = LIBRARIES[library][0](visits())
    frame, origin = to_pandas(table, VISITS.columns)
    done = TableEncoder.learn(VISITS, frame).fill(frame, np.zeros((18, 2)), torch.zeros(18, 3))
    order = [4, 4, 17, 0]
    same(origin.complete(done.iloc[order]), done.assign(note=visits()["note"]).iloc[order])


@every_library
@pytest.mark.parametrize(("name", "options"), [("draw", {"draws": 2}), ("alt_lower", {"interval": 0.9})])
def test_new_columns_do_not_replace_others(model, library, name, options):
    table = LIBRARIES[library][0](visits().rename(columns={"note": name}))
    with pytest.raises(DataError, match=name):
        model.impute(table, **options)


def test_pandas_passes_through():
    frame = visits()
    same_frame, origin = to_pandas(frame, ["alt"])
    assert same_frame is origin.complete(frame) is origin.table(frame) is frame


def test_pandas_metadata_of_an_arrow_table_is_not_an_index():
    table = pa.Table.from_pandas(visits().set_index("id"))
    frame, _ = to_pandas(table)
    assert list(frame.columns) == ["note", "day", "age", "sex", "alt", "ast", "id"]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (pl.LazyFrame({"a": [1]}), r"^expected a table, got a lazy LazyFrame; call its collect\(\) first\.$"),
        ([1], r"^expected a pandas or polars DataFrame or a pyarrow Table, got list\.$"),
        (pl.Series([1]), r"^expected a pandas or polars DataFrame or a pyarrow Table, got Series\.$"),
        (pa.table([[1], [2]], names=["a", "a"]), r"^each column needs a name of its own; rename or drop one of each\."),
    ],
)
def test_anything_but_a_table_is_refused(model, table, message):
    with pytest.raises(DataError, match=message):
        to_pandas(table)
    with pytest.raises(DataError, match=message):
        model.fit(table)


@every_library
def test_bad_tables_are_refused_as_with_pandas(model, library):
    convert = LIBRARIES[library][0]
    with pytest.raises(DataError, match=r"^the table has no rows\.$"):
        model.impute(convert(visits()[:0]))
    with pytest.raises(DataError, match=r"^column\(s\) 'sex' are in the schema .* 'note', 'id', 'day', 'age', 'alt'"):
        model.impute(convert(visits().drop(columns="sex")))
    with pytest.warns(UnseenLevelWarning, match=r"^18 entries hold levels never seen .* 18 of 'sex' \('x'\)"):
        done = model.impute(convert(visits().assign(sex="x")))
    assert set(to_pandas(done)[0]["sex"]) == {"x"}
    with pytest.raises(DataError, match="must be numeric"):
        model.impute(convert(visits().assign(alt=pd.Timestamp("2020-01-01"))))


# pandas' own types that hold gaps.


@pytest.mark.parametrize(
    "dtype", ["Int8", "Int64", "UInt16", "Float32", "Float64", "int64[pyarrow]", "double[pyarrow]"]
)
def test_pandas_numbers_keep_their_type(dtype):
    column = pd.array([7, 9, None, 12], dtype=dtype)
    done = filled(polars_table().to_pandas().assign(y=column), "y")
    assert done.dtype == dtype
    assert done.tolist() == [7, 9, pytest.approx(9.6) if "loat" in dtype or "double" in dtype else 10, 12]


@pytest.mark.parametrize("dtype", ["string", "str", "string[pyarrow]", "category", "object"])
def test_pandas_levels_keep_their_type(dtype):
    column = pd.Series(["u", "v", None, "v"], dtype=dtype)
    done = filled(polars_table().to_pandas().assign(c=column), "c")
    assert done.dtype == column.dtype
    assert done.tolist() == ["u", "v", "v", "v"]


@pytest.mark.parametrize("dtype", ["boolean", "bool[pyarrow]", "object"])
def test_pandas_truth_keeps_its_type(dtype):
    column = pd.Series([False, True, None, True], dtype=dtype)
    done = filled(polars_table().to_pandas().assign(c=column), "c")
    assert done.dtype == column.dtype
    assert done.tolist() == [False, True, True, True]


def test_numbers_as_text_stay_text():
    done = filled(polars_table(y=["7", "9", None, "12"]), "y")
    assert done.to_list() == ["7", "9", "9.6", "12"]


def test_levels_of_mixed_types_keep_their_types():
    frame = polars_table().to_pandas().assign(c=pd.Series([2, "b", None, None], dtype=object))
    done = TableEncoder.learn(ROWS, frame).fill(
        frame, np.zeros((4, 1)), torch.tensor([[0.0, code] for code in (0, 0, 1, 0)])
    )
    assert done["c"].tolist() == [2, "b", "b", 2]
