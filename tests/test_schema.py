import dataclasses

import pytest

from lacova import Schema, SchemaError

AGE = {"age": "continuous"}


def test_good_schema_keeps_every_role():
    schema = Schema(["alt", "ast"], {**AGE, "sex": "categorical"}, instance="id", time="day", static=["age", "sex"])
    assert schema.measurements == ("alt", "ast")
    assert schema.covariates == {"age": "continuous", "sex": "categorical", "day": "continuous"}
    assert (schema.instance, schema.time, schema.static) == ("id", "day", ("age", "sex"))
    assert schema.columns == ("id", "age", "sex", "day", "alt", "ast")


def test_time_joins_the_covariates_last():
    assert list(Schema(["y"], AGE, time="day").covariates.items()) == [("age", "continuous"), ("day", "continuous")]


def test_time_that_is_listed_keeps_its_place():
    assert list(Schema(["y"], {"day": "continuous", **AGE}, time="day").covariates) == ["day", "age"]


def test_optional_roles_are_empty_by_default():
    schema = Schema(["y"], AGE)
    assert (schema.instance, schema.time, schema.static) == (None, None, ())
    assert schema.columns == ("age", "y")


def test_iterables_are_read_once():
    schema = Schema((c for c in ["a", "b"]), AGE, instance="id", static=(c for c in ["age"]))
    assert (schema.measurements, schema.static) == (("a", "b"), ("age",))


def test_a_schema_may_have_no_covariates():
    assert Schema(["y"], {}).columns == ("y",)


@pytest.mark.parametrize("field", ["measurements", "covariates", "instance", "time", "static"])
def test_roles_are_frozen(field):
    schema = Schema(["y"], AGE)
    with pytest.raises(dataclasses.FrozenInstanceError, match=f"cannot assign to field '{field}'"):
        setattr(schema, field, None)


def test_later_changes_to_the_arguments_do_not_reach_the_schema():
    measurements, covariates, static = ["y"], dict(AGE), ["age"]
    schema = Schema(measurements, covariates, instance="id", static=static)
    measurements.append("w")
    covariates["sex"] = "categorical"
    static.clear()
    assert (schema.measurements, schema.covariates, schema.static) == (("y",), AGE, ("age",))


def test_schemas_compare_by_role():
    assert Schema(["y"], AGE, time="day") == Schema(("y",), {**AGE, "day": "continuous"}, time="day")
    assert Schema(["y"], AGE) != Schema(["y"], AGE, time="day")


@pytest.mark.parametrize(
    ("roles", "message"),
    [
        (
            {"measurements": "alt"},
            "measurements must be a list of column names, got the string 'alt'.",
        ),
        (
            {"static": "age", "instance": "id"},
            "static must be a list of column names, got the string 'age'.",
        ),
        (
            {"covariates": {**AGE, "day": "categorical"}, "time": "day"},
            "the time column 'day' must be a continuous covariate, got 'categorical'.",
        ),
        (
            {"measurements": []},
            "measurements is empty: name at least one column to model.",
        ),
        (
            {"covariates": {"age": "continous"}},
            "covariate 'age' has kind 'continous'; expected one of continuous, categorical.",
        ),
        (
            {"measurements": ["alt", "age"]},
            "each column has one role, but age appear(s) in more than one place.",
        ),
        (
            {"measurements": ["alt", "alt"]},
            "each column has one role, but alt appear(s) in more than one place.",
        ),
        (
            {"instance": "age"},
            "each column has one role, but age appear(s) in more than one place.",
        ),
        (
            {"instance": "day", "time": "day", "measurements": ["alt", "ast", "ast"]},
            "each column has one role, but ast, day appear(s) in more than one place.",
        ),
        (
            {"time": "alt"},
            "each column has one role, but alt appear(s) in more than one place.",
        ),
        (
            {"static": ["arm"], "instance": "id"},
            "static column 'arm' is not a covariate; add it to covariates with its kind.",
        ),
        (
            {"static": ["day"], "instance": "id", "time": "day"},
            "the time column 'day' cannot be static: it changes from visit to visit.",
        ),
        (
            {"static": ["age"]},
            "static covariates are constant within an instance: name the instance column too.",
        ),
    ],
)
def test_contradicting_roles_are_refused(roles, message):
    with pytest.raises(SchemaError) as caught:
        Schema(**{"measurements": ["alt"], "covariates": AGE, **roles})
    assert str(caught.value) == message


def test_schema_error_is_a_value_error():
    with pytest.raises(ValueError, match="measurements is empty"):
        Schema([], AGE)


@pytest.mark.parametrize("covariates", [["age"], "age"])
def test_covariates_without_kinds_are_a_schema_error(covariates):
    with pytest.raises(SchemaError, match="covariates"):
        Schema(["alt"], covariates)
