import math

import numpy as np
import pandas as pd
import pytest
import torch

import lacova
from lacova.nn.networks import Dense


def fitted(scaling):
    rng = np.random.default_rng(0)
    x = rng.normal(0, 1, 80)
    frame = pd.DataFrame({"x": x, "a": 5 + 2 * x + rng.normal(0, 0.5, 80), "b": 40 * rng.normal(0, 1, 80)})
    frame = frame.mask(rng.random((80, 3)) < 0.2)
    schema = lacova.Schema(["a", "b"], {"x": "continuous"})
    return lacova.CVAE(schema, latent_dim=1, networks=Dense((4,), (4,)), scaling=scaling).fit(
        frame, max_epochs=3
    ), frame


@pytest.mark.parametrize("scaling", ["standard", "none"])
def test_scores_are_what_the_draws_say(scaling):
    """Against the same draws, taken through the public interface and scored by plain loops."""
    model, frame = fitted(scaling)
    got = model.score(frame, draws=50, seed=4)
    draws = model.sample(frame, draws=50, seed=4)
    mean = model.predict(frame, draws=50, seed=4)
    scale = dict(zip(model.schema.measurements, model._encoder.y_scale, strict=True))
    noise = dict(zip(model.schema.measurements, model._vae.likelihood.var.detach().numpy(), strict=True))
    square, inside, crps = [], [], []
    for name in ("a", "b"):
        for i in frame.index[frame[name].notna()]:
            mine, y = np.sort(draws[name][i].to_numpy()), frame[name][i]
            square.append(((mean[name][i] - y) / scale[name]) ** 2)
            inside.append(np.quantile(mine, 0.05, method="weibull") <= y <= np.quantile(mine, 0.95, method="weibull"))
            pairs = np.abs(mine[:, None] - mine[None, :]).sum() / (50 * 49)
            crps.append((np.abs(mine - y).mean() - 0.5 * pairs) / scale[name])
    assert got["rmse"] == pytest.approx(math.sqrt(np.mean(square)), rel=1e-4)
    assert got["coverage90"] == pytest.approx(np.mean(inside), abs=1e-6)  # a share in float32
    assert got["crps"] == pytest.approx(np.mean(crps), rel=1e-4)
    # The moment-matched NLL in own units: draws of the location are not public, but their moments are bounded by y's.
    floor = [0.5 * math.log(2 * math.pi * noise[name]) + math.log(scale[name]) for name in ("a", "b")]
    seen = frame[["a", "b"]].notna().sum() / len(frame)
    assert got["nll"] > np.dot(seen, floor)


def test_nll_is_in_the_units_of_the_measurements():
    model, frame = fitted("standard")
    encoder, vae = model._fitted()
    with torch.no_grad():
        vae.likelihood.raw.fill_(50.0)  # noise drowns everything: the NLL is that of the noise
    var = float(vae.likelihood.var[0].detach())
    each = [0.5 * math.log(2 * math.pi * var) + math.log(s) for s in encoder.y_scale]
    seen = frame[["a", "b"]].notna().sum() / len(frame)
    assert model.score(frame)["nll"] == pytest.approx(np.dot(seen, each), rel=1e-5)


def test_scores_by_column_are_what_the_draws_say():
    model, frame = fitted("standard")
    got = model.score(frame, columns=True, draws=50, seed=4)
    draws, mean = model.sample(frame, draws=50, seed=4), model.predict(frame, draws=50, seed=4)
    assert got.index.tolist() == ["a", "b"]
    assert got.index.name == "measurement"
    for name in ("a", "b"):
        seen = frame.index[frame[name].notna()]
        truth, mine = frame.loc[seen, name].to_numpy(), np.stack([draws[name][i].to_numpy() for i in seen])
        assert got.loc[name, "entries"] == len(seen)
        assert got.loc[name, "rmse"] == pytest.approx(np.sqrt(np.mean((mean.loc[seen, name] - truth) ** 2)), rel=1e-4)
        low, high = np.quantile(mine, [0.25, 0.75], axis=1, method="weibull")
        assert got.loc[name, "coverage50"] == pytest.approx(np.mean((low <= truth) & (truth <= high)))
        pairs = np.abs(mine[:, :, None] - mine[:, None]).sum((1, 2)) / (50 * 49)
        assert got.loc[name, "crps"] == pytest.approx(
            np.mean(np.abs(mine - truth[:, None]).mean(1) - pairs / 2), rel=1e-3
        )
    whole = model.score(frame, draws=50, seed=4)
    assert whole["nll"] == pytest.approx((got["nll"] * got["entries"]).sum() / len(frame))
    assert whole["coverage90"] == pytest.approx(np.average(got["coverage90"], weights=got["entries"]))


def test_a_column_without_truth_has_no_scores():
    model, frame = fitted("standard")
    got = model.score(frame.assign(b=np.nan), columns=True)
    assert got.loc["b", "entries"] == 0
    assert got.loc["b"].drop("entries").isna().all()
    assert math.isfinite(model.score(frame.assign(b=np.nan))["nll"])
    assert math.isnan(model.score(frame.assign(a=np.nan, b=np.nan))["rmse"])


def test_embedding_is_the_encoders():
    model, frame = fitted("standard")
    z = model.embed(frame.set_index(frame.index + 7))
    assert list(z.columns) == ["z1", "z1_var"]
    assert z.index.tolist() == list(range(7, 87))
    table = model._encode(frame)
    mean, var = model._vae.encoder(table.y, table.y_mask, model._encoder.space.features(table.x, table.x_mask))
    assert np.allclose(z, torch.cat([mean, var], 1).detach().numpy(), atol=1e-6)
    assert (z["z1_var"] > 0).all()


def test_a_small_table_is_scored_in_little_memory():
    """What a GP prior holds per row and draw is far more than what is decoded; it has to count."""
    rng = np.random.default_rng(0)
    patient = np.repeat(np.arange(50), 4)
    frame = pd.DataFrame({"id": patient, "day": rng.uniform(0, 9, 200), "a": rng.normal(0, 1, 200)})
    model = lacova.GPPriorVAE(lacova.Schema(["a"], {}, "id", "day"), latent_dim=4, inducing=40)
    model.fit(frame, max_epochs=1)
    sizes = []
    sample = model._vae.prior.sample
    model._vae.prior.sample = lambda x, *rest: sizes.append(len(x)) or sample(x, *rest)
    model.score(frame, draws=500)
    assert sum(sizes) == 200  # covariates without gaps are the same in all draws
    sizes.clear()
    model.score(frame.assign(day=frame["day"].mask(frame.index % 4 == 0)), draws=500)
    assert sum(sizes) == 500 * 200
    assert max(sizes) * 4 * 40 <= lacova.inference.predict.CHUNK
