import pytest

from lacova import FormulaError, GPPriorVAE, Schema
from lacova.gp.formula import VARIANTS, Component, components

X = {"age": "continuous", "sex": "categorical", "arm": "categorical"}
SCHEMA = Schema(["alt"], X, instance="id", time="day", static=["sex"])
TIME = Schema(["alt"], X, time="day")
PLAIN = Schema(["alt"], X)
KINDS = {"id": SCHEMA, "time": TIME, "plain": PLAIN}


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        ("gp(day)", [Component(("day",))]),
        ("cat(sex)", [Component((), ("sex",))]),
        ("cat(id)", [Component(instance=True)]),
        ("gp(day):cat(id)", [Component(("day",), instance=True)]),
        ("gp(day) + gp(age)", [Component(("day",)), Component(("age",))]),
        ("gp(age) + gp(day)", [Component(("age",)), Component(("day",))]),
        ("gp(day) + gp(day):cat(sex)", [Component(("day",)), Component(("day",), ("sex",))]),
        ("gp(day):gp(age):cat(sex):cat(arm)", [Component(("day", "age"), ("sex", "arm"))]),
        ("gp(day):cat(sex):cat(id)", [Component(("day",), ("sex",), True)]),
        (" gp( day )+cat(sex) ", [Component(("day",)), Component((), ("sex",))]),
        ("gp(day) + gp(day)", [Component(("day",))]),
        ("gp(day) + cat(sex) - gp(day)", [Component((), ("sex",))]),
    ],
)
def test_parse(formula, expected):
    assert components(formula, SCHEMA) == expected


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ("gp(day)*cat(sex)", "gp(day) + cat(sex) + gp(day):cat(sex)"),
        ("gp(day)*cat(id)", "gp(day) + cat(id) + gp(day):cat(id)"),
        ("gp(day)*gp(age)", "gp(day) + gp(age) + gp(day):gp(age)"),
        ("gp(day):(cat(sex) + cat(id))", "gp(day):cat(sex) + gp(day):cat(id)"),
    ],
)
def test_product_is_both_terms_and_their_interaction(short, long):
    got = components(short, SCHEMA)
    assert got == components(long, SCHEMA)
    assert len(got) == long.count("+") + 1


def test_order_of_gp_and_cat_within_a_term_does_not_matter():
    assert components("cat(sex):gp(day)", SCHEMA) == components("gp(day):cat(sex)", SCHEMA)
    assert components("cat(id):cat(sex):gp(day)", SCHEMA) == [Component(("day",), ("sex",), True)]


def test_columns_keep_the_order_in_which_they_are_written():
    assert components("gp(age):cat(arm):gp(day):cat(sex)", SCHEMA) == [Component(("age", "day"), ("arm", "sex"))]


def refusal(formula, schema=SCHEMA):
    with pytest.raises(FormulaError) as caught:
        components(formula, schema)
    return str(caught.value)


def test_unknown_kernel_lists_the_kernels():
    assert refusal("gp(day) + rbf(day):cat(sex)") == (
        "unknown kernel 'rbf' in term 'rbf(day):cat(sex)'; the kernels are gp, cat."
    )


def test_unknown_column_lists_the_covariates_and_the_instance():
    assert refusal("gp(time)") == "unknown column 'time' in term 'gp(time)'; the covariates are age, sex, arm, day, id."
    assert refusal("cat(id)", PLAIN) == "unknown column 'id' in term 'cat(id)'; the covariates are age, sex, arm."


def test_measurements_are_no_columns_of_a_formula():
    assert refusal("gp(alt)").startswith("unknown column 'alt' in term 'gp(alt)'; the covariates are")


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        ("cat(day)", "cat(day) in term 'cat(day)': 'day' is continuous; write gp(day)."),
        ("gp(age) + gp(day):gp(sex)", "gp(sex) in term 'gp(day):gp(sex)': 'sex' is categorical; write cat(sex)."),
    ],
)
def test_wrong_kind_says_which_kernel_to_write(formula, message):
    assert refusal(formula) == message


@pytest.mark.parametrize(
    "formula",
    ["gp(day", "gp(day) +", "+", "gp(day) gp(age)", "alt ~ gp(day)", "gp(day) | cat(sex)", "gp(day)::cat(sex)", 5],
)
def test_malformed_formula_is_refused_with_an_example(formula):
    message = refusal(formula)
    assert message.startswith(f"cannot read the formula {formula!r}: ")
    assert message.endswith(
        "Write something like 'gp(time) + gp(time):cat(group)', or one of regression, temporal, longitudinal."
    )


@pytest.mark.parametrize("formula", ["", "  ", "0", "gp(day) - gp(day)"])
def test_formula_without_a_term_is_refused(formula):
    assert refusal(formula) == (f"the formula {formula!r} has no term; write something like 'gp(time) + cat(group)'.")


@pytest.mark.parametrize("factor", ["day", "1", "gp(day, age)", "gp()", "gp(day + age)", "Longitudinal", "gp(a.b)"])
def test_factor_that_is_no_kernel_of_one_column_is_refused(factor):
    assert refusal(factor) == (
        f"cannot read {factor!r} in term {factor!r}; a factor is a kernel with one column, such as gp(age)."
    )


@pytest.mark.parametrize("kind", KINDS)
def test_regression_is_one_product_over_all_covariates(kind):
    continuous = ("age",) if kind == "plain" else ("age", "day")
    assert components("regression", KINDS[kind]) == [Component(continuous, ("sex", "arm"))]


@pytest.mark.parametrize("kind", ["id", "time"])
def test_temporal_is_one_product_with_time(kind):
    assert components("temporal", KINDS[kind]) == [Component(("age", "day"), ("sex", "arm"))]


def test_longitudinal_adds_components_of_the_instance():
    assert components("longitudinal", SCHEMA) == [
        Component(("age",)),
        Component(("day",)),
        Component(("day",), ("sex",)),
        Component(("day",), ("arm",)),
        Component(instance=True),
        Component(("day",), instance=True),
    ]


def test_longitudinal_without_time():
    assert components("longitudinal", Schema(["alt"], X, instance="id")) == [
        Component(("age",)),
        Component((), ("sex",)),
        Component((), ("arm",)),
        Component(instance=True),
    ]


@pytest.mark.parametrize(("kind", "variant"), [("id", "longitudinal"), ("time", "temporal"), ("plain", "regression")])
def test_default_suits_the_schema(kind, variant):
    assert components(None, KINDS[kind]) == components(variant, KINDS[kind])


def test_default_with_instance_alone_is_longitudinal():
    schema = Schema(["alt"], X, instance="id")
    assert components(None, schema) == components("longitudinal", schema)


def test_variant_that_lacks_a_role_names_it():
    assert refusal("temporal", PLAIN) == "the temporal prior needs a time column: give Schema(time=...)."
    assert refusal("longitudinal", TIME) == (
        "the longitudinal prior needs an instance column: give Schema(instance=...)."
    )


@pytest.mark.parametrize(
    ("component", "formula"),
    [
        (Component(("day",)), "gp(day)"),
        (Component(("day", "age"), ("sex",)), "gp(day):gp(age):cat(sex)"),
        (Component((), ("sex", "arm")), "cat(sex):cat(arm)"),
        (Component(instance=True), "cat(id)"),
        (Component(("day",), ("sex",), True), "gp(day):cat(sex):cat(id)"),
    ],
)
def test_component_round_trip(component, formula):
    assert component.formula(SCHEMA) == formula
    assert components(formula, SCHEMA) == [component]


@pytest.mark.parametrize("prior", [*VARIANTS, None, "cat(sex):gp(day) + gp(day)*cat(id)"])
def test_formula_of_a_model_round_trip(prior):
    model = GPPriorVAE(SCHEMA, prior=prior)
    assert GPPriorVAE(SCHEMA, prior=model.formula).components == model.components


def test_model_refuses_a_bad_formula_before_fitting():
    with pytest.raises(FormulaError, match=r"^unknown kernel 'rbf'"):
        GPPriorVAE(SCHEMA, prior="rbf(day)")


def test_formula_error_is_a_value_error():
    assert issubclass(FormulaError, ValueError)


def test_gp_of_the_instance_says_to_write_cat():
    assert refusal("gp(id)") == "gp(id) in term 'gp(id)': 'id' is categorical; write cat(id)."


def test_dot_is_refused_as_a_formula():
    # formulaic itself raises a KeyError.
    assert refusal(".").startswith("cannot read the formula '.'")


def test_refusal_of_a_malformed_formula_has_no_terminal_colours():
    assert "\x1b" not in refusal("gp(day) +")


def test_column_name_that_is_no_identifier_stands_in_backticks():
    schema = Schema(["alt"], {"body mass": "continuous", "a-b": "categorical"})
    expected = Component(("body mass",), ("a-b",))
    assert components("gp(`body mass`):cat(`a-b`)", schema) == [expected]
    assert expected.formula(schema) == "gp(`body mass`):cat(`a-b`)"
    assert refusal("cat(`body mass`)", schema).endswith("'body mass' is continuous; write gp(`body mass`).")
