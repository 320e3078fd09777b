import datetime as dt

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from lacova import DataError, Schema, SchemaError

PATIENTS, VISITS = 30, 4
HALVES = "3 distinct numbers; if they are codes, make it categorical"
ROWS = PATIENTS * VISITS
WHO = np.repeat(np.arange(PATIENTS), VISITS)


def table(**columns):
    """Return visits of patients; columns with one value per patient are repeated over visits."""
    rng = np.random.default_rng(0)
    base = {"id": [f"p{k}" for k in WHO], "day": rng.uniform(0, 90, ROWS), "alt": rng.normal(30, 5, ROWS)}
    repeated = {name: np.asarray(v)[WHO] if len(v) == PATIENTS else v for name, v in columns.items()}
    return pd.DataFrame({**base, **repeated})


def gapped(values, every=7):
    column = pd.Series(values)
    return column.mask(np.arange(len(column)) % every == 0)


def inferred(column, name="x", **requested):
    """Return the schema and the note for one column beside an instance, a time and a measurement."""
    requested = {"instance": "id", "time": "day", "measurements": ["alt"], **requested}
    schema = Schema.infer(table(**{name: column}), **requested)
    return schema, next(note for note in schema.notes if note.column == name)


LETTERS = np.array(list("abcdefghij"))
RNG = np.random.default_rng(1)
PER_PATIENT = {  # kind, integer, reason
    "text": (LETTERS[np.arange(PATIENTS) % 3], "categorical", False, "text with 3 levels"),
    "codes": (np.arange(PATIENTS) % 2 + 1, "categorical", False, "2 distinct whole numbers"),
    "floats that are codes": (
        (np.arange(PATIENTS) % 4).astype(float),
        "categorical",
        False,
        "4 distinct whole numbers",
    ),
    "whole numbers": (RNG.integers(40, 80, PATIENTS), "continuous", True, "whole numbers"),
    "numbers": (RNG.normal(size=PATIENTS), "continuous", False, "numbers"),
    "halves": (np.arange(PATIENTS) % 3 / 2, "continuous", False, HALVES),
    "truth": (np.arange(PATIENTS) % 2 == 0, "categorical", False, "true or false"),
}
PER_VISIT = {
    "text": (LETTERS[np.arange(ROWS) % 10], "categorical", False, "text with 10 levels"),
    "truth with gaps": (gapped(np.arange(ROWS) % 2 == 0), "categorical", False, "true or false"),
    "nullable truth": (gapped(np.arange(ROWS) % 2 == 0).astype("boolean"), "categorical", False, "true or false"),
    "categories": (
        pd.Categorical(LETTERS[np.arange(ROWS) % 3], list("zcba")), "categorical", False, "categories, 3 in use",
    ),
    "codes with gaps": (gapped(np.arange(ROWS) % 3 + 1.0), "categorical", False, "3 distinct whole numbers"),
    "count": (np.arange(ROWS) % 6, "continuous", True, "whole numbers"),
    "scheduled days": (np.arange(ROWS) % 4 * 28, "continuous", True, "whole numbers"),
    "whole numbers with gaps": (gapped(RNG.integers(0, 99, ROWS)), "continuous", True, "whole numbers"),
    "nullable whole numbers": (gapped(RNG.integers(0, 99, ROWS)).astype("Int64"), "continuous", True, "whole numbers"),
    "whole numbers as floats": (RNG.integers(0, 99, ROWS).astype(float), "continuous", False, "numbers"),
    "numbers among objects": (gapped(RNG.integers(0, 99, ROWS)).astype(object), "continuous", True, "whole numbers"),
    "numbers and text": (gapped([1, 2, "many"] * 40), "categorical", False, "text with 3 levels"),
}  # fmt: skip


@pytest.mark.parametrize(("column", "kind", "integer", "reason"), PER_PATIENT.values(), ids=PER_PATIENT)
def test_columns_that_are_constant_within_a_patient(column, kind, integer, reason):
    schema, note = inferred(column)
    assert schema.covariates == {"day": "continuous", "x": kind}
    assert schema.static == ("x",)
    assert schema.integers == (("x",) if integer else ())
    assert note.reason == f"{reason}; constant within each 'id'"


@pytest.mark.parametrize(("column", "kind", "integer", "reason"), PER_VISIT.values(), ids=PER_VISIT)
def test_columns_that_change_from_visit_to_visit(column, kind, integer, reason):
    schema, note = inferred(column)
    assert schema.covariates == {"day": "continuous", "x": kind}
    assert schema.static == ()
    assert schema.integers == (("x",) if integer else ())
    assert note.reason == reason


LEFT_OUT = {
    "empty": (np.full(ROWS, np.nan), "empty"),
    "empty objects": (np.full(ROWS, None), "empty"),
    "constant": (gapped(np.ones(ROWS)), "always the same"),
    "constant text": (["a"] * ROWS, "always the same"),
    "rows": (np.arange(100, 100 + ROWS), "numbers the rows one by one; if it is the time, make it the time column"),
    "comments": ([f"note {k}" for k in range(ROWS)], "text with 120 levels, more than 50"),
    "names": ([f"name {k}" for k in range(PATIENTS)], "text that is hardly ever repeated"),
    "many levels": ([f"site {k % 60}" for k in range(ROWS)], "text with 60 levels, more than 50"),
    "many categories": (
        pd.Categorical([f"site {k % 60}" for k in range(ROWS)]), "60 categories are more than 50",
    ),
    "ISO dates": (
        [f"2020-01-{k % 28 + 1:02d}" for k in range(ROWS)],
        "dates as text; turn them into numbers, such as days since the start of the study",
    ),
    "dates with months": (
        [f"{k % 28 + 1}JAN2014" for k in range(ROWS)],
        "dates as text; turn them into numbers, such as days since the start of the study",
    ),
    "American dates with times": (
        [f"1/{k % 9 + 1}/2014 12:30" for k in range(ROWS)],
        "dates as text; turn them into numbers, such as days since the start of the study",
    ),
    "dates": (
        pd.to_datetime(["2020-01-01", "2020-01-02"] * 60),
        "holds Timestamp values; turn them into numbers, such as days since the start of the study",
    ),
    "date objects": (
        [dt.date(2020, 1, k % 9 + 1) for k in range(ROWS)],
        "holds date values; turn them into numbers, such as days since the start of the study",
    ),
    "numbers as text": (
        [f"{k / 7:.3f}" if k % 30 else "<3" for k in range(ROWS)],
        "numbers as text; turn them into numbers, and the rest into gaps",
    ),
    "lists": (pd.Series([[k] for k in range(ROWS)]), "holds list values; turn them into numbers"),
}  # fmt: skip


@pytest.mark.parametrize(("column", "reason"), LEFT_OUT.values(), ids=LEFT_OUT)
def test_columns_that_are_left_out(column, reason):
    schema, note = inferred(column)
    assert schema.covariates == {"day": "continuous"}
    assert note.reason == reason
    assert "left out" in next(line for line in str(schema).splitlines() if line.startswith("x "))


@pytest.mark.parametrize("name", ["id2_id", "USUBJID", "SITEID", "patientId", "sample id", "ID", "uuid", "record-ID"])
@pytest.mark.parametrize("column", [RNG.integers(1000, 9999, PATIENTS), [f"s{k // 2}" for k in range(PATIENTS)]])
def test_names_of_identifiers(name, column):
    schema, note = inferred(column, name)
    assert name not in schema.covariates
    assert note.reason == "named like an identifier; if it names the patient, make it the instance"


@pytest.mark.parametrize("name", ["covid", "lipid", "acid", "width", "idle", "paid"])
def test_names_that_only_look_like_identifiers(name):
    assert name in inferred(RNG.integers(1000, 9999, PATIENTS), name)[0].covariates


def test_an_identifier_with_few_levels_is_a_category():
    assert inferred(np.arange(PATIENTS) % 4, "site_id")[0].covariates["site_id"] == "categorical"


def test_one_visit_each_says_nothing_about_static():
    frame = table(sex=LETTERS[np.arange(ROWS) % 2]).assign(id=range(ROWS))
    assert Schema.infer(frame, instance="id", measurements=["alt"]).static == ()
    frame.loc[1, "id"] = 2  # two rows of one patient, with two values
    assert Schema.infer(frame, instance="id", measurements=["alt"]).static == ()
    frame.loc[1, "id"] = 3  # two rows of one patient, with the same value
    assert Schema.infer(frame, instance="id", measurements=["alt"]).static == ("sex",)


def test_gaps_do_not_make_a_column_change():
    sex = gapped(LETTERS[np.arange(PATIENTS) % 2][WHO], 3)
    assert inferred(sex)[0].static == ("x",)


def test_few_rows_have_few_codes():
    # Three of six whole numbers repeat: too little to call them codes. Two values always are.
    short = pd.DataFrame({"y": np.arange(6.0) / 7, "x": [1, 2, 3, 4, 4, 4], "s": [1, 2, 1, 1, 2, 1]})
    assert Schema.infer(short, measurements=["y"]).covariates == {"x": "continuous", "s": "categorical"}


# Requested roles, and roles left to the rules.


def test_without_measurements_numbers_that_change_are_measured():
    frame = table(age=RNG.normal(size=PATIENTS), sex=LETTERS[np.arange(PATIENTS) % 2], ast=RNG.normal(size=ROWS))
    schema = Schema.infer(frame, instance="id", time="day")
    assert schema.measurements == ("alt", "ast")
    assert schema.covariates == {"day": "continuous", "age": "continuous", "sex": "categorical"}
    assert (schema.instance, schema.time, schema.static) == ("id", "day", ("age", "sex"))


def test_covariates_named_leave_the_other_numbers_to_be_measured():
    frame = table(age=RNG.normal(size=PATIENTS), sex=LETTERS[np.arange(PATIENTS) % 2], ast=RNG.normal(size=ROWS))
    schema = Schema.infer(frame, instance="id", covariates=["sex", "day"])
    assert list(schema.covariates.items()) == [("sex", "categorical"), ("day", "continuous")]  # in the order named
    assert schema.measurements == ("alt", "ast")
    assert next(n for n in schema.notes if n.column == "age").reason == "not among the covariates named"


def test_named_columns_keep_their_order_and_are_not_left_out():
    frame = table(ast=RNG.normal(size=ROWS), note=[f"n{k}" for k in range(ROWS)])
    schema = Schema.infer(frame, instance="id", measurements=["ast", "alt"], covariates=["note", "day"])
    assert schema.measurements == ("ast", "alt")
    assert schema.covariates == {"note": "categorical", "day": "continuous"}


def test_kinds_may_be_requested():
    frame = table(stage=np.arange(ROWS) % 4 + 1)
    schema = Schema.infer(frame, instance="id", measurements=["alt"], covariates={"stage": "continuous"})
    assert schema.covariates == {"stage": "continuous"}
    assert schema.integers == ("stage",)


def test_excluded_columns_have_no_role():
    schema, note = inferred(LETTERS[np.arange(PATIENTS) % 2], exclude=["x"])
    assert schema.covariates == {"day": "continuous"}
    assert note.reason == "excluded"


@pytest.mark.parametrize(
    ("requested", "error", "message"),
    [
        ({"instance": "who"}, DataError, "the table has no column(s) 'who'; its columns are 'id', 'day', 'alt', 'x'."),
        ({"measurements": ["a", "alt", "b"]}, DataError, "the table has no column(s) 'a', 'b'; its columns are"),
        ({"exclude": ["z"]}, DataError, "the table has no column(s) 'z'"),
        ({"measurements": "alt"}, SchemaError, "measurements must be a list of column names, got the string 'alt'."),
        ({"covariates": "x"}, SchemaError, "covariates must be a list of column names, got the string 'x'."),
        ({"exclude": "x"}, SchemaError, "exclude must be a list of column names, got the string 'x'."),
        (
            {"measurements": ["alt"], "exclude": ["alt"]},
            SchemaError,
            "each column has one role or is excluded, but 'alt' named twice.",
        ),
        (
            {"measurements": ["alt"], "covariates": ["alt", "x"]},
            SchemaError,
            "each column has one role or is excluded, but 'alt' named twice.",
        ),
        (
            {"measurements": {"x": "gaussian"}},
            DataError,
            "column 'x' is named as a measurement, which must be numeric, but holds 'a', 'b'.",
        ),
        ({"time": "x"}, DataError, "column 'x' is named as a time, which must be numeric, but holds 'a', 'b'."),
        (
            {"exclude": ["alt", "day"]},
            SchemaError,
            "found no column to model: no numbers that change from row to row are left. Name them: "
            "Schema.infer(table, measurements=[...]).",
        ),
        (
            {"time": "day", "covariates": {"day": "categorical"}},
            SchemaError,
            "the time column 'day' must be a continuous covariate, got 'categorical'.",
        ),
    ],
)
def test_impossible_requests_are_refused(requested, error, message):
    with pytest.raises(error) as caught:
        Schema.infer(table(x=LETTERS[np.arange(PATIENTS) % 2]), **requested)
    assert str(caught.value).startswith(message)


def test_duplicated_names_are_refused():
    frame = pd.concat([table(), table()[["alt"]]], axis=1)
    with pytest.raises(DataError, match=r"^column name\(s\) 'alt' appear more than once"):
        Schema.infer(frame)


# Display.


def test_print_shows_examples_and_reasons():
    frame = pd.DataFrame({"id": [1, 1, 2, 2], "sex": ["f", None, "m", "m"], "alt": [1.5, 2.5, 3.25, np.nan], "e": None})
    assert str(Schema.infer(frame, instance="id", measurements=["alt"])).splitlines() == [
        "column  role         kind         static  bounds  integer  missing  examples        reason",
        "id      instance                                           0%       1, 2            named as the instance",
        "sex     covariate    categorical  yes                      25%      'f', 'm'        "
        "text with 2 levels; constant within each 'id'",
        "alt     measurement  gaussian                              25%      1.5, 2.5, 3.25  named as a measurement",
        "e       left out                                           100%                     empty",
    ]


def test_long_values_are_shortened_and_few_gaps_are_not_none():
    frame = pd.DataFrame({"y": np.arange(300.0) % 7 / 3, "x": ["a" * 50, "b"] * 150}).mask(np.eye(300, 2, -5) > 0)
    note = Schema.infer(frame, measurements=["y"]).notes[1]
    assert note.examples == f"'{'a' * 22}…, 'b'"
    assert "  <1%  " in str(Schema.infer(frame, measurements=["y"]))
    assert "  >99%  " in str(Schema.infer(frame.assign(x=["a", "b"] + [None] * 298), measurements=["y"]))


def test_notes_are_for_display_only():
    schema = inferred(LETTERS[np.arange(PATIENTS) % 2])[0]
    plain = Schema(["alt"], {"day": "continuous", "x": "categorical"}, "id", "day", ["x"])
    assert schema == plain
    assert hash(schema) == hash(plain)
    assert repr(schema) == repr(plain)
    assert plain.notes == ()


def test_toml_of_a_proposal_carries_its_reasons():
    comment = np.array(["line\nbreak", "tab\t", 'quote "', "\x00"])[np.arange(ROWS) % 4]
    schema = Schema.infer(
        table(**{"note, free": comment, "bad\ncolumn": [None] * ROWS}), instance="id", time="day", measurements=["alt"]
    )
    text = schema.to_toml()
    assert Schema.from_toml(text) == schema
    assert r"""# 0% missing; 'line\nbreak', 'tab\t', 'quote "'; text with 4 levels""" in text
    assert '\n# Left out:\n# "bad\\u000acolumn": 100% missing; no value; empty\n' in text


@pytest.mark.parametrize("convert", [pl.from_pandas, lambda f: pa.Table.from_pandas(f, preserve_index=False)])
def test_other_libraries_give_the_same_schema(convert):
    columns = {
        f"v {k}": c for k, (c, *_) in enumerate(PER_VISIT.values()) if "object" not in str(getattr(c, "dtype", ""))
    }
    frame = table(**columns, **{f"p {k}": c for k, (c, *_) in enumerate(PER_PATIENT.values())})
    requested = {"instance": "id", "time": "day", "measurements": ["alt"]}
    assert Schema.infer(convert(frame), **requested) == Schema.infer(frame, **requested)


def test_polars_types():
    frame = pl.DataFrame(
        {
            "y": np.arange(40) / 7,
            "cat": pl.Series(["u", "v"] * 20, dtype=pl.Categorical),
            "enum": pl.Series(["u", None] * 20 + ["w"], dtype=pl.Enum(["w", "v", "u"]))[1:],
            "nested": [[1, 2]] * 40,
            "date": [dt.date(2020, 1, 1), dt.date(2021, 1, 1)] * 20,
        }
    )
    schema = Schema.infer(frame, measurements=["y"])
    assert schema.covariates == {"cat": "categorical", "enum": "categorical"}
    assert [note.reason for note in schema.notes[1:3]] == ["categories, 2 in use"] * 2


def test_ages_of_few_patients_are_no_codes():
    # Five ages at 36 visits look like codes; of 9 patients they do not.
    age = np.array([41, 43, 42, 44, 40, 41, 43, 42, 44])[np.repeat(np.arange(9), 4)]
    frame = table()[:36].assign(age=age)
    assert Schema.infer(frame, instance="id", measurements=["alt"]).covariates["age"] == "continuous"


class Odd:
    def __repr__(self):
        return "two\nlines"


def test_values_with_strange_names_do_not_break_the_lines():
    schema = inferred(pd.Series([Odd() for _ in range(ROWS)]))[0]
    assert len(str(schema).splitlines()) == 5
    assert Schema.from_toml(schema.to_toml()) == schema


def test_few_distinct_fractions_might_be_codes():
    """Oedema as 0, 0.5 and 1 is proposed as a number, with a remark."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {"edema": rng.choice([0.0, 0.5, 1.0], 60), "dose": rng.normal(size=60), "y": rng.normal(size=60)}
    )
    schema = Schema.infer(table, measurements=["y"])
    reasons = {note.column: note.reason for note in schema.notes}
    assert schema.covariates["edema"] == "continuous"
    assert reasons["edema"] == HALVES
    assert reasons["dose"] == "numbers"


# Kinds of measurements.

MANY = 400
DRAW = np.random.default_rng(5)
KINDS = {
    "normal": (DRAW.normal(3, 1, MANY), "gaussian", None),
    "truth": (DRAW.random(MANY) < 0.3, "bernoulli", "true or false"),
    "two levels": (np.where(DRAW.random(MANY) < 0.3, "no", "yes"), "bernoulli", "two levels"),
    "rare 1": (
        (np.arange(MANY) < 4).astype(float), "gaussian", "only 0 and 1, one of them in 4 row(s), too few for a level"
    ),
    "0 and 1": (gapped(DRAW.integers(0, 2, MANY)), "bernoulli", "only 0 and 1"),
    "1 and 2": (DRAW.integers(1, 3, MANY), "gaussian", None),
    "text": (LETTERS[DRAW.integers(0, 4, MANY)], "categorical", "4 levels"),
    "ordered": (
        pd.Categorical(LETTERS[DRAW.integers(0, 4, MANY)], list("abcd"), ordered=True), "ordinal",
        "ordered categories, 4 in use",
    ),
    "counts": (DRAW.poisson(2.0, MANY), "poisson", "counts from 0; their variance is 1.2 times their mean"),
    "wild counts": (DRAW.negative_binomial(1, 0.3, MANY), "negative_binomial", None),
    "counts far from 0": (DRAW.poisson(30.0, MANY), "gaussian", None),
    "days": (DRAW.integers(0, 400, MANY), "gaussian", None),
    "log-normal": (np.exp(DRAW.normal(2, 1, MANY)), "lognormal", None),
    "a little skewed": (np.exp(DRAW.normal(2, 0.3, MANY)), "gaussian", None),
    "skewed with 0": (np.round(np.exp(DRAW.normal(0, 1.5, MANY)), 0) * 1.5, "gaussian", None),
    "few": (np.exp(DRAW.normal(2, 2, MANY)) * np.where(np.arange(MANY) < 49, 1.0, np.nan), "gaussian", None),
}  # fmt: skip


@pytest.mark.parametrize(("column", "kind", "reason"), KINDS.values(), ids=KINDS)
def test_kinds_of_measurements_are_proposed_with_their_reason(column, kind, reason):
    frame = pd.DataFrame({"age": DRAW.normal(size=MANY), "y": column})
    schema = Schema.infer(frame, measurements=["y"])
    assert schema.kinds.get("y", "gaussian") == kind
    note = next(note for note in schema.notes if note.column == "y").reason
    assert (note == "named as a measurement") == (kind == "gaussian" and reason is None)
    if reason is not None:
        assert note == f"named as a measurement; {reason}"
    assert (kind in ("poisson", "negative_binomial")) <= ("y" not in schema.integers)
    student = Schema.infer(frame.assign(y=np.arange(MANY) % 7 * 1.5), measurements={"y": "student"})
    assert student.kinds == {"y": "student"}
    assert Schema.from_toml(schema.to_toml()) == schema


def test_text_that_makes_no_categories_is_no_measurement():
    dates = pd.DataFrame({"x": np.arange(9.0), "y": [f"2024-01-0{k + 1}" for k in range(9)]})
    with pytest.raises(DataError, match="column 'y' is named as a measurement, but cannot be one: dates as text"):
        Schema.infer(dates, measurements=["y"])
