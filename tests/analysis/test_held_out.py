"""Scores of a model on the rows held out of a fold."""

import numpy as np
import pandas as pd
import pytest
import torch

import lacova
from lacova import Schema
from lacova.analysis.folds import assign_folds, make_fold
from lacova.inference.joint_scores import score_units
from tests.analysis.cases import QUICK, VISITS, visits


@pytest.mark.parametrize("name", ["VAE", "GPPriorVAE"])
def test_joint_scores_are_those_of_completed_tables(name):
    """Of models without patients, too: courses are those of the table."""
    table = visits(20)
    settings = {**QUICK, "validation_share": 0.0}
    scores = lacova.compare(table, VISITS, {"m": (name, {"latent_dim": 1})}, hide=0.6, **settings).loc["m"]
    number, by_hand = assign_folds(table, VISITS, 2, 0), []
    for k in range(2):
        part = make_fold(table, VISITS, number, k, 0.6, 0.0, 0)
        model = getattr(lacova, name)(VISITS, latent_dim=1).fit(part.train, seed=k, max_epochs=2, device="cpu")
        mean, sd = (getattr(part.train[["alt", "ast"]], name)().to_numpy() for name in ("mean", "std"))
        sd = sd * (1 - 1 / len(part.train)) ** 0.5
        imputed, predicted = model.impute(part.hidden, draws=20, seed=k), model.sample(part.test, draws=20, seed=k)
        hidden, line = part.hidden[["alt", "ast"]].isna().to_numpy(), {}
        patient = pd.factorize(part.test["id"])[0]
        for prefix, draws, chosen in (("", imputed, hidden), ("predict_", predicted, np.ones_like(hidden))):
            row, column = chosen.nonzero()
            drawn = (draws[["alt", "ast"]].to_numpy().reshape(20, -1, 2) - mean)[:, row, column] / sd[column]
            truth = (part.test[["alt", "ast"]].to_numpy() - mean)[row, column] / sd[column]
            for kind, unit in (("", row), ("course_", 2 * patient[row] + column)):
                own = score_units(*(torch.as_tensor(values) for values in (drawn, truth, unit)))
                assert len(own.unit) > 5
                line |= {f"{prefix}{kind}energy": own.energy.mean(), f"{prefix}{kind}variogram": own.variogram.mean()}
        by_hand.append(line)
    for score, value in pd.DataFrame(by_hand).astype(float).mean().items():
        assert scores[score] == pytest.approx(value, rel=1e-4), score


def test_draws_of_values_that_are_part_of_the_importance_sample_have_no_further_variance():
    table, schema = visits()[["alt"]], Schema(["alt"], {})
    model = lacova.NotMIWAE(schema, latent_dim=1).fit(table, max_epochs=1, device="cpu")
    (part,) = model._imputation(model.encode(table.assign(alt=None).astype(float)), 50, 0)
    assert part.location.equal(part.y)
    assert not part.var.any()
