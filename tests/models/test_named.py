"""LVAE, GPPVAE and HIVAE against what they are made of; storage, description and bad input of all named models."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

import lacova
from lacova import CVAE, GPPVAE, GPVAE, HIVAE, LVAE, Conv, Dense, GPPriorVAE, Schema, SchemaError
from lacova.data.batches import Batches
from lacova.data.measurement_space import FAMILIES, LEVELS, NO_LIMITS, MeasurementSpace
from lacova.nn.structured import ColumnDecoder
from tests.priors.cases import Given

SMALL = {"latent_dim": 2, "networks": Dense((6,), (6,))}
SCHEMA = Schema(
    ["alt", "ast"], {"age": "continuous", "sex": "categorical"}, instance="id", time="day", static=["age", "sex"]
)
MIXED = Schema(
    {"alt": "gaussian", "falls": "poisson", "ill": "bernoulli", "grade": "categorical", "stage": "ordinal"},
    {"age": "continuous", "sex": "categorical"},
)


def visits(patients=8, count=4, gaps=0.2, seed=0):
    rng = np.random.default_rng(seed)
    who = np.tile(np.arange(patients), count)
    table = pd.DataFrame({"day": np.repeat(np.arange(float(count)), patients) + rng.uniform(0, 0.5, len(who))})
    table["age"] = rng.normal(50, 10, patients)[who]
    table["sex"] = np.array(["f", "m"], dtype=object)[who % 2]
    table["alt"] = 30 + 0.4 * (table["age"] - 50) + 2 * table["day"] + rng.normal(0, 1, len(who))
    table["ast"] = 20 - 3.0 * (table["sex"] == "m") + rng.normal(0, 1, len(who))
    table = table.mask(rng.random(table.shape) < gaps)
    return table.assign(id=np.array([f"p{k}" for k in range(patients)], dtype=object)[who])


def mixed(count=60, gaps=0.2, seed=0):
    rng = np.random.default_rng(seed)
    z = rng.normal(size=count)
    table = pd.DataFrame({
        "age": rng.normal(50, 10, count), "sex": np.where(rng.random(count) < 0.5, "f", "m"), "alt": 3 * z + 30,
        "falls": rng.poisson(np.exp(z)), "ill": z > 0, "grade": np.array(["a", "b", "c"])[rng.integers(0, 3, count)],
        "stage": np.digitize(z, [-0.5, 0.5]),
    }).astype(object)  # fmt: skip
    return table.mask(rng.random(table.shape) < gaps)


MODELS = {
    "lvae": (lambda: LVAE(SCHEMA, inducing=4, **SMALL), visits),
    "gppvae": (lambda: GPPVAE(SCHEMA, **SMALL), visits),
    "gppvae-features": (lambda: GPPVAE(SCHEMA, objects=["age", "sex"], views=["day"], inducing=5, **SMALL), visits),
    "gpvae": (lambda: GPVAE(SCHEMA, **SMALL), visits),
    "gpvae-more": (
        lambda: GPVAE(SCHEMA, kernel="se", length_scale=3, learn_length_scale=True, posterior="diagonal", **SMALL),
        visits,
    ),
    "hivae": (lambda: HIVAE(MIXED, components=3, column_width=4, **SMALL), mixed),
    "hivae-visits": (lambda: HIVAE(SCHEMA, **SMALL), visits),
}
every_model = pytest.mark.parametrize("name", MODELS)


@pytest.fixture(scope="module")
def fitted():
    return {name: make().fit(table(), max_epochs=2, batch_size=4) for name, (make, table) in MODELS.items()}


def answers(model, table):
    found = [model.impute(table), model.predict(table, draws=3), model.sample(table, draws=2), model.embed(table)]
    if model.schema.instance:
        found.append(model.predict(table[::3], history=table[1::3], draws=3))
    numbers = [model.log_likelihood(table, draws=3).to_list(), model.elbo(table), model.score(table, draws=3)]
    return repr([*(part.to_dict("list") for part in found), *numbers])


# What holds for all of them.


@every_model
def test_gaps_anywhere_are_filled_and_what_is_observed_stays(name, fitted):
    table = MODELS[name][1]()
    done = fitted[name].impute(table)
    assert table.isna().any().any()
    assert not done[list(fitted[name].schema.columns)].isna().any().any()
    for column in table:
        seen = table[column].notna()
        assert done[column][seen].tolist() == table[column][seen].tolist()
    assert all(math.isfinite(value) for value in fitted[name].elbo(table).values())
    assert np.isfinite(fitted[name].log_likelihood(table)).all()


@every_model
def test_the_same_seed_gives_the_same_model_and_a_file_brings_it_back(name, fitted, tmp_path):
    make, rows = MODELS[name]
    model, table = fitted[name], rows()
    before = answers(model, table)
    assert answers(make().fit(table, max_epochs=2, batch_size=4), table) == before
    assert make().fit(table, max_epochs=2, batch_size=4, seed=1).elbo(table) != model.elbo(table)
    model.save(tmp_path / "model.lacova")
    again = lacova.load(tmp_path / "model.lacova")
    assert type(again) is type(model)
    assert again.describe() == model.describe()
    assert answers(again, table) == before


@every_model
def test_an_answer_alone_does_not_depend_on_who_else_is_asked_about(name, fitted):
    table = MODELS[name][1](gaps=0.0) if name != "hivae" else mixed(gaps=0.0)
    one = table[table["id"] == "p3"] if "id" in table else table[7:8]
    together = fitted[name].predict(table, draws=5, independent_noise=True).loc[one.index]
    pd.testing.assert_frame_equal(fitted[name].predict(one, draws=5, independent_noise=True), together, rtol=1e-4)


@pytest.mark.parametrize("name", ["gpvae", "hivae"])
def test_rows_from_a_file_are_the_same_rows(name, tmp_path):
    make, rows = MODELS[name]
    table = rows().convert_dtypes()
    table = table.sort_values("id", ignore_index=True) if "id" in table else table
    table.to_parquet(tmp_path / "rows.parquet")
    one, other = (make().fit(data, max_epochs=2, batch_size=4) for data in (table, tmp_path / "rows.parquet"))
    assert other.elbo(table)["elbo"] == pytest.approx(one.elbo(table)["elbo"], rel=1e-6)


@every_model
def test_models_describe_themselves(name, fitted):
    text = fitted[name].describe()
    expected = {
        "lvae": "gp(age) + gp(day) + gp(day):cat(sex) + cat(id) + gp(day):cat(id)",
        "gppvae": "gp(day):cat(id)",
        "gppvae-features": "gp(day):gp(age):cat(sex)",
        "gpvae": "a cauchy process of day, length-scale one standard deviation",
        "gpvae-more": "a se process of day, length-scale 3 to start from",
        "hivae": "a mixture of 3 normals",
        "hivae-visits": "a mixture of 10 normals",
    }[name]
    assert text.split("prior of z")[1].split("\n")[0].strip() == expected
    assert text.split()[1] == type(fitted[name]).__name__


NO_TIME = Schema(["alt"], {"age": "continuous"}, instance="id")
NO_INSTANCE = Schema(["alt"], {"age": "continuous"}, time="day")
BAD = {
    "lvae-time": (lambda: LVAE(NO_TIME), "LVAE needs a time column"),
    "lvae-instance": (lambda: LVAE(NO_INSTANCE), "LVAE needs an instance column"),
    "lvae-own": (lambda: LVAE(SCHEMA, prior="gp(day)"), r"'gp\(day\)' has none; add .* gp\(day\):cat\(id\)"),
    "gpvae-time": (lambda: GPVAE(NO_TIME), r"GPVAE needs a time column.*give Schema\(time=...\)"),
    "gpvae-instance": (lambda: GPVAE(NO_INSTANCE), "GPVAE needs an instance column"),
    "gpvae-kernel": (lambda: GPVAE(SCHEMA, kernel="rbf"), "kernel is 'rbf'; expected 'cauchy' or 'se'"),
    "gpvae-posterior": (lambda: GPVAE(SCHEMA, posterior="full"), "posterior is 'full'; expected 'banded' or 'diag"),
    "gpvae-scale": (lambda: GPVAE(SCHEMA, length_scale=0), "length_scale is 0; expected a positive number, in"),
    "gpvae-text": (lambda: GPVAE(SCHEMA, length_scale="2"), "length_scale is '2'"),
    "gppvae-instance": (lambda: GPPVAE(NO_INSTANCE), r"GPPVAE needs an instance column.*or objects=\[...\]"),
    "gppvae-views": (lambda: GPPVAE(SCHEMA, views="day"), r"views must be a list.*write \['day'\]"),
    "gppvae-none": (lambda: GPPVAE(SCHEMA, views=[]), "views is empty"),
    "gppvae-name": (lambda: GPPVAE(SCHEMA, objects=["alt"]), "objects names 'alt', which is no covariate"),
    "gppvae-static": (lambda: GPPVAE(SCHEMA, objects=["day"]), "'day', which is not static"),
    "gppvae-both": (lambda: GPPVAE(SCHEMA, views=["age"], objects=["age"]), "'age' is among views and objects"),
    "gppvae-prior": (lambda: GPPVAE(SCHEMA, prior="gp(day)"), "prior is not for a GPPVAE"),
    "hivae-components": (lambda: HIVAE(MIXED, components=0), "components must be a whole number of at least 1"),
    "hivae-width": (lambda: HIVAE(MIXED, column_width=1.5), "column_width must be a whole number"),
    "hivae-conv": (lambda: HIVAE(MIXED, networks=Conv()), r"a head per column: give Dense\(...\)"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_with_a_remedy(case):
    make, message = BAD[case]
    with pytest.raises((ValueError, SchemaError), match=message):
        make()


# LVAE and GPPVAE are GPPriorVAEs.


@pytest.mark.parametrize(
    ("name", "formula"),
    [
        ("lvae", "gp(age) + gp(day) + gp(day):cat(sex) + cat(id) + gp(day):cat(id)"),
        ("gppvae", "gp(day):cat(id)"),
        ("gppvae-features", "gp(day):gp(age):cat(sex)"),
    ],
)
def test_the_loss_is_that_of_a_gp_prior_vae_with_the_same_formula_bit_for_bit(name, formula, fitted):
    model, table = fitted[name], visits()
    inducing = {} if name == "gppvae" else {"inducing": model.inducing}
    same = GPPriorVAE(SCHEMA, prior=formula, patient_effects=False, **inducing, **SMALL)
    same.fit(table, max_epochs=2, batch_size=4)
    pd.testing.assert_frame_equal(same.training, model.training, check_exact=True)
    assert same.elbo(table) == model.elbo(table)
    assert model._vae.prior.couples_rows == (name != "gppvae-features")  # D̂⁴, where a patient's rows belong together


def grid(objects, views):
    """Every object under every view: age (scaled), sex of the object, day of the view."""
    names = list(SCHEMA.covariates)
    x = torch.zeros(len(objects) * len(views), len(names), dtype=torch.float64)
    for i, (age, sex) in enumerate(objects):
        for j, day in enumerate(views):
            values = {"age": age, "sex": sex, "day": day}
            x[i * len(views) + j] = torch.tensor([values[n] for n in names])
    return x


def test_the_kernel_of_objects_and_views_is_a_kronecker_product_on_a_full_grid(fitted):
    objects, views = [(0.1, 0), (-0.8, 1), (1.5, 1), (0.3, 0)], [-1.0, 0.2, 0.5, 2.0, 2.1]
    x = grid(objects, views)
    kernel = fitted["gppvae-features"]._vae.prior.kernel
    got = kernel(x, x, kernel.shared)
    scale = {column: value.exp() for column, value in kernel.scales(0)}
    day, age = (list(SCHEMA.covariates).index(name) for name in ("day", "age"))
    for l in range(2):  # noqa: E741
        ages, days = torch.tensor([a for a, _ in objects]).double(), torch.tensor(views).double()
        alike = torch.tensor([[float(s == t) for _, t in objects] for _, s in objects]).double()
        of_objects = torch.exp(-0.5 * ((ages[:, None] - ages) / scale[age][l]) ** 2) * alike
        of_views = torch.exp(-0.5 * ((days[:, None] - days) / scale[day][l]) ** 2)
        expected = kernel.log_variance[0, l].exp() * torch.kron(of_objects, of_views)
        torch.testing.assert_close(got[l], expected, rtol=1e-8, atol=1e-12)
    # Objects that are nothing but themselves: the same kernel of views in every block, and nothing between them.
    own = fitted["gppvae"]._vae.prior.kernel
    assert own.shared == ()
    scale = dict(own.scales(0))[day].exp()
    gap = (days[:, None] - days).square()
    block = own.log_variance[0].exp()[:, None, None] * torch.exp(-0.5 * gap / scale[:, None, None] ** 2)
    for i in range(len(objects)):
        torch.testing.assert_close(own(x[5 * i : 5 * i + 5], x[5 * i : 5 * i + 5], own.own), block, rtol=1e-8, atol=0)


def test_views_are_the_time_or_else_all_that_varies():
    assert GPPVAE(SCHEMA, objects=["age"]).formula == "gp(day):gp(age)"
    no_time = Schema(["alt"], {"angle": "continuous", "light": "categorical", "age": "continuous"}, instance="id",
                     static=["age"])  # fmt: skip
    assert GPPVAE(no_time).formula == "gp(angle):cat(light):cat(id)"
    with pytest.raises(ValueError, match="views are told apart by 'light', of which none is a number"):
        GPPVAE(no_time, views=["light"])
    assert GPPVAE(no_time, views=["light"], objects=["age"]).formula == "gp(age):cat(light)"
    faces = Schema(["alt"], {"angle": "continuous", "person": "categorical"})  # objects by a column of X
    assert GPPVAE(faces, objects=["person"]).formula == "gp(angle):cat(person)"


# HIVAE: the heads, the observation models.


LAYOUT = MeasurementSpace(FAMILIES, tuple({"bernoulli": 2, "categorical": 4, "ordinal": 3}.get(f, 0) for f in FAMILIES),
                          tuple((-0.5, math.inf) if f == "censored" else NO_LIMITS for f in FAMILIES))  # fmt: skip


def test_a_column_has_a_head_and_a_part_of_the_shared_layer_of_its_own():
    torch.manual_seed(0)
    decoder = ColumnDecoder(Dense((), (5,)), 2, 0, LAYOUT.output_width, outputs=LAYOUT.outputs, width=3)
    z = torch.randn(7, 2)
    before = decoder(z)
    assert before.shape == (7, LAYOUT.output_width)
    assert (before.std(0) > 0).all()
    for d, own in enumerate(LAYOUT.outputs):
        others = [k for k in range(LAYOUT.output_width) if k not in own]
        for part in (decoder.hidden, decoder.last, decoder.shared.network[-1].weight.view(len(LAYOUT), 3, -1)):
            kept = part.detach().clone()
            with torch.no_grad():
                part[d] += 1.0
            after = decoder(z)
            with torch.no_grad():
                part.copy_(kept)
            assert (after[:, list(own)] != before[:, list(own)]).any(0).all()
            assert torch.equal(after[:, others], before[:, others])


def test_the_observation_models_behind_the_heads_normalise():
    torch.manual_seed(0)
    decoder = ColumnDecoder(Dense((), (5,)), 2, 0, LAYOUT.output_width, outputs=LAYOUT.outputs)
    likelihood = lacova.likelihoods.mixed.MixedLikelihood(LAYOUT).double()
    outputs = decoder.double()(torch.randn(3, 2, dtype=torch.float64))
    step = 0.01
    for d, family in enumerate(FAMILIES):
        if family in LEVELS:
            points, weight = torch.arange(LAYOUT.levels[d]).double(), 1.0
        elif family in ("poisson", "negative_binomial"):
            points, weight = torch.arange(400).double(), 1.0
        else:
            points, weight = torch.arange(-400, 400, step).double(), step
        if family == "censored":
            points = points[points > LAYOUT.limits[d][0]]
        y = torch.zeros(len(points), 1, len(LAYOUT), dtype=torch.float64)
        y[..., d] = points[:, None]
        mask = torch.zeros(1, len(LAYOUT), dtype=torch.bool)
        mask[0, d] = True
        wide = outputs.expand(len(points), -1, -1)
        y = y.expand(-1, len(outputs), -1)
        total = likelihood.log_prob(wide, y, mask).exp().sum(0) * weight
        if family == "censored":  # the rest of the probability stands at the limit
            at = torch.full((1, 1, len(LAYOUT)), LAYOUT.limits[d][0], dtype=torch.float64)
            total = total + likelihood.log_prob(outputs[None], at.expand(1, 3, -1), mask).exp().sum(0)
        # Heavy tails beyond the grid, and the edge of the grid at the limit.
        tolerance = {"student": 1e-3, "censored": step}.get(family, 1e-6)
        torch.testing.assert_close(total, torch.ones_like(total), rtol=0, atol=tolerance)


def test_the_likelihood_of_a_row_is_that_under_the_mixture():
    """By importance sampling and by quadrature over z."""
    table = mixed()
    model = HIVAE(MIXED, latent_dim=1, components=3, networks=Dense((6,), (6,)))
    vae = model.fit(table, max_epochs=5)._vae
    table = table[:8]
    encoded = model._encode(table)
    batch = Batches(encoded).batch(torch.arange(len(encoded)))
    with torch.no_grad():
        vae.prior.raw_means *= 4.0  # far from normal
    vae.encoder = Given(lambda y, *_: (y[:, :1] * 0.0, y[:, :1] * 0.0 + 20.0))  # wide, so that weights are even
    z = torch.arange(-20.0, 20.0, 0.01)[:, None]
    with torch.no_grad():
        outputs = vae.decode(z, z)[:, None].expand(-1, len(batch), -1)
        density = vae.likelihood.log_prob(outputs, batch.y, batch.y_mask) + vae.prior.log_density(z, z)[:, None]
        exact = density.logsumexp(0) + math.log(0.01)
    got = model.log_likelihood(table, draws=20_000) - model._encoder.log_jacobian(batch.y, batch.y_mask).numpy()
    np.testing.assert_allclose(got, exact.numpy(), atol=0.1)  # the draws' own error


def test_components_are_groups_that_nobody_named():
    rng = np.random.default_rng(0)
    group = rng.integers(0, 2, 200)
    table = pd.DataFrame({"age": rng.normal(size=200), "a": 4.0 * group + rng.normal(0, 0.3, 200)})
    table["b"] = 2.0 - 4.0 * group + rng.normal(0, 0.3, 200)
    schema = Schema(["a", "b"], {"age": "continuous"})
    model = HIVAE(schema, components=2, latent_dim=1, networks=Dense((16,), ()))
    z = model.fit(table, max_epochs=100, learning_rate=1e-2).embed(table)["z1"].to_numpy()
    nearest = np.abs(z[:, None] - model._vae.prior.means.detach().numpy()[:, 0]).argmin(1)
    assert max((nearest == group).mean(), (nearest != group).mean()) > 0.95


def test_covariates_do_not_move_predictions(fitted):
    table = mixed()
    assert fitted["hivae"].predict(table).equals(fitted["hivae"].predict(table.assign(age=80.0)))
    changed = CVAE(MIXED, **SMALL).fit(table, max_epochs=2)
    assert not changed.predict(table).equals(changed.predict(table.assign(age=80.0)))
