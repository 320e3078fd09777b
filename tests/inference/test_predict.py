"""Paired draws: predictions with covariates as they are and as set, from the same random numbers."""

import torch

from lacova.inference.predict import paired_draws


def draws_of(model, x, history, setting, seed, draws=200):
    _, vae = model.fitted()
    table, new = model.encode_with_history(x, history)
    generator = torch.Generator().manual_seed(seed)
    return list(paired_draws(vae, table, new, setting, draws, generator, model.training_instances))


def test_paired_differences_have_much_less_spread_than_unpaired(model, forecast):
    x, history = forecast
    setting = {2: 1.0}  # arm b
    ((as_is, what_if),) = draws_of(model, x, history, setting, 0)
    ((_, independent),) = draws_of(model, x, history, setting, 1)
    changed = torch.tensor((x["arm"] == "a").tolist())
    paired, unpaired = (what_if.y - as_is.y)[:, changed], (independent.y - as_is.y)[:, changed]
    assert (paired.std(0).mean((0,)) < 0.4 * unpaired.std(0).mean((0,))).all()
    torch.testing.assert_close(what_if.y - as_is.y, what_if.location - as_is.location, atol=1e-4, rtol=1e-4)
