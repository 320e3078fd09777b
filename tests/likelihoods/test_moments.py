"""Means and variances of measurements in their own units, against draws."""

import numpy as np
import pandas as pd
import pytest
import torch

import lacova
from lacova.data.statistics import ColumnStatistics
from lacova.data.table_encoder import TableEncoder
from lacova.likelihoods.likelihood import Likelihood
from lacova.likelihoods.moments import Moments

KINDS = {
    "gau": "gaussian", "log": "lognormal", "stu": "student", "poi": "poisson", "neg": "negative_binomial",
    "ber": "bernoulli", "cat": "categorical", "ord": "ordinal",
}  # fmt: skip


def table(rows=400):
    rng = np.random.default_rng(0)
    return pd.DataFrame({
        "day": rng.normal(size=rows),
        "gau": rng.normal(50, 7, rows),
        "log": np.exp(rng.normal(2, 0.6, rows)),
        "stu": rng.standard_t(8, rows) + 3,
        "poi": rng.poisson(3.0, rows).astype(float),
        "neg": rng.negative_binomial(2, 0.3, rows).astype(float),
        "ber": rng.choice(["no", "yes"], rows, p=[0.7, 0.3]),
        "cat": rng.choice(["a", "b", "c"], rows),
        "ord": rng.integers(0, 4, rows).astype(float),
    })  # fmt: skip


def encoder_and_likelihood(kinds, scaling="standard"):
    schema, rows = lacova.Schema(kinds, {"day": "continuous"}), table()
    statistics = ColumnStatistics(schema)
    statistics.add(rows)
    encoder = TableEncoder.from_statistics(statistics, scaling, rows)
    return encoder, Likelihood.learn(encoder.measurements, encoder.encode(rows))


@pytest.mark.parametrize(
    ("kinds", "scaling"),
    [(KINDS, "standard"), ({"gau": "gaussian", "log": "gaussian"}, "standard"),
     ({"gau": "gaussian", "log": "gaussian"}, "normal"), ({"log": "gaussian", "poi": "poisson"}, "normal")],
)  # fmt: skip
def test_moments_are_those_of_draws(kinds, scaling):
    encoder, likelihood = encoder_and_likelihood(kinds, scaling)
    generator = torch.Generator().manual_seed(1)
    outputs = 0.5 * torch.randn(6, encoder.measurements.output_width, generator=generator)
    moments = Moments(encoder, likelihood)
    mean, var = moments(outputs)
    with torch.no_grad():
        y = likelihood.sample(outputs.expand(100_000, -1, -1), generator)
    own = encoder.in_own_units(y)
    columns = []
    for d, name in enumerate(kinds):
        levels = encoder.levels.get(name)
        columns += [own[..., d]] if levels is None else [own[..., d] == k for k in range(len(levels))]
    drawn = np.stack(columns, -1).astype(float)
    error = drawn.std(0) / len(drawn) ** 0.5 + (0.004 * drawn.std(0) if scaling == "normal" else 0.0)  # of quadrature
    assert moments.names[0] == next(iter(kinds))
    np.testing.assert_array_less(np.abs(drawn.mean(0) - mean.numpy()), 5 * error)
    np.testing.assert_allclose(var.numpy(), drawn.var(0), rtol=0.06)  # of 100,000 draws, of heavy tails too


def test_means_come_back_from_the_scale_without_bounds():
    encoder, likelihood = encoder_and_likelihood(KINDS)
    moments = Moments(encoder, likelihood)
    mean = moments(torch.randn(6, encoder.measurements.output_width, generator=torch.Generator().manual_seed(1)))[0]
    linked = moments.unbounded(mean)
    torch.testing.assert_close(moments.bounded(linked), mean)
    assert torch.equal(linked[:, [0, 2]], mean[:, [0, 2]])  # Gaussian and Student
    elsewhere = moments.bounded(linked + 3.0 * torch.randn_like(linked))
    assert (elsewhere[:, [1, *range(3, 14)]] > 0.0).all()
    for levels in ([5, 6], [7, 8, 9], [10, 11, 12, 13]):
        torch.testing.assert_close(elsewhere[:, levels].sum(1), torch.ones(6).double())
    certain = moments.unbounded(torch.zeros_like(mean).index_fill(1, torch.tensor([5]), 1.0))
    assert certain.isfinite().all()


def test_each_level_has_a_name():
    encoder, likelihood = encoder_and_likelihood(KINDS)
    names = Moments(encoder, likelihood).names
    assert names[:5] == ("gau", "log", "stu", "poi", "neg")
    assert names[5:10] == ("ber_p_no", "ber_p_yes", "cat_p_a", "cat_p_b", "cat_p_c")
    assert len(names) == 14


def test_extra_variance_raises_the_mean_of_a_log_normal_column_alone():
    encoder, likelihood = encoder_and_likelihood({"gau": "gaussian", "log": "lognormal"})
    moments, outputs = Moments(encoder, likelihood), torch.zeros(1, 2)
    plain, more = moments(outputs)[0], moments(outputs, likelihood.noise_variance + 1.0)[0]
    assert more[0, 0] == plain[0, 0]
    assert float(more[0, 1] / plain[0, 1]) == pytest.approx(np.exp(encoder.y_scale[1] ** 2 / 2), rel=1e-6)
