"""VAE, MIWAE and NotMIWAE against what is known of linear Gaussian models, and of gaps that were made."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

import lacova
from lacova.data.encoder import TableEncoder
from lacova.data.errors import SchemaError
from lacova.data.schema import Schema
from lacova.data.table import Table
from lacova.inference.impute import weighted_covariates, weighted_draws
from lacova.inference.metrics import weighted_quantile
from lacova.inference.draws import Draws
from lacova.inference.summaries import summarise
from tests.inference.test_importance import linear_data, linear_models
from tests.inference.test_objective import gaussian_case, prepared, with_posterior

SCHEMA = Schema(list("abcd"), {})
TRAINED = {"max_epochs": 250, "learning_rate": 5e-3, "batch_size": 200}


def law(model):
    """Mean and covariance of y, in own units, of a model with a linear decoder."""
    loading, bias = (p.detach().double().numpy() for p in model._vae.decoder.network[0].parameters())
    noise, encoder = model._vae.likelihood.var.detach().double().numpy(), model._encoder
    loading = loading * encoder.y_scale[:, None]
    return bias * encoder.y_scale + encoder.y_shift, loading @ loading.T + np.diag(noise * encoder.y_scale**2)


def observed_likelihood(mean, covariance, table):
    """log N(y_o) of each row."""
    found = []
    for y in table.to_numpy():
        seen = ~np.isnan(y)
        rest, part = y[seen] - mean[seen], covariance[np.ix_(seen, seen)]
        quadratic = rest @ np.linalg.solve(part, rest)
        found.append(-0.5 * (quadratic + np.linalg.slogdet(part)[1] + seen.sum() * math.log(2 * math.pi)))
    return np.array(found)


def best_likelihood(table):
    """The largest mean log N(y_o) that one latent dimension can reach, by direct search."""
    y = torch.tensor(table.to_numpy())
    seen = ~y.isnan()
    y, width = y.nan_to_num(), y.shape[1]
    start = [torch.ones(width, 1), torch.zeros(width), torch.zeros(width)]
    loading, mean, log_noise = free = [part.double().requires_grad_() for part in start]
    search = torch.optim.LBFGS(free, max_iter=500, line_search_fn="strong_wolfe")

    def loss():
        search.zero_grad()
        both = seen[:, :, None] & seen[:, None, :]
        covariance = torch.where(both, loading @ loading.T + torch.diag(log_noise.exp()), torch.eye(width).double())
        rest = torch.where(seen, y - mean, 0.0)
        quadratic = (rest * torch.linalg.solve(covariance, rest[..., None])[..., 0]).sum(1)
        value = 0.5 * (quadratic + torch.linalg.slogdet(covariance)[1] + seen.sum(1) * math.log(2 * math.pi)).mean()
        value.backward()
        return value.detach()

    search.step(loss)
    return -float(loss())


def test_a_linear_vae_reaches_probabilistic_pca():
    """With the same noise in all columns, as the data have: the VAE may find a little more, if there is."""
    table = linear_data(0, 400)
    eigenvalues = np.linalg.eigvalsh(np.cov(table.T, bias=True))[::-1]
    noise = eigenvalues[1:].mean()
    pca = -0.5 * (4 * math.log(2 * math.pi) + math.log(eigenvalues[0]) + 3 * math.log(noise) + 4)
    model = linear_models(lacova.VAE, gaps=0.0, encoder=(), **TRAINED)
    exact = observed_likelihood(*law(model), table)
    assert pca - 0.002 < exact.mean() < best_likelihood(table) + 1e-9
    np.testing.assert_allclose(model.log_likelihood(table, draws=500), exact, atol=0.05)
    bound = model.elbo(table, samples=20)["elbo"] / len(table)
    assert exact.mean() - 0.02 < bound < exact.mean() + 0.001


@pytest.fixture(scope="module")
def miwae():
    return linear_models(lacova.MIWAE, **TRAINED)


def gappy(seed=0, n=400):
    table = linear_data(seed, n)
    return table.mask(np.random.default_rng(seed + 1).random(table.shape) < 0.3)


def test_with_gaps_it_reaches_the_best_marginal_likelihood(miwae):
    table = gappy()
    best = best_likelihood(table)
    vae = linear_models(lacova.VAE, **TRAINED)
    for model, slack in ((vae, 0.006), (miwae, 0.003)):
        assert best - slack < observed_likelihood(*law(model), table).mean() < best + 1e-9
    trained = miwae.training["elbo"].tail(20).mean() - np.log(miwae._encoder.y_scale) @ table.notna().mean()
    assert abs(trained - best) < 0.05  # the bound of twenty draws, on the encoded scale


def test_imputation_weighs_draws_where_q_is_poor(miwae):
    """Means, intervals and draws are those of y_u given y_o, though q is shifted and too wide."""
    table = gappy(7, 150)
    mean, covariance = law(miwae)
    exact, spread = table.copy(), table.isna() * 0.0
    for i, y in enumerate(table.to_numpy()):
        seen = ~np.isnan(y)
        gain = covariance[np.ix_(~seen, seen)] @ np.linalg.inv(covariance[np.ix_(seen, seen)])
        exact.iloc[i, ~seen] = mean[~seen] + gain @ (y[seen] - mean[seen])
        left = covariance[np.ix_(~seen, ~seen)] - gain @ covariance[np.ix_(seen, ~seen)]
        spread.iloc[i, ~seen] = np.sqrt(np.diag(left))
    gaps = table.isna().to_numpy()

    def off(found, want):
        return float(np.sqrt(((found[list("abcd")].to_numpy() - want.to_numpy())[gaps] ** 2).mean()))

    last = miwae._vae.encoder.head[-1]
    start = last.bias.detach().clone()
    try:
        last.bias.data += torch.tensor([0.7, math.log(2.0)])
        done = miwae.impute(table, interval=0.8)
        assert off(done, exact) < 0.04
        for side, sign in (("lower", -1.0), ("upper", 1.0)):
            ends = done[[f"{c}_{side}" for c in "abcd"]].set_axis(list("abcd"), axis=1)
            assert off(ends, exact + sign * 1.2816 * spread) < 0.08
        draws = miwae.impute(table, draws=200)
        values = draws[list("abcd")].to_numpy().reshape(200, 150, 4)
        assert off(pd.DataFrame(values.mean(0), columns=list("abcd")), exact) < 0.07
        assert off(pd.DataFrame(values.std(0), columns=list("abcd")), spread) < 0.07
        miwae._options = lacova.FitOptions()
        assert off(miwae.impute(table), exact) > 0.2
    finally:
        last.bias.data.copy_(start)
        miwae._options = lacova.FitOptions(importance=20)


def test_missing_covariates_are_weighed_too():
    """The posterior of a gap in x, linear and Gaussian, from a q that is shifted and too wide."""
    vae, batch, _, mean, var = gaussian_case()
    with_posterior(vae, mean[0] + 0.3, var[0] * 1.5, mean[1] - 0.4, var[1] * 1.4)
    table = prepared(Table(batch.y, batch.y_mask, batch.x, batch.x_mask, None, ()), vae)
    (part,) = weighted_draws(vae, table, 2_000, torch.Generator().manual_seed(0))
    assert part.weight.shape == (20_000, 1)
    torch.testing.assert_close(part.weight.sum(), torch.tensor(1.0).double())
    assert abs(weighted_covariates(part, vae.space)[0][0, 1] - mean[1]) < 0.02
    assert abs(part.average((part.x - mean[1]) ** 2)[0, 1] / var[1] - 1) < 0.05
    location = 0.2 + 0.5 * mean[0] + 0.1 * 0.4 + 0.4 * mean[1]
    assert abs(part.average(part.location)[0, 2] - location) < 0.02
    (part,) = weighted_draws(vae, table, 2_000, torch.Generator().manual_seed(0), resample=True)
    assert part.weight is None
    assert part.x.shape == (2_000, 1, 2)
    assert abs(part.x[:, 0, 1].mean() - mean[1]) < 0.05
    assert abs(part.x[:, 0, 1].var() / var[1] - 1) < 0.1


def test_summaries_are_weighed():
    """With all the weight on one draw, that draw is the mean and both ends; also on a logarithmic scale."""
    rng = np.random.default_rng(0)
    encoder = TableEncoder.learn(
        Schema({"a": "gaussian", "b": "lognormal"}, {}), pd.DataFrame(rng.lognormal(size=(30, 2)), columns=list("ab"))
    )
    y = torch.as_tensor(rng.normal(size=(3, 2, 2)), dtype=torch.float32)
    weight = torch.tensor([[0.0, 1.0], [0.0, 0.0], [1.0, 0.0]])
    part = Draws(torch.arange(2), y, torch.ones(2), y, torch.zeros(3, 2, 0), weight=weight)
    found = summarise([part], 2, encoder, 0.9)
    want = encoder.in_own_units(torch.stack([y[2, 0], y[0, 1]]))
    for values in (found.mean, found.ends["lower"][0], found.ends["upper"][0]):
        np.testing.assert_allclose(values, want, rtol=1e-5)


def test_weighted_quantiles():
    draws, weight = torch.tensor([[3.0], [1.0], [2.0]]), torch.tensor([[0.5], [0.2], [0.3]])
    found = [float(weighted_quantile(draws, weight, share)) for share in (0.1, 0.3, 0.49, 0.6, 1.0)]
    assert found == [1.0, 2.0, 2.0, 3.0, 3.0]


def test_chances_of_levels_are_weighed():
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"grade": rng.choice(["low", "high"], 60), "a": rng.normal(size=60)})
    model = lacova.MIWAE(Schema({"grade": "bernoulli", "a": "gaussian"}, {}), latent_dim=1)
    vae = model.fit(table, max_epochs=1, device="cpu")._vae
    outputs = torch.tensor([[[-2.0, 0.0]], [[3.0, 0.0]]])
    seen = vae._observe_mixed(vae.likelihood, outputs, None, None, torch.Generator().manual_seed(0))
    odds = float(vae.likelihood.families["bernoulli"].base)
    got = vae.level_probabilities(seen, torch.tensor([[0.9], [0.1]]))[0, 0, 1]
    want = 0.9 / (1 + math.exp(2.0 - odds)) + 0.1 / (1 + math.exp(-3.0 - odds))
    assert abs(float(got) - want) < 1e-6


def test_a_known_mechanism_is_recovered_where_miwae_is_biased():
    """Large values of two columns go missing: log-odds of 3 (y − 1.5)."""
    full = linear_data(3, 1500)
    rng, table = np.random.default_rng(5), full.copy()
    for name in "ab":
        table[name] = full[name].mask(rng.random(1500) < 1 / (1 + np.exp(-3 * (full[name] - 1.5))))
    settings = {"latent_dim": 1, "networks": lacova.Dense((32,), ())}
    options = {"max_epochs": 100, "learning_rate": 5e-3, "batch_size": 300, "device": "cpu"}
    truth = full[["a", "b"]].mean()
    biased = lacova.MIWAE(SCHEMA, **settings).fit(table, **options).impute(table)[["a", "b"]].mean()
    assert (truth - biased > 0.18).all()
    model = lacova.NotMIWAE(SCHEMA, **settings).fit(table, **options)
    assert (abs(model.impute(table)[["a", "b"]].mean() - truth) < 0.08).all()
    assert (abs(model.impute(table, draws=20)[["a", "b"]].mean() - truth) < 0.08).all()
    gaps = model.gaps().loc[["a", "b"]]
    assert gaps["slope"].between(2.0, 4.0).all()
    assert (abs(-gaps["intercept"] / gaps["slope"] - 1.5) < 0.15).all()  # where half are missing


def test_rows_without_measurements_are_imputed_from_their_mask():
    """Of a row that shows nothing, not-at-random gaps say that its values are large."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"a": rng.normal(size=300)})
    model = lacova.NotMIWAE(Schema(["a"], {}), latent_dim=1, mechanism="selfmasking_high").fit(
        table.mask(table > 0.5), max_epochs=2, device="cpu"
    )
    model._vae.missingness.raw.data.fill_(3.0)
    high = model.impute(pd.DataFrame({"a": [np.nan]}))["a"][0]
    model._vae.missingness.raw.data.fill_(-20.0)  # gaps at random
    assert high > model.impute(pd.DataFrame({"a": [np.nan]}))["a"][0] + 0.3


def test_covariates_are_left_alone():
    table = gappy(n=60) + 10
    table["id"], table["day"] = np.arange(60) // 3, np.arange(60.0)
    table.loc[3, "day"] = np.nan
    schema = Schema(list("abcd"), {"sex": "categorical"}, "id", "day", bounds={"a": (0, None), "day": (0, None)})
    model = lacova.VAE(schema, latent_dim=1).fit(table, max_epochs=2, device="cpu")
    assert model.schema == Schema(list("abcd"), {}, bounds={"a": (0, None)})
    done = model.impute(table)
    assert done[list("abcd")].notna().all().all()
    assert np.isnan(done["day"][3])
    assert len(model.predict(table[["id"]])) == 60
    assert "covariates" not in model.describe()


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="covariates is for models of covariates, which a MIWAE does not look at"):
        lacova.MIWAE(SCHEMA, covariates="knn")
    with pytest.raises(ValueError, match="covariate_prior is for models of covariates"):
        lacova.VAE(SCHEMA, covariate_prior={"age": (0, 1)})
    with pytest.raises(ValueError, match="CVAE conditions on covariates: name at least one in the schema, or use VAE"):
        lacova.CVAE(SCHEMA)
    with pytest.raises(ValueError, match="mechanism is 'mcar'; expected one of selfmasking"):
        lacova.NotMIWAE(SCHEMA, mechanism="mcar")
    with pytest.raises(ValueError, match="draws what gaps hide from normal laws, but 'a' is poisson"):
        lacova.NotMIWAE(Schema({"a": "poisson"}, {}))
    with pytest.raises(SchemaError, match=r"expected a lacova.Schema, got \['a'\]"):
        lacova.VAE(["a"])
    for wrong in (0, 1.5, True):
        with pytest.raises(ValueError, match="importance must be a whole number of at least 1"):
            lacova.FitOptions(importance=wrong)
    with pytest.raises(ValueError, match="samples=2 averages draws, importance=3 weighs them"):
        lacova.FitOptions(samples=2, importance=3)
    model = lacova.NotMIWAE(SCHEMA, latent_dim=1, scaling="normal").fit(gappy(n=80), max_epochs=1, device="cpu")
    with pytest.raises(ValueError, match="log-odds of a gap are not linear"):
        model.gaps()


def test_completed_tables_differ_where_one_proposal_has_all_the_weight(monkeypatch):
    """They have z in common; the noise of what is missing is drawn anew for each."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(20, 3)), columns=["a", "b", "c"])
    model = lacova.MIWAE(Schema(list(table), {}), latent_dim=2).fit(table, max_epochs=1, importance=3, device="cpu")
    monkeypatch.setattr(
        "lacova.inference.impute._pick", lambda weight, draws, generator: weight.argmax(0).expand(draws, -1)
    )
    drawn = model.impute(table.assign(a=np.nan), draws=6)["a"].to_numpy().reshape(6, 20)
    assert all(len(set(row)) == 6 for row in drawn.T)


def test_a_miwae_of_one_draw_is_a_vae():
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(60, 3)), columns=list("abc")).mask(rng.random((60, 3)) < 0.2)
    schema = Schema(list("abc"), {})
    vae = lacova.VAE(schema, latent_dim=2).fit(table, max_epochs=3, device="cpu")
    one = lacova.MIWAE(schema, latent_dim=2).fit(table, max_epochs=3, importance=1, device="cpu")
    assert one.training.equals(vae.training)
    assert one.impute(table).equals(vae.impute(table))
