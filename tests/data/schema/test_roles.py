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


def test_levels_are_shown_kept_and_do_not_change():
    mine = ["I", "II", "III", "IV", "V", "VI", "VII"]
    schema = Schema(
        {"grade": "ordinal"}, {"stage": "categorical"}, levels={"stage": mine, "grade": (g for g in (3, 1))}
    )
    mine.append("VIII")
    assert schema.levels == {"stage": ("I", "II", "III", "IV", "V", "VI", "VII"), "grade": (3, 1)}
    assert Schema.from_toml(schema.to_toml()) == schema
    assert schema != Schema({"grade": "ordinal"}, {"stage": "categorical"}, levels={"grade": [3, 1]})
    lines = str(schema).split("\n")
    assert lines[0].split() == ["column", "role", "kind", "static", "bounds", "integer", "levels"]
    assert lines[1].endswith("  I, II, III, IV, V, VI and 1 more")
    assert "levels={'stage': ('I'" in repr(schema)
    assert "levels" not in str(Schema(["alt"], {"stage": "categorical"}))
