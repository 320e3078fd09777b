import math
import re
import warnings

import numpy as np
import pandas as pd
import pytest
import torch

from lacova import DataError, Schema
from lacova.data.table_encoder import TableEncoder
from tests.tables import VISITS, five_visits

NAN = float("nan")
SIMPLE = Schema(["y"], {"x": "continuous", "c": "categorical"})


def simple(**columns):
    return pd.DataFrame({"y": [1.0, 2.0, 4.0], "x": [0.0, 1.0, 5.0], "c": ["u", "v", "u"], **columns})


def levels_of(values):
    frame = pd.DataFrame({"c": values, "y": np.arange(len(values)), "x": np.arange(len(values))})
    return TableEncoder.learn(SIMPLE, frame).levels["c"]


def doubled(frame, name):
    return pd.concat([frame, frame[[name]]], axis=1)


# Tables that are refused: in "learn" as training rows, in "encode" as new rows.
BAD = {
    "unseen category": (
        "encode",
        lambda f: f.assign(sex=["x", "x", "f", None, None]),
        "column 'sex' holds 'x', never seen in training; known levels are 'f', 'm'. Mark such entries as missing",
    ),
    "six unseen categories": (
        "encode",
        lambda f: pd.concat([f, f]).assign(sex=list("rstuvwwwww"), id=range(10)),
        "column 'sex' holds 'r', 's', 't', 'u', 'v' and 1 more, never seen in training",
    ),
    "infinite measurement": (
        "learn encode",
        lambda f: f.assign(alt=[1.0, math.inf, -math.inf, 2.0, 3.0]),
        "column 'alt' holds 2 infinite value(s); replace them by gaps (NaN) or finite values.",
    ),
    "infinite covariate": (
        "learn encode",
        lambda f: f.assign(day=[1.0, math.inf, 0.0, 2.0, 3.0]),
        "column 'day' holds 1 infinite value(s)",
    ),
    "duplicated measurement": (
        "learn encode",
        lambda f: doubled(f, "alt"),
        "column name(s) 'alt' appear more than once in the table; rename or drop one of each.",
    ),
    "duplicated instance": (
        "learn encode",
        lambda f: doubled(doubled(f, "id"), "sex"),
        "column name(s) 'id', 'sex' appear more than once",
    ),
    "missing instance": (
        "encode",
        lambda f: f.assign(id=["b", None, "a", None, "a"]),
        "instance column 'id' is missing in 2 row(s); every row must name its instance.",
    ),
    "all-missing measurement": (
        "learn",
        lambda f: f.assign(ast=NAN),
        "measurement column(s) 'ast' have no observed value in training; take them out of the schema.",
    ),
    "two all-missing measurements": (
        "learn",
        lambda f: f.assign(alt=None, ast=NAN),
        "measurement column(s) 'alt', 'ast' have no observed value in training",
    ),
    "all-missing continuous covariate": (
        "learn",
        lambda f: f.assign(age=NAN),
        "covariate column(s) 'age' have no observed value in training; take them out of the schema.",
    ),
    "all-missing categorical covariate": (
        "learn",
        lambda f: f.assign(sex=None),
        "covariate column(s) 'sex' have no observed value in training; take them out of the schema.",
    ),
    "absent measurement": (
        "learn encode",
        lambda f: f.drop(columns="alt"),
        "column(s) 'alt' are in the schema but not in the table, whose columns are 'id', 'day', 'age', 'sex', 'ast'.",
    ),
    "absent instance and covariate": (
        "learn encode",
        lambda f: f.drop(columns=["id", "sex"]),
        "column(s) 'id', 'sex' are in the schema but not in the table",
    ),
    "text in a measurement": (
        "learn encode",
        lambda f: f.assign(alt=["1.5", "high", "2", "<3", "high"]),
        "column 'alt' must be numeric, but holds 'high', '<3'. Turn text into numbers or gaps first",
    ),
    "text in a continuous covariate": (
        "learn encode",
        lambda f: f.assign(day=["Monday", 1.0, 2.0, 3.0, 4.0]),
        "column 'day' must be numeric, but holds 'Monday'.",
    ),
    "static conflict, continuous": (
        "encode",
        lambda f: f.assign(age=[50.0, 51.0, NAN, 31.0, 31.0]),
        "static column 'age' takes more than one value within instance(s) 'b'; correct the values",
    ),
    "static conflict, categorical": (
        "encode",
        lambda f: f.assign(sex=["f", "m", "f", None, "m"]),
        "static column 'sex' takes more than one value within instance(s) 'b', 'a'; correct the values",
    ),
    "nested values": (
        "learn encode",
        lambda f: f.assign(sex=[["f"], None, ["m"], None, None]),
        "column 'sex' holds nested values; expected numbers, text or categories.",
    ),
    "empty table": ("learn encode", lambda f: f[:0], "the table has no rows."),
    "not a DataFrame": ("learn encode", lambda f: f.to_dict(), "expected a pandas DataFrame, got dict."),
}


@pytest.mark.parametrize(
    ("stage", "change", "message"),
    [
        pytest.param(stage, change, message, id=f"{name} ({stage})")
        for name, (stages, change, message) in BAD.items()
        for stage in stages.split()
    ],
)
def test_bad_table_is_refused(stage, change, message):
    bad = change(five_visits())
    with pytest.raises(DataError, match=re.escape(message)):
        TableEncoder.learn(VISITS, bad) if stage == "learn" else TableEncoder.learn(VISITS, five_visits()).encode(bad)


def test_duplicated_column_outside_the_schema_is_allowed():
    frame = doubled(five_visits().assign(note="n"), "note")
    assert len(TableEncoder.learn(VISITS, frame).encode(frame)) == 5


def test_unknown_scaling_is_refused():
    with pytest.raises(
        ValueError, match=r"^scaling is 'robust'; expected one of auto, standard, minmax, none, normal\.$"
    ):
        TableEncoder.learn(SIMPLE, simple(), "robust")


@pytest.mark.parametrize(("column", "role"), [("y", "measurement"), ("x", "covariate")])
def test_constant_column_warns_with_its_name_and_has_scale_1(column, role):
    frame = simple(**{column: [7.0, NAN, 7.0]})
    with pytest.warns(UserWarning, match=f"^{role} column\\(s\\) '{column}' are constant in training") as caught:
        encoder = TableEncoder.learn(SIMPLE, frame)
    assert len(caught) == 1
    shift, scale = (encoder.y_shift, encoder.y_scale) if column == "y" else (encoder.x_shift[:1], encoder.x_scale[:1])
    assert (shift.tolist(), scale.tolist()) == ([7.0], [1.0])


@pytest.mark.parametrize("scaling", ["standard", "minmax"])
def test_constant_measurement_is_encoded_as_0(scaling):
    frame = simple(y=[7.0, NAN, 7.0])
    with pytest.warns(UserWarning, match="'y' are constant"):
        encoder = TableEncoder.learn(SIMPLE, frame, scaling)
    assert encoder.encode(frame).y[:, 0].tolist() == [0.0, 0.0, 0.0]
    assert encoder.encode(simple(y=[7.0, 8.0, 5.5])).y[:, 0].tolist() == [0.0, 1.0, -1.5]


def test_constant_column_of_0_1_is_constant_in_spite_of_rounding():
    # The standard deviation of ten copies of 0.1 is 1.4e-17, not 0.
    with pytest.warns(UserWarning, match="'y' are constant"):
        encoder = TableEncoder.learn(SIMPLE, pd.DataFrame({"y": [0.1] * 10, "x": range(10), "c": "u"}))
    assert encoder.y_scale.tolist() == [1.0]


def test_all_missing_row_is_accepted():
    frame = five_visits()
    frame.loc[1, ["day", "age", "sex", "alt", "ast"]] = None
    frame = frame.assign(id=range(5))
    table = TableEncoder.learn(VISITS, frame).encode(frame)
    assert not table.y_mask[1].any()
    assert not table.x_mask[1].any()
    assert table.y[1].tolist() == [0.0, 0.0]
    assert table.x[1].tolist() == [0.0, 0.0, 0.0]


def test_column_all_missing_in_new_data_is_accepted():
    table = TableEncoder.learn(VISITS, five_visits()).encode(five_visits().assign(alt=NAN, age=NAN, sex=None))
    assert not table.y_mask[:, 0].any()
    assert not table.x_mask[:, :2].any()


def test_static_value_seen_at_one_visit_is_known_at_all():
    encoder = TableEncoder.learn(VISITS, five_visits())
    table = encoder.encode(five_visits(), dtype=torch.float64)
    age, sex = table.x[:, 0], table.x[:, 1]
    assert table.x_mask[:, :2].all()
    np.testing.assert_allclose(encoder.decode_covariate("age", age), [50, 50, 31, 31, 31], rtol=1e-12)
    assert encoder.decode_covariate("sex", sex).tolist() == ["m", "m", "f", "f", "f"]
    assert table.x_mask[:, 2].tolist() == [True, True, True, False, True]


def test_patients_are_numbered_by_first_appearance():
    table = TableEncoder.learn(VISITS, five_visits()).encode(five_visits().iloc[[2, 0, 3, 1]])
    assert table.patient.tolist() == [0, 1, 0, 1]
    assert table.labels == ("a", "b")


def test_table_without_instance_has_no_patients():
    table = TableEncoder.learn(SIMPLE, simple()).encode(simple())
    assert table.patient is None
    assert table.labels == ()


def test_scales_are_those_of_the_observed_training_entries():
    encoder = TableEncoder.learn(SIMPLE, simple(y=[1.0, NAN, 5.0], x=[NAN, 2.0, 8.0]))
    assert (encoder.y_shift.tolist(), encoder.y_scale.tolist()) == ([3.0], [2.0])
    assert (encoder.x_shift[0], encoder.x_scale[0]) == (5.0, 3.0)


@pytest.mark.parametrize(
    ("scaling", "expected"), [("standard", [-1.0, 1.0]), ("minmax", [0.0, 1.0]), ("none", [1.0, 5.0])]
)
def test_scaling_of_the_measurements(scaling, expected):
    encoder = TableEncoder.learn(SIMPLE, simple(y=[1.0, NAN, 5.0], x=[NAN, 2.0, 8.0]), scaling)
    table = encoder.encode(simple(y=[1.0, 5.0, NAN], x=[2.0, 8.0, 5.0]))
    assert table.y[:2, 0].tolist() == expected
    assert table.x[:, 0].tolist() == [-1.0, 1.0, 0.0]


def test_new_data_are_encoded_with_the_training_scales():
    encoder = TableEncoder.learn(SIMPLE, simple(y=[1.0, 3.0, 5.0], x=[0.0, 2.0, 4.0]), "minmax")
    table = encoder.encode(simple(y=[5.0, 9.0, NAN], x=[2.0, NAN, 2.0], c=["v", None, "u"]), dtype=torch.float64)
    sd = math.sqrt(8 / 3)
    assert table.y[:, 0].tolist() == [1.0, 2.0, 0.0]
    assert table.x[:, 0].tolist() == [0.0, 0.0, 0.0]
    assert table.x[:, 1].tolist() == [1.0, 0.0, 0.0]
    assert encoder.encode(simple(x=[7.0, 1.0, 2.0]), dtype=torch.float64).x[0, 0].item() == 5.0 / sd
    assert table.y_mask[:, 0].tolist() == [True, True, False]
    assert table.x_mask.tolist() == [[True, True], [False, False], [True, True]]


def test_a_single_new_row_can_be_encoded_without_warning():
    encoder = TableEncoder.learn(SIMPLE, simple())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(encoder.encode(simple()[:1])) == 1


@pytest.mark.parametrize("scaling", ["standard", "minmax", "none"])
def test_encode_then_decode_is_the_identity(scaling):
    frame = simple(y=[1e6, -3.25, 0.1], x=[1e-3, 5.0, 5.5], c=["v", "u", "v"])
    encoder = TableEncoder.learn(SIMPLE, frame, scaling)
    table = encoder.encode(frame, dtype=torch.float64)
    np.testing.assert_allclose(encoder.decode_measurements(table.y)[:, 0], frame["y"], rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(encoder.decode_covariate("x", table.x[:, 0]), frame["x"], rtol=1e-8)
    assert encoder.decode_covariate("c", table.x[:, 1]).tolist() == ["v", "u", "v"]


def test_decode_measurements_acts_on_the_last_dimension():
    encoder = TableEncoder.learn(VISITS, five_visits(), "minmax")
    draws = torch.tensor([[[0.0, 1.0]], [[0.5, 0.5]]], dtype=torch.float64)
    assert encoder.decode_measurements(draws).tolist() == [[[20.0, 9.0]], [[30.0, 6.0]]]


def test_encode_without_measurements_ignores_them():
    frame = five_visits()
    encoder = TableEncoder.learn(VISITS, frame)
    table = encoder.encode(frame.assign(alt="no number").drop(columns="ast"), measurements=False)
    assert not table.y_mask.any()
    assert torch.equal(table.x, encoder.encode(frame).x)


def test_encode_has_the_requested_dtype_and_float32_by_default():
    encoder = TableEncoder.learn(SIMPLE, simple())
    assert encoder.encode(simple()).y.dtype == encoder.encode(simple()).x.dtype == torch.float32
    assert encoder.encode(simple(), dtype=torch.float64).x.dtype == torch.float64


def test_encode_does_not_change_the_frame():
    frame, before = five_visits(), five_visits()
    TableEncoder.learn(VISITS, frame).encode(frame)
    pd.testing.assert_frame_equal(frame, before, check_exact=True)


def test_fill_writes_into_gaps_only():
    frame = five_visits().set_index(pd.Index([9, 9, 3, 4, 1], name="row"))[["ast", "sex", "id", "alt", "day", "age"]]
    frame.insert(2, "note", [1.5, NAN, 2.5, NAN, NAN])
    frame["ast"] += 0.1
    before = frame.copy()
    encoder = TableEncoder.learn(VISITS, frame)
    y = np.full((5, 2), [-1.0, -2.0])
    x = torch.tensor([[0.0, 1.0, 0.0]]).repeat(5, 1)
    filled = encoder.fill(frame, y, x)

    pd.testing.assert_frame_equal(frame, before, check_exact=True)
    assert list(filled.columns) == list(frame.columns)
    pd.testing.assert_index_equal(filled.index, frame.index)
    for name in frame.columns:
        seen = frame[name].notna().to_numpy()
        assert filled[name][seen].tolist() == before[name][seen].tolist(), name
    assert filled["ast"].tolist()[2] == -2.0
    assert filled["alt"].tolist()[1] == -1.0
    assert filled["day"].tolist()[3] == encoder.x_shift[2]
    assert filled["age"].tolist() == [50.0, 50.0, 31.0, 31.0, 31.0]  # known from another visit
    assert filled["sex"].tolist() == ["m", "m", "f", "f", "f"]
    assert filled["note"].isna().tolist() == [False, True, False, True, True]


def test_fill_keeps_the_dtypes_of_floats_strings_and_categories():
    sex = pd.Categorical(["f", "m", None], categories=["m", "f", "other"])
    frame = simple(y=[1.0, NAN, 2.0], x=pd.Series([1, NAN, 2], dtype="float32"), c=sex)
    encoder = TableEncoder.learn(SIMPLE, frame)
    filled = encoder.fill(frame, np.ones((3, 1)), torch.zeros(3, 2))
    pd.testing.assert_series_equal(filled.dtypes, frame.dtypes)
    assert filled["c"].tolist() == ["f", "m", "m"]


def test_fill_leaves_a_column_without_gaps_as_it_is():
    frame = simple(x=[1, 2, 3])
    filled = TableEncoder.learn(SIMPLE, frame).fill(frame, np.zeros((3, 1)), torch.zeros(3, 2))
    pd.testing.assert_frame_equal(filled, frame, check_exact=True)


@pytest.mark.parametrize(
    ("values", "levels"),
    [
        (["v", None, "u", "v"], ("u", "v")),
        (pd.Categorical(["lo", "hi", None], categories=["lo", "mid", "hi"]), ("lo", "mid", "hi")),
        (pd.Categorical(["lo", "hi"], categories=["hi", "lo"], ordered=True), ("hi", "lo")),
        ([True, False, True], (False, True)),
        ([True, None, False], (False, True)),
        (pd.array([True, None, False], dtype="boolean"), (False, True)),
        ([10, 9, 2], (2, 9, 10)),
        ([10, 9, NAN], (9.0, 10.0)),
        (pd.array([10, None, 9], dtype="Int64"), (9, 10)),
        ([2, "b", "10", None], ("10", 2, "b")),
    ],
)
def test_order_of_levels(values, levels):
    learnt = levels_of(values)
    assert learnt == levels
    assert [type(v) for v in learnt] == [type(v) for v in levels]


@pytest.mark.parametrize(
    ("train", "new"),
    [
        ([1, 2, 2], [2.0, NAN, 1.0]),
        ([1.0, NAN, 2.0], [2, 2, 1]),
        ([True, False, True], [False, None, True]),
        (["u", "v", "u"], pd.Categorical(["v", None, "u"], categories=["v", "u", "w"])),
        (pd.Categorical(["v", None, "u"], categories=["w", "u", "v"]), ["v", "u", "u"]),
    ],
)
def test_levels_match_across_dtypes(train, new):
    encoder = TableEncoder.learn(SIMPLE, simple(c=train))
    levels = encoder.levels["c"]
    table = encoder.encode(simple(c=new))
    gaps = pd.isna(pd.Series(new)).to_numpy()
    assert table.x_mask[:, 1].tolist() == (~gaps).tolist()
    assert table.x[~gaps, 1].tolist() == [float(levels.index(v)) for v in pd.Series(new)[~gaps]]


def test_unused_category_is_a_level():
    encoder = TableEncoder.learn(SIMPLE, simple(c=pd.Categorical(["u", "v", "u"], categories=["u", "v", "w"])))
    assert encoder.encode(simple(c=["u", "w", "v"])).x[:, 1].tolist() == [0.0, 2.0, 1.0]


def test_number_as_text_is_another_level():
    encoder = TableEncoder.learn(SIMPLE, simple(c=[1, 2, 1]))
    with pytest.raises(DataError, match="column 'c' holds '2', never seen in training; known levels are 1, 2"):
        encoder.encode(simple(c=[1, "2", 1]))


def test_space_describes_the_covariates():
    space = TableEncoder.learn(VISITS, five_visits()).space
    assert space.names == ("age", "sex", "day")
    assert space.levels == (0, 2, 0)
    assert space.static == (True, True, False)


@pytest.mark.parametrize("scaling", ["standard", "minmax", "none"])
def test_log_jacobian_is_minus_the_sum_of_log_scales_over_observed_entries(scaling):
    frame = five_visits()
    encoder = TableEncoder.learn(VISITS, frame, scaling)
    mask = torch.tensor([[True, True], [True, False], [False, True], [False, False]])
    a, b = np.log(encoder.y_scale)
    assert scaling == "none" or min(abs(a), abs(b)) > 0.5
    np.testing.assert_allclose(
        encoder.log_jacobian(torch.zeros(mask.shape), mask), [-a - b, -a, -b, 0.0], rtol=1e-12, atol=0
    )


def test_log_jacobian_turns_the_scaled_density_into_the_density():
    encoder = TableEncoder.learn(SIMPLE, simple())
    y = torch.tensor([[1.0], [2.0], [4.0]], dtype=torch.float64)
    mean, sd = encoder.y_shift[0], encoder.y_scale[0]
    scaled = torch.distributions.Normal(0.0, 1.0).log_prob((y - mean) / sd)[:, 0]
    own = torch.distributions.Normal(mean, sd).log_prob(y)[:, 0]
    torch.testing.assert_close(scaled + encoder.log_jacobian(y, torch.ones(3, 1, dtype=torch.bool)), own)


@pytest.mark.parametrize("dates", [pd.to_datetime(["2020-01-01", None, "2020-03-01"]), pd.to_timedelta([1, None, 2])])
def test_a_missing_date_is_refused_or_a_gap(dates):
    # As a number, NaT would be the observed value -9.2e18.
    frame = simple(x=dates)
    try:
        table = TableEncoder.learn(SIMPLE, frame).encode(frame)
    except DataError:
        return
    assert table.x_mask[:, 0].tolist() == [True, False, True]


def test_fill_of_a_nullable_integer_measurement():
    frame = simple(y=pd.array([1, None, 4], dtype="Int64"))
    filled = TableEncoder.learn(SIMPLE, frame).fill(frame, np.full((3, 1), 2.5), torch.zeros(3, 2))
    assert filled["y"].tolist() == [1, 2, 4]
    assert filled["y"].dtype == "Int64"


@pytest.mark.parametrize("dtype", ["float32", "Float32", "Float64"])
def test_fill_of_a_narrow_or_nullable_float_measurement(dtype):
    frame = simple(y=pd.array([1.5, None, 4.5], dtype=dtype))
    filled = TableEncoder.learn(SIMPLE, frame).fill(frame, np.full((3, 1), 0.1), torch.zeros(3, 2))
    assert filled["y"].dtype == dtype
    assert filled["y"].tolist() == [1.5, pytest.approx(0.1, rel=1e-7), 4.5]


def test_filled_static_column_can_be_encoded_again():
    # A static value known from another visit is copied, not decoded: rounding would give a patient two values.
    frame = five_visits().assign(age=[50.1, NAN, NAN, 31.7, NAN])
    encoder = TableEncoder.learn(VISITS, frame)
    filled = encoder.fill(frame, np.zeros((5, 2)), encoder.encode(frame).x)
    assert encoder.encode(filled).x_mask[:, 0].all()
    assert filled["age"].tolist() == [50.1, 50.1, 31.7, 31.7, 31.7]


# Bounds and whole numbers.

LIMITED = Schema(["y"], {"x": "continuous", "c": "categorical"}, bounds={"y": (0, 4.5), "x": (None, 5)}, integers=["y"])


def test_decoded_values_are_within_bounds_and_whole():
    encoder = TableEncoder.learn(LIMITED, simple(), "none")
    y = torch.tensor([[[-3.0], [0.4], [0.6], [4.4], [9.0]]], dtype=torch.float64)
    assert encoder.decode_measurements(y).tolist() == [[[0.0], [0.0], [1.0], [4.0], [4.0]]]  # 4.5 is no whole number
    x = (torch.tensor([-100.0, 4.75, 5.25], dtype=torch.float64) - encoder.x_shift[0]) / encoder.x_scale[0]
    np.testing.assert_allclose(encoder.decode_covariate("x", x), [-100.0, 4.75, 5.0], rtol=1e-12)


def test_only_columns_with_bounds_are_changed():
    schema = Schema(["alt", "ast"], {"age": "continuous"}, bounds={"ast": (0, 1)})
    encoder = TableEncoder.learn(schema, five_visits().assign(ast=[0.0, 1.0, 0.5, 0.5, NAN]), "none")
    assert encoder.decode_measurements(torch.tensor([[-7.25, -7.25], [9.5, 9.5]])).tolist() == [
        [-7.25, 0.0],
        [9.5, 1.0],
    ]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"y": [-1.0, 5.0, 2.0]},
            "column 'y' holds -1.0, 5.0, but the schema says bounds (0.0, 4.5) and whole numbers",
        ),
        ({"y": [1.0, 1.5, NAN]}, "column 'y' holds 1.5, but the schema says bounds (0.0, 4.5) and whole numbers"),
        (
            {"x": [0.0, 5.5, NAN]},
            "column 'x' holds 5.5, but the schema says bounds (None, 5.0); correct the values, or",
        ),
    ],
)
def test_training_values_beyond_the_bounds_are_refused(columns, message):
    with pytest.raises(DataError, match=re.escape(message)):
        TableEncoder.learn(LIMITED, simple(**columns))


def test_new_values_beyond_the_bounds_come_back_as_they_are():
    encoder = TableEncoder.learn(LIMITED, simple())
    frame = simple(y=[-1.5, NAN, 99.0], x=[70.0, 1.0, 2.0])
    encoder.encode(frame)
    filled = encoder.fill(frame, np.ones((3, 1)), torch.zeros(3, 2))
    assert filled["y"].tolist() == [-1.5, 1.0, 99.0]
    assert filled["x"].tolist() == [70.0, 1.0, 2.0]


def test_filled_values_are_rounded_to_a_narrow_float():
    # pandas refuses values with more digits than a float32 holds.
    frame = simple(y=pd.Series([1, NAN, 4], dtype="float32"))
    filled = TableEncoder.learn(SIMPLE, frame).fill(frame, np.full((3, 1), 0.1), torch.zeros(3, 2))
    assert filled["y"].dtype == "float32"
    assert filled["y"].tolist()[1] == np.float32(0.1).item()
