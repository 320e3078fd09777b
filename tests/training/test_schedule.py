"""Rates that rise and fall over the planned steps."""

import numpy as np
import pytest

from lacova import CVAE, Dense, FitOptions
from lacova.data.io.archive import digest
from lacova.training.step import Step, Validator
from tests.tables import ROWS, visits
from tests.training.cases import Killed, hooked_step, kill

SMALL = {"latent_dim": 1, "networks": Dense((4,), (4,))}


def test_a_cycle_rises_to_1_and_falls_to_a_hundredth():
    options = FitOptions(schedule="cycle")
    factors = [options.rate_factor(k / 1000) for k in range(1001)]
    top = int(np.argmax(factors))
    assert (top, factors[top]) == (150, 1.0)
    assert (factors[0], factors[-1]) == (0.04, pytest.approx(0.01))
    assert (np.diff(factors[: top + 1]) > 0).all()
    assert (np.diff(factors[top:]) < 0).all()
    assert {FitOptions(schedule="constant").rate_factor(share) for share in (0.0, 0.3, 1.0)} == {1.0}


def test_an_unknown_schedule_is_refused():
    with pytest.raises(ValueError, match="schedule is 'linear'; expected 'constant' or 'cycle'"):
        FitOptions(schedule="linear")


def test_all_rates_follow_the_steps(monkeypatch):
    rates, seed = [], Step.seed

    def record(self, number):
        rates.append([*(group["lr"] for group in self.optimiser.param_groups), self.natural_rate])
        seed(self, number)

    monkeypatch.setattr(Step, "seed", record)  # called before the rates of its step are set
    options = {"learning_rate": 0.004, "fast_learning_rate": 0.03, "natural_rate": 0.2, "schedule": "cycle"}
    CVAE(ROWS, **SMALL).fit(visits(), max_epochs=5, batch_size=10, **options)
    factor = FitOptions(**options).rate_factor
    expected = [[rate * factor(k / len(rates)) for rate in (0.004, 0.004, 0.03, 0.2)] for k in range(len(rates) - 1)]
    np.testing.assert_allclose(rates[1:], expected, rtol=1e-12)


def test_a_killed_fit_continues_with_the_rates_of_its_step(tmp_path, monkeypatch):
    options = {"max_epochs": 4, "batch_size": 10, "schedule": "cycle", "seed": 2, "device": "cpu"}
    whole = CVAE(ROWS, **SMALL).fit(visits(), **options)
    taken = iter(range(10**6))
    with monkeypatch.context() as patch:
        patch.setattr(Step, "__init__", hooked_step(lambda: kill() if next(taken) == 5 else None))
        with pytest.raises(Killed):
            CVAE(ROWS, **SMALL).fit(visits(), **options, checkpoint=tmp_path / "c", checkpoint_every=2)
    resumed = CVAE(ROWS, **SMALL).fit(visits(), **options, checkpoint=tmp_path / "c", checkpoint_every=2)
    assert resumed.training.equals(whole.training)
    assert resumed.predict(visits()).equals(whole.predict(visits()))


def test_rates_that_are_too_high_are_halved_from_the_best_weights(monkeypatch, tmp_path):
    scores = [0.0, 1.0, 0.6, 0.4, 0.9]  # a fall of half a nat may be chance: that of the fourth look is no chance
    weights, rates = {}, []
    epoch = iter(range(100))

    def look(self):
        number = len(weights)
        weights[number] = digest(self.vae.state_dict())
        return scores[number], 0.0

    def record(self, factor):
        rates.append((factor, digest(self.vae.state_dict())))
        set_rates(self, factor)

    set_rates = Step.set_rates
    monkeypatch.setattr(Validator, "__call__", look)
    monkeypatch.setattr(Step, "set_rates", record)
    options = {"max_epochs": 5, "batch_size": 100, "patience": 5, "masked_loss": 0.0, "prior_every": 0, "device": "cpu"}
    whole = CVAE(ROWS, **SMALL).fit(visits(), visits(1, 4), **options)
    planned = [FitOptions().rate_factor(k / 5) for k in range(5)]
    assert [factor for factor, _ in rates] == pytest.approx([*planned[:4], 0.5 * planned[4]])
    assert rates[3][1] == weights[2]
    assert rates[4][1] == weights[1]  # the last epoch begins at the best weights
    assert digest(whole.vae.state_dict()) == weights[1]
    # A fit that is killed after the rates were halved continues with the halved ones.
    first, weights, rates = weights, {}, []
    with monkeypatch.context() as patch:
        patch.setattr(Step, "__init__", hooked_step(lambda: kill() if next(epoch) == 4 else None))
        with pytest.raises(Killed):
            CVAE(ROWS, **SMALL).fit(visits(), visits(1, 4), **options, checkpoint=tmp_path / "c", checkpoint_every=1)
    rates.clear()
    CVAE(ROWS, **SMALL).fit(visits(), visits(1, 4), **options, checkpoint=tmp_path / "c", checkpoint_every=1)
    assert rates[0] == (pytest.approx(0.5 * planned[4]), first[1])
    assert weights == first
