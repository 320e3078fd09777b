"""The training loop: early stopping, records, and training that diverges."""

import numpy as np
import pytest
import torch

from lacova import NotFittedError, TrainingError
from lacova.covariates.masked_loss import masking_rate
from lacova.inference.objective import Terms
from lacova.training import step
from lacova.training.loader import TableLoader
from lacova.training.step import Validator
from tests.models.cases import MODELS, every_model, numbered_visits, small_cvae
from tests.tables import VISITS


@every_model
def test_early_stopping_restores_the_best_weights(make):
    # Validation rows whose measurements belong to other rows, and large steps: the bound peaks early.
    train, validation = numbered_visits(0, patients=4, gaps=0.1), numbered_visits(1, patients=12, gaps=0.1)
    validation[["alt", "ast"]] = validation[["alt", "ast"]].to_numpy()[::-1]
    model = make(VISITS).fit(
        train, validation, max_epochs=80, patience=4, learning_rate=0.1, batch_size=2, latent_weight=1.0,
        schedule="constant",
    )  # fmt: skip
    scores = model.training["validation"] + model.training["validation_masked_log_prob"]
    best = model.training.loc[scores.idxmax()]
    assert scores.idxmax() < len(scores) - 1
    rate = masking_rate(model.encoder.encode(train))
    loader = TableLoader(model.encoder.encode(validation), rate, model.options, torch.device("cpu"))
    loader.condition(model.vae)
    assert Validator(model.vae, model.options, loader)() == (best["validation"], best["validation_masked_log_prob"])


@every_model
def test_training_stops_after_patience_and_keeps_the_best_epoch(make, monkeypatch):
    scores, states = iter([1.0, 5.0, 3.0, 5.0, 4.0, 9.0]), []

    def scored(validator):
        states.append({name: value.clone() for name, value in validator.vae.state_dict().items()})
        return next(scores), 0.0

    monkeypatch.setattr(Validator, "__call__", scored)
    model = make(VISITS).fit(numbered_visits(), numbered_visits(1), max_epochs=6, patience=3, latent_weight=1.0)
    assert model.training["validation"].tolist() == [1.0, 5.0, 3.0, 5.0, 4.0]
    final, weights = model.vae.state_dict(), [name for name, _ in model.vae.named_parameters()]
    assert all(torch.equal(final[name], states[1][name]) for name in weights)
    assert not all(torch.equal(states[4][name], states[1][name]) for name in weights)


@pytest.mark.parametrize("schedule", ["cycle", "constant"])
def test_the_best_epoch_is_none_of_the_warm_up(schedule, monkeypatch):
    # The bound is highest while the weight of the latent KL holds z down, and falls once it does not.
    scores, states = iter([9.0, 8.0, 1.0, 3.0, 2.0]), []

    def scored(validator):
        states.append({name: value.clone() for name, value in validator.vae.state_dict().items()})
        return next(scores), 0.0

    monkeypatch.setattr(Validator, "__call__", scored)
    options = {"latent_weight": 50.0, "latent_epochs": 2, "validate_every": 1, "schedule": schedule}
    model = small_cvae(VISITS).fit(numbered_visits(), numbered_visits(1), max_epochs=5, **options)
    assert [model.options.latent_weight_at(k) == 1.0 for k in range(5)] == [False, False, True, True, True]
    final, weights = model.vae.state_dict(), [name for name, _ in model.vae.named_parameters()]
    assert all(torch.equal(final[name], states[3][name]) for name in weights)
    assert not all(torch.equal(states[4][name], states[3][name]) for name in weights)  # nothing was undone


@pytest.mark.parametrize(
    ("scores", "kept", "options"),
    [
        ([1.0, 1.9, 1.5], 2, {}),  # the last is within chance of the best: √(2 measurements / 8 rows) = ½
        ([1.0, 2.1, 1.5], 1, {}),
        ([1.0, 1.9, 1.5], 1, {"patience": 2}),
        ([1.0, 1.9, 1.5], 1, {"schedule": "constant"}),
    ],
)
def test_rows_that_fit_chose_only_guard_a_whole_cycle(scores, kept, options, monkeypatch):
    left, states = iter(scores), []

    def scored(validator):
        assert validator.loader.length == 8
        states.append({name: value.clone() for name, value in validator.vae.state_dict().items()})
        return next(left), 0.0

    monkeypatch.setattr(Validator, "__call__", scored)
    table = numbered_visits(patients=16, gaps=0.0)
    model = small_cvae(VISITS).fit(table, 0.125, max_epochs=3, latent_weight=1.0, validate_every=1, **options)
    final, weights = model.vae.state_dict(), [name for name, _ in model.vae.named_parameters()]
    assert [all(torch.equal(final[name], state[name]) for name in weights) for state in states].index(True) == kept


@every_model
def test_without_validation_rows_all_epochs_are_run(make):
    model = make(VISITS).fit(numbered_visits(), max_epochs=3, patience=1)
    assert model.training["epoch"].tolist() == [1.0, 2.0, 3.0]
    assert "validation" not in model.training.columns


@every_model
def test_training_records_the_terms_per_row(make):
    training = make(VISITS).fit(numbered_visits(), max_epochs=2).training
    kl = training["kl_latent"] + training["kl_covariates"] + training["kl_inducing"]
    np.testing.assert_allclose(training["elbo"], training["reconstruction"] - kl, rtol=1e-5)
    assert (training["kl_covariates"] > 0).all()


@every_model
def test_training_improves_the_bound(make):
    training = make(VISITS).fit(numbered_visits(gaps=0.1), max_epochs=100, learning_rate=0.01).training
    assert training["elbo"][-5:].mean() > training["elbo"][:5].mean() + 0.5


@every_model
def test_diverging_training_is_stopped_with_advice(make):
    model = make(VISITS)
    message = r"^the loss became non-finite in epoch \d+ \(.*(elbo|matrix).*\)\. Try a smaller learning_rate, fast"
    with pytest.raises(TrainingError, match=message):
        model.fit(numbered_visits(), max_epochs=50, learning_rate=1e6)
    with pytest.raises(NotFittedError):
        model.impute(numbered_visits())


def test_training_error_names_the_broken_terms(monkeypatch):
    one, bad = torch.tensor(1.0), torch.tensor(float("nan"))
    monkeypatch.setattr(step, "bound", lambda *_: Terms(one.requires_grad_(), bad, one, one))
    with pytest.raises(TrainingError, match=r"^the loss became non-finite in epoch 1 \(kl_latent, elbo\)\. Try"):
        small_cvae(VISITS).fit(numbered_visits())


@pytest.mark.parametrize("name", ["cvae", "gp"])
def test_a_last_step_that_diverges_is_a_training_error(name):
    with pytest.raises(TrainingError, match="learning_rate"):
        MODELS[name](VISITS).fit(numbered_visits(), max_epochs=1, learning_rate=1e30)
