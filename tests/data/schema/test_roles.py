import copy
import dataclasses
import json
import pickle

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


@pytest.mark.parametrize("field", ["measurements", "covariates", "instance", "time", "static", "bounds", "integers"])
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


def test_bounds_and_integers_are_kept():
    schema = Schema(["alt"], AGE, time="day", bounds={"age": (0, 120.5), "day": [None, 3]}, integers=["alt", "age"])
    assert schema.bounds == {"age": (0.0, 120.5), "day": (None, 3.0)}
    assert schema.integers == ("age", "alt")  # in the order of the columns


def test_no_limit_is_no_bound():
    assert Schema(["y"], AGE, bounds={"age": (-float("inf"), float("inf")), "y": (None, None)}) == Schema(["y"], AGE)


def test_order_within_static_and_integers_does_not_matter():
    kinds = {"a": "continuous", "b": "continuous"}
    one, other = (Schema(["y"], kinds, "id", static=names, integers=names) for names in (["a", "b"], ["b", "a"]))
    assert one == other
    assert one.static == one.integers == ("a", "b")


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.update(age="categorical"),
        lambda d: d.__setitem__("age", "categorical"),
        lambda d: d.__delitem__("age"),
        lambda d: d.pop("age"),
        lambda d: d.popitem(),
        lambda d: d.clear(),
        lambda d: d.setdefault("sex", "categorical"),
        lambda d: d.__ior__({"sex": "categorical"}),
    ],
)
@pytest.mark.parametrize("field", ["covariates", "bounds"])
def test_mappings_cannot_change(field, change):
    schema = Schema(["y"], AGE, bounds={"age": (0, 1)})
    with pytest.raises(TypeError, match=r"a schema cannot change; make another with dataclasses\.replace"):
        change(getattr(schema, field))
    assert schema == Schema(["y"], AGE, bounds={"age": (0, 1)})


def test_schemas_can_be_hashed_copied_pickled_and_written_as_json():
    schema = Schema(["y"], AGE, time="day", bounds={"age": (0, None)}, integers=["y"])
    assert hash(schema) == hash(copy.deepcopy(schema))
    assert copy.deepcopy(schema) == pickle.loads(pickle.dumps(schema)) == schema
    assert Schema(**json.loads(json.dumps(dataclasses.asdict(schema)))) == schema
    later = dataclasses.replace(schema, time=None)
    assert (later.time, later.bounds) == (None, {"age": (0.0, None)})


def test_repr_is_short_and_plain():
    assert repr(Schema(["y"], AGE)) == "Schema(['y'], {'age': 'continuous'})"
    schema = Schema([f"y{k}" for k in range(9)], AGE, "id", "day", ["age"], {"y0": (0, None)}, ["y1"])
    assert repr(schema) == (
        "Schema(['y0', 'y1', 'y2', 'y3', 'y4', 'y5', ... 3 more], {'age': 'continuous', 'day': 'continuous'}, "
        "instance='id', time='day', static=['age'], bounds={'y0': (0.0, None)}, integers=['y1'])"
    )


def test_print_shows_every_column():
    bounds = {"y": (0, None), "age": (0.5, 120), "day": (None, 3)}
    schema = Schema(["y"], {**AGE, "sex": "categorical"}, "id", "day", ["sex"], bounds, ["y"])
    assert str(schema) == schema.describe()
    assert str(schema).splitlines() == [
        "column  role         kind         static  bounds      integer",
        "id      instance",
        "age     covariate    continuous           0.5 to 120",
        "sex     covariate    categorical  yes",
        "day     time         continuous           ≤ 3",
        "y       measurement  gaussian             ≥ 0         yes",
    ]


def test_kinds_of_measurements():
    schema = Schema({"a": "lognormal", "b": "gaussian", "c": "censored"}, AGE, limits={"c": (0.5, 20)})
    assert schema.measurements == ("a", "b", "c")
    assert schema.kinds == {"a": "lognormal", "c": "censored"}
    assert schema == Schema(["a", "b", "c"], AGE, kinds={"c": "censored", "a": "lognormal"}, limits={"c": (0.5, 20)})
    assert hash(schema) != hash(Schema(["a", "b", "c"], AGE))
    assert dataclasses.replace(schema, integers=["b"]).kinds == schema.kinds
    assert "kinds={'a': 'lognormal', 'c': 'censored'}, limits={'c': (0.5, 20.0)}" in repr(schema)
    lines = {line.split()[0]: line for line in str(schema).splitlines()}
    assert lines["a"].split()[:3] == ["a", "measurement", "lognormal"]
    assert lines["b"].split()[:3] == ["b", "measurement", "gaussian"]
    assert "censored ≤ 0.5 ≥ 20" in lines["c"]
    assert Schema({"s": "ordinal"}, {"sex": "categorical"}).categories == ("sex", "s")


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


def test_units_are_shown_kept_and_checked():
    schema = Schema(["alt", "ast"], {"age": "continuous", "sex": "categorical"}, units={"age": "years", "alt": "U/L"})
    assert schema.label("alt") == "alt (U/L)"
    assert schema.label("ast") == "ast"
    assert Schema.from_toml(schema.to_toml()) == schema
    assert str(schema).split("\n")[0].split() == ["column", "role", "kind", "static", "bounds", "integer", "unit"]
    assert str(schema).split("\n")[1].endswith("years")
    assert "units={'age': 'years'" in repr(schema)
    assert "unit" not in str(Schema(["alt"], {"age": "continuous"}))
    with pytest.raises(SchemaError, match=r"the unit of 'alt' is 3; expected text"):
        Schema(["alt"], {"age": "continuous"}, units={"alt": 3})
    with pytest.raises(SchemaError, match=r"units names 'sex', which is neither"):
        Schema(["alt"], {"sex": "categorical"}, units={"sex": "m"})
    with pytest.raises(SchemaError, match=r"units must map columns to text"):
        Schema(["alt"], {"age": "continuous"}, units="mg")
