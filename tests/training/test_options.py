"""Options of training: defaults by the number of units, weights by epoch, and what is refused."""

import pytest

from lacova import CVAE, FitOptions
from tests.tables import VISITS, visits


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("max_epochs", 0, "max_epochs must be a whole number of at least 1, got 0."),
        ("batch_size", -5, "batch_size must be a whole number of at least 1, got -5."),
        ("patience", True, "patience must be a whole number of at least 1, got True."),
        ("samples", 1.5, "samples must be a whole number of at least 1, got 1.5."),
        ("cap", 0, "cap must be a whole number of at least 1, got 0."),
        ("learning_rate", 0.0, "learning_rate must be positive, got 0.0."),
        ("learning_rate", float("nan"), "learning_rate must be positive, got nan."),
        ("fast_learning_rate", -1e-3, "fast_learning_rate must be positive, got -0.001."),
        ("natural_rate", 0.0, "natural_rate must lie in (0, 1], got 0.0."),
        ("natural_rate", 1.5, "natural_rate must lie in (0, 1], got 1.5."),
    ],
)
def test_bad_fit_option_is_refused(option, value, message):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        CVAE(VISITS).fit(visits(), **{option: value})
    assert str(caught.value) == message


def test_latent_weight_falls_geometrically_to_one_and_delays_patience():
    options = FitOptions(max_epochs=90, latent_weight=100.0)
    assert [round(options.latent_weight_at(k), 6) for k in (0, 15, 30, 60)] == [100.0, 10.0, 1.0, 1.0]
    assert options.warm_up == 30
    assert FitOptions(max_epochs=90).warm_up == 0
    assert FitOptions(latent_weight=7.0, latent_epochs=2).latent_weight_at(1) == pytest.approx(7.0**0.5)


@pytest.mark.parametrize("importance", [0, 1.5, True])
def test_a_bad_number_of_weighted_draws_is_refused(importance):
    with pytest.raises(ValueError, match="importance must be a whole number of at least 1"):
        FitOptions(importance=importance)


def test_draws_are_averaged_or_weighted_not_both():
    with pytest.raises(ValueError, match="samples=2 averages draws, importance=3 weighs them"):
        FitOptions(samples=2, importance=3)
    assert (FitOptions(samples=2).draws, FitOptions(importance=3).draws) == (2, 3)


def test_small_tables_get_more_epochs_and_patience_unless_these_are_given():
    constant = FitOptions(batch_size=100, schedule="constant")
    resolved = constant.resolved(units=10_000)
    assert (resolved.epochs, resolved.patience_epochs, resolved.validate_every) == (200, 30, 1)
    resolved = constant.resolved(units=250)
    assert (resolved.epochs, resolved.patience_epochs) == (1000, 134)  # 3,000 and 400 steps of 3 an epoch
    resolved = FitOptions(max_epochs=7, patience=2).resolved(units=250)
    assert (resolved.epochs, resolved.patience_epochs, resolved.validate_every) == (7, 2, 1)


def test_the_steps_of_a_cycle_grow_with_the_root_of_the_table():
    few, many = (FitOptions(batch_size=25).resolved(units, by_row=False) for units in (200, 20_000))
    assert few.epochs * 8 == 600
    assert many.epochs * 800 == pytest.approx(6000, rel=0.1)
    assert (few.patience_epochs, few.validate_every) == (75, 2)
    validated = [epoch for epoch in range(75) if few.validates_after(epoch)]
    assert validated == [*range(1, 75, 2), 74]
    assert FitOptions(validate_every=5).resolved(units=200).validate_every == 5
    assert FitOptions(batch_size=25).resolved(units=1).epochs >= 1


def test_few_rows_have_steps_in_proportion():
    steps = {n: FitOptions().resolved(n).epochs * -(-n // 100) for n in (30, 300, 1500, 6000)}
    assert steps[300] == pytest.approx(10 * steps[30], rel=0.05)
    assert steps[1500] == pytest.approx(5 * steps[300], rel=0.05)
    assert steps[6000] == pytest.approx(2 * steps[1500], rel=0.05)


def test_many_visits_make_more_steps_of_fewer_patients():
    short, long = (FitOptions().resolved(2000, by_row=False, rows=rows) for rows in (12_000, 90_000))
    assert (short.batch, long.batch) == (25, 10)
    assert short.epochs * 80 == pytest.approx(600 * 10**0.5, rel=0.03)  # of 2,000 patients
    assert long.epochs * 200 == pytest.approx(600 * 45**0.5, rel=0.03)  # as of 9,000 patients with ten visits
    assert FitOptions(schedule="constant").resolved(2000, by_row=False, rows=12_000).batch == 10
    assert FitOptions().resolved(2000).batch == 100  # rows
    assert FitOptions(batch_size=7).resolved(2000, by_row=False, rows=90_000).batch == 7


def test_patients_whose_model_starts_near_the_end_have_half_of_the_steps():
    def steps(patients, **options):
        resolved = FitOptions(**options).resolved(patients, by_row=False, starts_near=True)
        return resolved.epochs * -(-patients // resolved.batch)

    assert steps(200) == pytest.approx(300, abs=8)
    assert steps(2000) == pytest.approx(300 * 10**0.6, rel=0.05)
    assert steps(200, start="random") == 600  # such a start was not asked for
    rows = FitOptions().resolved(300, starts_near=True)
    assert rows == FitOptions().resolved(300)  # rows have their own rule


@pytest.mark.parametrize("patients", [1, 26, 40, 60, 88, 250])
def test_no_batch_of_patients_is_much_smaller_than_the_others(patients):
    size = FitOptions().resolved(patients, by_row=False).batch
    last = patients % size or size
    assert last >= size - -(-patients // size)
    assert size == patients or size >= 13
    assert size <= 37


def test_rates_suit_the_schedule_and_the_table_unless_they_are_given():
    constant, cycle = FitOptions(schedule="constant"), FitOptions()
    assert constant.resolved(99).rates == (1e-3, 1e-2, 0.1)
    assert constant.resolved(99, by_row=False).rates == (3e-3, 1e-2, 0.1)
    few, many = (cycle.resolved(patients, by_row=False).rates for patients in (250, 1000))
    assert all(rate > old for rate, old in zip(few, constant.resolved(99, by_row=False).rates, strict=True))
    assert many == pytest.approx([rate / 2 for rate in few])
    given = FitOptions(learning_rate=0.1, natural_rate=0.2).resolved(1000, by_row=False).rates
    assert given == (0.1, many.fast_learning_rate, 0.2)
    assert cycle.resolved(10**6).rates == cycle.resolved(10).rates  # of rows
    with pytest.raises(ValueError, match="learning_rate must be positive, got 0"):
        FitOptions(learning_rate=0)


def test_long_training_is_worth_compiling_unless_the_option_decides():
    assert FitOptions(max_epochs=200).worth_compiling(100)
    assert not FitOptions(max_epochs=200).worth_compiling(99)
    assert FitOptions(max_epochs=1, compile=True).worth_compiling(1)
    assert not FitOptions(max_epochs=200, compile=False).worth_compiling(1000)
