"""Contradictions within a schema are refused."""

import pytest

from lacova import Schema, SchemaError

AGE = {"age": "continuous"}


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
        (
            {"integers": "age"},
            "integers must be a list of column names, got the string 'age'.",
        ),
        (
            {"integers": ["sex"], "covariates": {"sex": "categorical"}},
            "integers names 'sex', which is neither a measurement nor a continuous covariate; take it out, or give it "
            "such a role.",
        ),
        (
            {"bounds": {"height": (0, 1)}},
            "bounds names 'height', which is neither a measurement nor a continuous covariate; take it out, or give "
            "it such a role.",
        ),
        (
            {"bounds": {"id": (0, 1)}, "instance": "id"},
            "bounds names 'id', which is neither a measurement nor a continuous covariate; take it out, or give it "
            "such a role.",
        ),
        (
            {"bounds": [("age", 0, 1)]},
            "bounds must map columns to (lower, upper), got [('age', 0, 1)]; write {'age': (0, 120)}.",
        ),
        (
            {"bounds": {"age": (2, 2)}},
            "bounds of 'age' are 2.0, 2.0; the lower one must be below the upper one.",
        ),
        (
            {"bounds": {"age": (0.2, 0.8)}, "integers": ["age"]},
            "bounds of 'age' are 0.2, 0.8, with no whole number between them.",
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


@pytest.mark.parametrize("pair", [0, "01", (1,), (1, 2, 3), ("0", 1), (float("nan"), None), (True, None), {0: 1}])
def test_bounds_are_two_numbers(pair):
    with pytest.raises(SchemaError) as caught:
        Schema(["alt"], AGE, bounds={"age": pair})
    assert str(caught.value) == (
        f"bounds of 'age' are {pair!r}; expected two numbers (lower, upper), None for no limit."
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kinds": {"y": "normal"}}, "measurement 'y' has kind 'normal'; expected one of gaussian, lognormal, "),
        ({"kinds": {"z": "student"}}, "kinds names 'z', which is no measurement; take it out, or add it to them."),
        ({"kinds": ["y"]}, "kinds must map measurements to kinds, got ['y']; write {'alt': 'lognormal'}."),
        ({"kinds": {"y": "censored"}}, "measurement 'y' is censored, but has no limits; give limits={'y': "),
        ({"limits": {"y": (0, None)}}, "limits names 'y', which is no censored measurement; take it out, or make "),
        ({"limits": {"y": (2, 1)}, "kinds": {"y": "censored"}}, "limits of 'y' are 2.0, 1.0; the lower one must be "),
        ({"limits": {"y": 3}, "kinds": {"y": "censored"}}, "limits of 'y' are 3; expected two numbers (lower, upper)"),
        ({"limits": [1]}, "limits must map columns to (lower, upper), got [1]; write {'age': (0, 120)}."),
        (
            {"kinds": {"y": "ordinal"}, "bounds": {"y": (0, 1)}},
            "bounds names 'y', but the ordinal measurement has leve",
        ),
        (
            {"kinds": {"y": "bernoulli"}, "integers": ["y"]},
            "integers names 'y', but the bernoulli measurement has leve",
        ),
    ],
)
def test_kinds_that_make_no_sense_are_refused(arguments, message):
    with pytest.raises(SchemaError) as caught:
        Schema(["y"], AGE, **arguments)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("levels", "message"),
    [
        ({"y": ["a"]}, "levels names 'y', which is gaussian; only categorical covariates and measurements that are "),
        ({"age": ["a"]}, "levels names 'age', which is continuous; only categorical"),
        ({"id": ["a"]}, "levels names 'id', which is the instance; only categorical"),
        ({"z": ["a"]}, "levels names 'z', which is no column of it; only categorical"),
        ({"sex": "mf"}, "levels of 'sex' are 'mf'; expected a list in order, such as ['I', 'II']."),
        ({"sex": {"m", "f"}}, "expected a list in order"),
        ({"sex": 3}, "levels of 'sex' are 3; expected a list in order"),
        ({"sex": []}, "levels of 'sex' are empty; expected at least one"),
        ({"sex": ["m", None]}, "levels of 'sex' are 'm', None; expected at least one, each of them text, a number, "),
        ({"sex": ["m", float("nan")]}, "Gaps are no level."),
        ({"sex": [["m"]]}, "levels of 'sex' are ['m']; expected"),
        ({"sex": ["m", "f", "m"]}, "levels of 'sex' hold 'm' more than once; name each level once."),
        ({"sex": [1, True]}, "levels of 'sex' hold True more than once"),
        (
            {"died": ["no"]},
            "levels of 'died' are 'no', but a bernoulli measurement has two; give two, or make its kind ",
        ),
        (["sex"], "levels must map columns to their levels, got ['sex']; write {'stage': ['I', 'II', 'III']}."),
    ],
)
def test_levels_that_make_no_sense_are_refused(levels, message):
    with pytest.raises(SchemaError) as caught:
        Schema({"y": "gaussian", "died": "bernoulli"}, {**AGE, "sex": "categorical"}, instance="id", levels=levels)
    assert message in str(caught.value)
