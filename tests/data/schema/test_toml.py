import math
import os
import stat
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lacova import Schema, SchemaError
from lacova.data.schema import Measure

FULL = Schema(
    ["alt", "ast"], {"age": "continuous", "sex": "categorical"}, "id", "day", ["age", "sex"],
    {"alt": (0, None), "day": (-1.5, 1e20), "age": (None, 120)}, ["ast", "age"],
    {"alt": "lognormal", "ast": "censored"}, {"ast": (0.5, None)}, levels={"sex": ["m", "f", 3, 0.5, True]},
)  # fmt: skip


def test_every_field_comes_back():
    assert Schema.from_toml(FULL.to_toml()) == FULL
    assert list(Schema.from_toml(FULL.to_toml()).covariates) == ["age", "sex", "day"]


def test_the_text_is_one_line_per_column():
    lines = [line for line in FULL.to_toml().splitlines() if line and not line.startswith("#")]
    assert lines == [
        'instance = "id"',
        'time = "day"',
        "[measurements]",
        'alt = { kind = "lognormal", lower = 0 }',
        'ast = { kind = "censored", integer = true, lower_limit = 0.5 }',
        "[covariates]",
        'age = { kind = "continuous", static = true, integer = true, upper = 120 }',
        'sex = { kind = "categorical", static = true, levels = ["m", "f", 3, 0.5, true] }',
        'day = { kind = "continuous", lower = -1.5, upper = 1e+20 }',
    ]


def test_optional_roles_are_shown_as_comments():
    text = Schema(["y"], {}).to_toml()
    assert '\n# instance = "..."\n' in text
    assert '\n# time = "..."\n' in text
    assert Schema.from_toml(text) == Schema(["y"], {})


NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=0, max_size=12) | st.sampled_from(
    ["a.b", 'say "x"', "it's", "a\nb", "\t", "\r\n", "[x]", "x = 1", "# no", "\\u0041", "\\", "µg/l", "💊", "\x7f"]
)  # fmt: skip
LEVELS = st.lists(NAMES | st.integers() | st.floats(allow_nan=False) | st.booleans(), min_size=1, unique=True)
LIMITS = st.none() | st.floats(allow_nan=False, width=64)


def possible(lower, upper):
    return (-math.inf if lower is None else lower) < (math.inf if upper is None else upper)


@st.composite
def schemas(draw):
    names = draw(st.lists(NAMES, min_size=3, max_size=8, unique=True))
    instance, *rest = names
    cut = draw(st.integers(1, len(rest)))
    covariates = {name: draw(st.sampled_from(["continuous", "categorical"])) for name in rest[cut:]}
    kinds = {name: draw(st.sampled_from(get_args(Measure))) for name in rest[:cut]}
    kinds |= {name: "gaussian" for name, kind in kinds.items() if kind == "censored" and draw(st.booleans())}
    limits = {name: (draw(st.floats(-1e9, 0)), None) for name, kind in kinds.items() if kind == "censored"}
    scales = [name for name in rest[:cut] if kinds[name] not in ("bernoulli", "categorical", "ordinal")]
    numbers = [*scales, *(name for name, kind in covariates.items() if kind == "continuous")]
    levels = [name for name in rest if name not in numbers and kinds.get(name) != "bernoulli" and draw(st.booleans())]
    pairs = {name: draw(st.tuples(LIMITS, LIMITS)) for name in numbers if draw(st.booleans())}
    return Schema(
        kinds,
        covariates,
        instance,
        time=next((name for name in covariates if covariates[name] == "continuous"), None),
        static=[name for name, kind in covariates.items() if kind == "categorical" and draw(st.booleans())],
        bounds={n: pair for n, pair in pairs.items() if possible(*pair)},
        integers=[name for name in numbers if name not in pairs and draw(st.booleans())],
        limits=limits,
        levels={name: draw(LEVELS) for name in levels},
    )


@given(schemas())
def test_any_schema_comes_back(schema):
    again = Schema.from_toml(schema.to_toml())
    assert again == schema
    assert list(again.covariates) == list(schema.covariates)


@pytest.mark.parametrize("name", [3, "\ud800", ("a", "b")])
def test_names_that_are_no_text_cannot_be_written(name):
    with pytest.raises(SchemaError, match=r"has a name that is no text; rename it before writing the schema\.$"):
        Schema([name], {}).to_toml()


# Files.


@pytest.mark.parametrize("kind", [str, Path])
def test_files_are_written_and_read(tmp_path, kind):
    path = tmp_path / "runs" / "rate=0.1" / "schema µ.toml"
    path.parent.mkdir(parents=True)
    schema = Schema(["µg/l"], {"Größe": "continuous"})
    assert path.exists() is False
    text = schema.to_toml(kind(path))
    assert path.read_bytes() == text.encode()
    assert Schema.from_toml(kind(path)) == schema
    assert os.listdir(path.parent) == [path.name]


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "schema.toml"
    FULL.to_toml(path)

    def broken(*_):
        raise OSError("disk")

    monkeypatch.setattr(os, "replace", broken)
    with pytest.raises(OSError, match="disk"):
        Schema(["y"], {}).to_toml(path)
    assert Schema.from_toml(path) == FULL
    assert os.listdir(tmp_path) == ["schema.toml"]


def test_the_file_is_replaced_whole(tmp_path):
    path = tmp_path / "schema.toml"
    path.write_text("x" * 10_000)
    FULL.to_toml(path)
    assert Schema.from_toml(path) == FULL
    assert stat.S_IMODE(path.stat().st_mode) & stat.S_IRUSR


def test_byte_order_mark_and_line_ends_of_windows(tmp_path):
    path = tmp_path / "schema.toml"
    path.write_bytes(b"\xef\xbb\xbf" + FULL.to_toml().replace("\n", "\r\n").encode())
    assert Schema.from_toml(path) == FULL


def test_absent_file_is_named():
    with pytest.raises(FileNotFoundError, match=r"nowhere\.toml"):
        Schema.from_toml("nowhere.toml")


def test_a_file_of_another_encoding_is_refused(tmp_path):
    path = tmp_path / "schema.toml"
    path.write_bytes('[measurements]\n"Größe" = {}\n'.encode("latin-1"))
    with pytest.raises(SchemaError, match=r"schema\.toml is not UTF-8 text"):
        Schema.from_toml(path)


def test_tables_may_be_written_in_any_way_that_toml_allows():
    text = '[measurements.alt]\nlower = 0\n[covariates]\nage.kind = "continuous"\nage.integer = true\n'
    assert Schema.from_toml(text) == Schema(["alt"], {"age": "continuous"}, bounds={"alt": (0, None)}, integers=["age"])


def test_one_line_is_text_too():
    assert Schema.from_toml("measurements = { alt = {} }") == Schema(["alt"], {})


SUCH = 'Expected lines such as alt = { lower = 0 } or sex = { kind = "categorical" }.'


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("[measurements]\nalt = {}\nast {}\n", 3, "Expected '=' after a key in a key/value pair in 'ast {}'"),
        ("[measurements\nalt = {}\n", 1, "Expected ']' at the end of a table declaration in '[measurements'"),
        ("[measurements]\nalt = {}\n\nalt = {}\n", 4, "Cannot overwrite a value in 'alt = {}'"),
        ("[measurements]\nalt = ", 2, "Invalid value in 'alt ='"),
        ("[measurements]\ndrug dose = {}\n", 2, "Expected '=' after a key in a key/value pair in 'drug dose = {}'"),
    ],
)
def test_broken_toml_names_file_line_and_what_is_expected(tmp_path, text, line, message):
    path = tmp_path / "roles.toml"
    path.write_text(text)
    with pytest.raises(SchemaError) as caught:
        Schema.from_toml(path)
    assert str(caught.value) == f"{path}, line {line}: {message}. {SUCH}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[mesurements]\n", "unknown key 'mesurements'; the known ones are instance, time, measurements, covariates."),
        (
            "[measurements]\nalt = { lowr = 0 }",
            "unknown key 'lowr' of measurements.alt; the known ones are kind, integer, lower, upper, unit, "
            "levels, lower_limit, upper_limit.",
        ),
        (
            '[measurements]\n[covariates]\n"a b" = { kind = "continuous", level = 1 }',
            "unknown key 'level' of covariates.\"a b\"; the known ones are kind, static, integer, lower, upper, unit, "
            "levels.",
        ),
        (
            '[measurements]\n[covariates]\nsex = { kind = "categorical", levels = "m" }',
            'levels of covariates.sex is \'m\'; expected a list such as ["I", "II"].',
        ),
        ("instance = 3\n", "instance is 3; expected text in quotes."),
        ('measurements = ["alt"]\n', "measurements is ['alt']; expected a table."),
        ("[measurements]\nalt = 1", "measurements.alt is 1; expected braces, such as {}."),
        (
            '[covariates]\nage = "continuous"',
            "covariates.age is 'continuous'; expected braces, such as { kind = \"continuous\" }.",
        ),
        (
            "[covariates]\nage = { static = true }",
            'covariates.age has no kind; expected kind = "continuous" or "categorical".',
        ),
        ('[measurements]\nalt = { lower = "0" }', "lower of measurements.alt is '0'; expected a number."),
        ("[measurements]\nalt = { upper = true }", "upper of measurements.alt is True; expected a number."),
        ("[measurements]\nalt = { integer = 1 }", "integer of measurements.alt is 1; expected true or false."),
        ('time = "day"\n', "measurements is empty: name at least one column to model."),
        (
            '[measurements]\nalt = {}\n[covariates]\nage = { kind = "continous" }',
            "covariate 'age' has kind 'continous'; expected one of continuous, categorical.",
        ),
    ],
)
def test_wrong_documents_are_refused(text, message):
    with pytest.raises(SchemaError) as caught:
        Schema.from_toml(text + "\n")
    assert str(caught.value) == f"schema: {message}"
