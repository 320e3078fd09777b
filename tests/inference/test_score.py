import math

import numpy as np
import pandas as pd
import pytest
import torch

import lacova
from lacova.nn.networks import Dense


def fitted(scaling):
    """Return a CVAE and its training rows, with gaps."""
    rng = np.random.default_rng(0)
    x = rng.normal(0, 1, 80)
    frame = pd.DataFrame({"x": x, "a": 5 + 2 * x + rng.normal(0, 0.5, 80), "b": 40 * rng.normal(0, 1, 80)})
    frame = frame.mask(rng.random((80, 3)) < 0.2)
    schema = lacova.Schema(["a", "b"], {"x": "continuous"})
    model = lacova.CVAE(schema, latent_dim=1, networks=Dense((4,), (4,)), scaling=scaling)
    return model.fit(frame, max_epochs=3), frame


@pytest.mark.parametrize("scaling", ["standard", "none"])
def test_scores_are_those_of_the_draws(scaling):
    """Compare with the same draws, taken through the public interface and scored by plain loops."""
    model, frame = fitted(scaling)
    scores = model.score(frame, draws=50, seed=4)
    draws = model.sample(frame, draws=50, seed=4)
    mean = model.predict(frame, draws=50, seed=4)
    scale = dict(zip(model.schema.measurements, model.encoder.y_scale, strict=True))
    noise = dict(zip(model.schema.measurements, model.vae.likelihood.noise_variance.detach().numpy(), strict=True))
    square, inside, crps = [], [], []
    for name in ("a", "b"):
        for i in frame.index[frame[name].notna()]:
            own, y = np.sort(draws[name][i].to_numpy()), frame[name][i]
            square.append(((mean[name][i] - y) / scale[name]) ** 2)
            inside.append(np.quantile(own, 0.05, method="weibull") <= y <= np.quantile(own, 0.95, method="weibull"))
            pairs = np.abs(own[:, None] - own[None, :]).sum() / (50 * 49)
            crps.append((np.abs(own - y).mean() - 0.5 * pairs) / scale[name])
    assert scores["rmse"] == pytest.approx(math.sqrt(np.mean(square)), rel=1e-4)
    assert scores["coverage90"] == pytest.approx(np.mean(inside), abs=1e-6)  # a share in float32
    assert scores["crps"] == pytest.approx(np.mean(crps), rel=1e-4)
    # The moment-matched NLL in own units: draws of the location are not public, but their moments are bounded by y's.
    floor = [0.5 * math.log(2 * math.pi * noise[name]) + math.log(scale[name]) for name in ("a", "b")]
    share = frame[["a", "b"]].notna().sum() / len(frame)
    assert scores["nll"] > np.dot(share, floor)


def test_nll_is_in_the_units_of_the_measurements():
    model, frame = fitted("standard")
    encoder, vae = model.fitted()
    with torch.no_grad():
        vae.likelihood.families["gaussian"].raw.fill_(50.0)  # noise drowns everything: the NLL is that of the noise
    var = float(vae.likelihood.noise_variance[0].detach())
    nll = [0.5 * math.log(2 * math.pi * var) + math.log(s) for s in encoder.y_scale]
    share = frame[["a", "b"]].notna().sum() / len(frame)
    assert model.score(frame)["nll"] == pytest.approx(np.dot(share, nll), rel=1e-5)


def test_scores_by_column_are_those_of_the_draws():
    model, frame = fitted("standard")
    scores = model.score(frame, columns=True, draws=50, seed=4)
    draws, mean = model.sample(frame, draws=50, seed=4), model.predict(frame, draws=50, seed=4)
    assert scores.index.tolist() == ["a", "b"]
    assert scores.index.name == "measurement"
    for name in ("a", "b"):
        rows = frame.index[frame[name].notna()]
        truth, own = frame.loc[rows, name].to_numpy(), np.stack([draws[name][i].to_numpy() for i in rows])
        assert scores.loc[name, "entries"] == len(rows)
        assert scores.loc[name, "rmse"] == pytest.approx(
            np.sqrt(np.mean((mean.loc[rows, name] - truth) ** 2)), rel=1e-4
        )
        low, high = np.quantile(own, [0.25, 0.75], axis=1, method="weibull")
        assert scores.loc[name, "coverage50"] == pytest.approx(np.mean((low <= truth) & (truth <= high)))
        pairs = np.abs(own[:, :, None] - own[:, None]).sum((1, 2)) / (50 * 49)
        assert scores.loc[name, "crps"] == pytest.approx(
            np.mean(np.abs(own - truth[:, None]).mean(1) - pairs / 2), rel=1e-3
        )
    overall = model.score(frame, draws=50, seed=4)
    assert overall["nll"] == pytest.approx((scores["nll"] * scores["entries"]).sum() / len(frame))
    assert overall["coverage90"] == pytest.approx(np.average(scores["coverage90"], weights=scores["entries"]))


def test_a_column_without_truth_has_no_scores():
    model, frame = fitted("standard")
    scores = model.score(frame.assign(b=np.nan), columns=True)
    assert scores.loc["b", "entries"] == 0
    assert scores.loc["b"].drop("entries").isna().all()
    assert math.isfinite(model.score(frame.assign(b=np.nan))["nll"])
    assert math.isnan(model.score(frame.assign(a=np.nan, b=np.nan))["rmse"])
