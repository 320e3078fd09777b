"""Formulas: what they mean, how they are refused, and how they are written."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lacova import FormulaError, GPPriorVAE, Schema
from lacova.priors.gp.formula import VARIANTS, Component, Factor, components

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
        ("gp(day, age)", [Component(("day", "age"))]),
        ("cat(sex, id)", [Component((), ("sex",), True)]),
        ("gp(day, age) + gp(day):gp(age)", [Component(("day", "age"))]),
        ("gp(day):gp(day, age)", [Component(("day", "age"))]),
        ("lin(day)", [Component(factors=(Factor("lin", ("day",)),))]),
        ("lin(day):lin(day)", [Component(factors=(Factor("lin", ("day",)),))]),
        ("lin(day,age)", [Component(factors=(Factor("lin", ("day", "age")),))]),
        ("matern(day)", [Component(factors=(Factor("matern", ("day",)),))]),
        ("matern( day, nu = 1.5 )", [Component(factors=(Factor("matern", ("day",), 1.5),))]),
        ("periodic(day, period=1e3)", [Component(factors=(Factor("periodic", ("day",), 1000.0),))]),
        ("periodic(day, age)", [Component(factors=(Factor("periodic", ("day", "age")),))]),
        (
            "cat(id):lin(day):gp(age):matern(day)",
            [Component(("age",), (), True, (Factor("lin", ("day",)), Factor("matern", ("day",))))],
        ),
    ],
)
def test_components_of_a_formula(formula, expected):
    assert components(formula, SCHEMA) == expected


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ("gp(day)*cat(sex)", "gp(day) + cat(sex) + gp(day):cat(sex)"),
        ("gp(day)*cat(id)", "gp(day) + cat(id) + gp(day):cat(id)"),
        ("gp(day)*gp(age)", "gp(day) + gp(age) + gp(day):gp(age)"),
        ("gp(day):(cat(sex) + cat(id))", "gp(day):cat(sex) + gp(day):cat(id)"),
        ("lin(day)*cat(id)", "lin(day) + cat(id) + lin(day):cat(id)"),
    ],
)
def test_product_is_both_terms_and_their_interaction(short, long):
    terms = components(short, SCHEMA)
    assert terms == components(long, SCHEMA)
    assert len(terms) == long.count("+") + 1


def test_order_of_gp_and_cat_within_a_term_does_not_matter():
    assert components("cat(sex):gp(day)", SCHEMA) == components("gp(day):cat(sex)", SCHEMA)
    assert components("cat(id):cat(sex):gp(day)", SCHEMA) == [Component(("day",), ("sex",), True)]


def test_columns_keep_the_order_in_which_they_are_written():
    assert components("gp(age):cat(arm):gp(day):cat(sex)", SCHEMA) == [Component(("age", "day"), ("arm", "sex"))]


def refusal(formula, schema=SCHEMA, passed=()):
    with pytest.raises(FormulaError) as caught:
        components(formula, schema, passed)
    return str(caught.value)


def test_unknown_kernel_lists_the_kernels():
    assert refusal("gp(day) + rbf(day):cat(sex)") == (
        "unknown kernel 'rbf' in term 'rbf(day):cat(sex)'; the kernels are gp, cat, lin, periodic, matern."
    )
    assert refusal("rbf(day) + rough(day)", passed=["rough"]).endswith("are gp, cat, lin, periodic, matern, rough.")


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
        ("lin(day, sex)", "lin(day, sex) in term 'lin(day, sex)': 'sex' is categorical; write cat(sex)."),
        ("cat(sex, day)", "cat(sex, day) in term 'cat(sex, day)': 'day' is continuous; write gp(day)."),
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


@pytest.mark.parametrize(
    "factor", ["day", "1", "gp(lin(day))", "gp()", "gp(nu=1.5)", "gp(day + age)", "Longitudinal", "gp(a.b)"]
)
def test_factor_that_is_no_kernel_of_columns_is_refused(factor):
    assert refusal(factor) == (
        f"cannot read {factor!r} in term {factor!r}; a factor is a kernel with its columns, such as gp(age) or "
        "lin(age, weight)."
    )


@pytest.mark.parametrize(
    ("factor", "message"),
    [
        ("gp(day, nu=1.5)", "gp has no option 'nu'; the options are nu of matern, period of periodic."),
        ("matern(day, nu=1.5, mu=2)", "matern has no option 'mu'; the options are nu of matern, period of periodic."),
        ("rough(day, nu=1.5)", "rough has no option 'nu'; the options are nu of matern, period of periodic."),
        ("matern(day, nu=2)", "nu is 2; expected one of 0.5, 1.5, 2.5."),
        ("matern(day, nu=age)", "nu is age; expected one of 0.5, 1.5, 2.5."),
        ("periodic(day, period=-7)", "period is -7; expected a positive number, in the units of 'day'."),
        ("periodic(day, period=week)", "period is week; expected a positive number, in the units of 'day'."),
        (
            "periodic(day, age, period=7)",
            "a period belongs to one column; write one periodic(...) for each, with ':'.",
        ),
        ("lin(day, age, day)", "'day' is named 2 times; name it once."),
    ],
)
def test_bad_factor_is_refused_with_its_term(factor, message):
    passed = ["rough"] if "rough" in factor else []
    assert refusal(f"gp(age) + {factor}:cat(sex)", passed=passed) == f"{factor} in term '{factor}:cat(sex)': {message}"


@pytest.mark.parametrize("name", ["gp", "lin", "my kernel", "2nd", ""])
def test_name_of_a_passed_kernel_is_a_new_word(name):
    assert refusal("gp(day)", passed=[name]) == (
        f"a kernel cannot be passed as {name!r}; expected a plain name other than gp, cat, lin, periodic, matern."
    )


@pytest.mark.parametrize("prior", ["gp(day)", None])
def test_passed_kernel_must_be_used(prior):
    assert refusal(prior, passed=["rough"]) == (
        f"kernel(s) rough were passed but not used; name them in the formula, which is {prior or 'longitudinal'!r}."
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
        (Component(factors=(Factor("lin", ("day", "age")),)), "lin(day, age)"),
        (Component((), (), True, (Factor("periodic", ("day",), 365.25),)), "periodic(day, period=365.25):cat(id)"),
        (Component(factors=(Factor("periodic", ("day",), 7.0),)), "periodic(day, period=7)"),
        (Component(("age",), factors=(Factor("matern", ("day",), 0.5),)), "gp(age):matern(day, nu=0.5)"),
    ],
)
def test_component_round_trip(component, formula):
    assert component.formula(SCHEMA) == formula
    assert components(formula, SCHEMA) == [component]


AWKWARD = ["day", "body mass", "a,b", "x)", "it's", "2", "nu=1", "ü"]


@st.composite
def some_components(draw):
    """Any component over columns with awkward names."""
    columns = st.lists(st.sampled_from(AWKWARD), min_size=1, max_size=2, unique=True).map(tuple)
    size = st.floats(0, allow_infinity=False, exclude_min=True)
    factors = st.one_of(
        st.builds(Factor, st.sampled_from(["lin", "matern", "periodic", "rough"]), columns),
        st.builds(Factor, st.just("matern"), columns, st.sampled_from([0.5, 1.5, 2.5])),
        st.builds(lambda column, period: Factor("periodic", (column,), period), st.sampled_from(AWKWARD), size),
    )
    return draw(
        st.builds(
            Component, st.just(()) | columns, st.sampled_from([(), ("sex",), ("sex", "a:b")]), st.booleans(),
            st.lists(factors, max_size=2, unique=True).map(tuple),
        ).filter(lambda c: c != Component())
    )  # fmt: skip


@settings(deadline=None)
@given(some_components())
def test_any_component_survives_a_round_trip_through_its_formula(component):
    kinds = {name: "continuous" for name in AWKWARD} | {"sex": "categorical", "a:b": "categorical"}
    schema = Schema(["alt"], kinds, instance="the id")
    rough = {factor.kernel for factor in component.factors} & {"rough"}
    assert components(component.formula(schema), schema, rough) == [component]


@pytest.mark.parametrize(
    "prior", [*VARIANTS, None, "cat(sex):gp(day) + gp(day)*cat(id)", "lin(day)*cat(id) + periodic(day, period=7)"]
)
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


def test_backticks_quote_a_column_name_that_is_no_identifier():
    schema = Schema(["alt"], {"body mass": "continuous", "a-b": "categorical"})
    expected = Component(("body mass",), ("a-b",))
    assert components("gp(`body mass`):cat(`a-b`)", schema) == [expected]
    assert expected.formula(schema) == "gp(`body mass`):cat(`a-b`)"
    assert refusal("cat(`body mass`)", schema).endswith("'body mass' is continuous; write gp(`body mass`).")
