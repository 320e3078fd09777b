"""HIVAE: heads of columns, their observation models, and the mixture prior."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

from lacova import CVAE, HIVAE, Conv, Dense, Schema, SchemaError
from lacova.data.batches import Batches
from lacova.data.kinds import values_of
from lacova.data.measurement_space import FAMILIES, NO_LIMITS, MeasurementSpace
from lacova.likelihoods.likelihood import Likelihood
from lacova.nn.structured import ColumnDecoder
from tests.models.literature import MIXED, SMALL
from tests.priors.cases import Given
from tests.tables import mixed_rows

LAYOUT = MeasurementSpace(FAMILIES, tuple({"bernoulli": 2, "categorical": 4, "ordinal": 3}.get(f, 0) for f in FAMILIES),
                          tuple((-0.5, math.inf) if f == "censored" else NO_LIMITS for f in FAMILIES))  # fmt: skip


def test_a_column_has_a_head_and_a_part_of_the_shared_layer_of_its_own():
    torch.manual_seed(0)
    decoder = ColumnDecoder(Dense((), (5,)), 2, LAYOUT.outputs, width=3)
    z = torch.randn(7, 2)
    before = decoder(z)
    assert before.shape == (7, LAYOUT.output_width)
    assert (before.std(0) > 0).all()
    for d, own in enumerate(LAYOUT.outputs):
        others = [k for k in range(LAYOUT.output_width) if k not in own]
        for part in (decoder.hidden, decoder.last, decoder.shared.network[-1].weight.view(len(LAYOUT), 3, -1)):
            before_change = part.detach().clone()
            with torch.no_grad():
                part[d] += 1.0
            after = decoder(z)
            with torch.no_grad():
                part.copy_(before_change)
            assert (after[:, list(own)] != before[:, list(own)]).any(0).all()
            assert torch.equal(after[:, others], before[:, others])


def test_the_observation_models_behind_the_heads_normalise():
    torch.manual_seed(0)
    decoder = ColumnDecoder(Dense((), (5,)), 2, LAYOUT.outputs)
    likelihood = Likelihood(LAYOUT).double()
    outputs = decoder.double()(torch.randn(3, 2, dtype=torch.float64))
    step = 0.01
    for d, family in enumerate(FAMILIES):
        if values_of(family) == "level":
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
        if family == "censored":  # the rest of the probability is at the limit
            at = torch.full((1, 1, len(LAYOUT)), LAYOUT.limits[d][0], dtype=torch.float64)
            total = total + likelihood.log_prob(outputs[None], at.expand(1, 3, -1), mask).exp().sum(0)
        # Heavy tails beyond the grid, and the edge of the grid at the limit.
        tolerance = {"student": 1e-3, "censored": step}.get(family, 1e-6)
        torch.testing.assert_close(total, torch.ones_like(total), rtol=0, atol=tolerance)


def test_the_likelihood_of_a_row_is_that_under_the_mixture():
    """Importance sampling agrees with quadrature over z."""
    table = mixed_rows()
    model = HIVAE(MIXED, latent_dim=1, components=3, networks=Dense((6,), (6,)))
    vae = model.fit(table, max_epochs=5).vae
    table = table[:8]
    encoded = model.encode(table)
    batch = Batches(encoded).batch(torch.arange(len(encoded)))
    with torch.no_grad():
        vae.prior.raw_means *= 4.0  # far from normal
    vae.encoder = Given(lambda y, *_: (y[:, :1] * 0.0, y[:, :1] * 0.0 + 20.0))  # wide, so that weights are even
    z = torch.arange(-20.0, 20.0, 0.01)[:, None]
    with torch.no_grad():
        outputs = vae.decode(z, z)[:, None].expand(-1, len(batch), -1)
        density = vae.likelihood.log_prob(outputs, batch.y, batch.y_mask) + vae.prior.log_density(z, z)[:, None]
        exact = density.logsumexp(0) + math.log(0.01)
    sampled = model.log_likelihood(table, draws=20_000) - model.encoder.log_jacobian(batch.y, batch.y_mask).numpy()
    np.testing.assert_allclose(sampled, exact.numpy(), atol=0.1)  # the draws' own error


def test_components_find_groups_of_rows():
    rng = np.random.default_rng(0)
    group = rng.integers(0, 2, 200)
    table = pd.DataFrame({"age": rng.normal(size=200), "a": 4.0 * group + rng.normal(0, 0.3, 200)})
    table["b"] = 2.0 - 4.0 * group + rng.normal(0, 0.3, 200)
    schema = Schema(["a", "b"], {"age": "continuous"})
    model = HIVAE(schema, components=2, latent_dim=1, networks=Dense((16,), ()))
    z = model.fit(table, max_epochs=100, learning_rate=1e-2).embed(table)["z1"].to_numpy()
    nearest = np.abs(z[:, None] - model.vae.prior.means.detach().numpy()[:, 0]).argmin(1)
    assert max((nearest == group).mean(), (nearest != group).mean()) > 0.95


def test_covariates_do_not_move_predictions(literature_models):
    table = mixed_rows()
    assert literature_models["hivae"].predict(table).equals(literature_models["hivae"].predict(table.assign(age=80.0)))
    changed = CVAE(MIXED, **SMALL).fit(table, max_epochs=2)
    assert not changed.predict(table).equals(changed.predict(table.assign(age=80.0)))


@pytest.mark.parametrize(
    ("name", "prior"),
    [
        ("hivae", "a mixture of 3 normals"),
        ("hivae-visits", "a mixture of 10 normals"),
    ],
)
def test_it_describes_its_prior(name, prior, literature_models):
    text = literature_models[name].describe()
    assert text.split("prior of z")[1].split("\n")[0].strip() == prior
    assert text.split()[1] == type(literature_models[name]).__name__


REFUSED = {
    "components": (lambda: HIVAE(MIXED, components=0), "components must be a whole number of at least 1"),
    "width": (lambda: HIVAE(MIXED, column_width=1.5), "column_width must be a whole number"),
    "conv": (lambda: HIVAE(MIXED, networks=Conv()), r"a head per column: give Dense\(...\)"),
}


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED)
def test_bad_input_is_refused_with_a_remedy(make, message):
    with pytest.raises((ValueError, SchemaError), match=message):
        make()
