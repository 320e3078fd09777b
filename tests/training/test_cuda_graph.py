"""Padding changes no result, and a captured step gives the weights of an eager one."""

from __future__ import annotations

import gc
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

import lacova
from lacova.covariates.masked_loss import masking_rate
from lacova.data.table_encoder import TableEncoder
from lacova.inference.objective import bound
from lacova.models.builder import build
from lacova.training import cuda_graph
from lacova.training.accelerate import captured
from lacova.training.cuda_graph import Captured
from lacova.training.graph_inputs import inputs_for
from lacova.training.loader import TableLoader
from lacova.training.options import FitOptions
from lacova.training.padding import kind_of, padded, sizes_of
from lacova.training.step import Step
from lacova.training.training_batch import tensors

# Rates that float32 holds exactly, since a graph reads them from tensors of that type.
RATES = {"learning_rate": 2.0**-8, "fast_learning_rate": 2.0**-5, "natural_rate": 0.25}
MODELS = {
    "cvae": lambda s: lacova.CVAE(s, latent_dim=2),
    "conditional": lambda s: lacova.CVAE(s, latent_dim=2, latent_prior="conditional"),
    "rows": lambda s: lacova.GPPriorVAE(s, prior="gp(day) + gp(age):cat(sex)", latent_dim=2, inducing=5),
    "rows, exact": lambda s: lacova.GPPriorVAE(
        s, prior="gp(day) + gp(age):cat(sex)", latent_dim=2, inducing=5, expectation="exact"
    ),
    "rows of numbers": lambda s: lacova.GPPriorVAE(s, prior="gp(day) + gp(age)", latent_dim=2, inducing=5),
    "rows of numbers, exact": lambda s: lacova.GPPriorVAE(
        s, prior="gp(day) + gp(age)", latent_dim=2, inducing=5, expectation="exact"
    ),
    "patients": lambda s: lacova.GPPriorVAE(s, latent_dim=2, inducing=5),
    "patients, constant intercepts": lambda s: lacova.GPPriorVAE(
        s, latent_dim=2, inducing=5, patient_effects="intercept"
    ),
    "patients, chain": lambda s: lacova.GPVAE(s, latent_dim=2, learn_length_scale=True),
    "vae": lambda s: lacova.VAE(s, latent_dim=2),
    "miwae": lambda s: lacova.MIWAE(s, latent_dim=2),
    "notmiwae": lambda s: lacova.NotMIWAE(s, latent_dim=2),
    "cvae, weighted": lambda s: lacova.CVAE(s, latent_dim=2),
    "cvae of patients, weighted": lambda s: lacova.CVAE(s, latent_dim=2),
    "rows, weighted": lambda s: lacova.GPPriorVAE(s, prior="gp(day) + gp(age):cat(sex)", latent_dim=2, inducing=5),
    "patients, weighted": lambda s: lacova.GPPriorVAE(s, latent_dim=2, inducing=5),
    "patients, exact": lambda s: lacova.GPPriorVAE(s, latent_dim=2, inducing=5, expectation="exact"),
}


def visits(seed: int = 0) -> pd.DataFrame:
    """Return one to five visits of each of 12 patients, with gaps in every column but the instance."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 6, 12)
    patient = np.repeat(np.arange(12), counts)
    n = len(patient)
    table = pd.DataFrame({
        "id": patient, "day": rng.normal(size=n), "age": rng.normal(size=12)[patient],
        "sex": rng.choice(["f", "m"], 12)[patient], "dose": rng.choice(["a", "b", "c"], n),
        "bp": rng.normal(size=n), "alt": rng.normal(size=n), "ast": rng.normal(size=n),
    })  # fmt: skip
    gaps = rng.random((n, 7)) < np.array([0.1, 0.3, 0.3, 0.5, 0.5, 0.3, 0.3])  # some runs of gaps in dose and bp
    gaps[:, 1:3] = gaps[:12, 1:3][patient]
    table.iloc[:, 1:] = table.iloc[:, 1:].mask(gaps)
    return table


SCHEMA = lacova.Schema(
    ["alt", "ast"],
    {"day": "continuous", "age": "continuous", "sex": "categorical", "dose": "categorical", "bp": "continuous"},
    instance="id", time="day", static=("age", "sex"),
)  # fmt: skip


def built(name, cap, device="cpu"):
    """Return a model in float64, options of its training, and its loader."""
    table = visits()
    schema = SCHEMA if "patients" in name else replace(SCHEMA, instance=None, time=None, static=())
    if "numbers" in name:
        schema = replace(schema, covariates={"day": "continuous", "age": "continuous"})
    model = MODELS[name](schema)
    encoder = TableEncoder.learn(model.schema, table)
    encoded = encoder.encode(table, dtype=torch.float64)
    torch.manual_seed(0)
    vae = build(model, encoder, encoded, 0).double().to(device)
    importance = 4 if "weighted" in name or "miwae" in name else 1
    masked_loss = float(model.covariates == "joint")
    options = FitOptions(
        batch_size=7, masked_loss=masked_loss, cap=cap, max_epochs=1, importance=importance, encoder_dropout=0.4,
        **RATES,
    )  # fmt: skip
    loader = TableLoader(encoded, masking_rate(encoded), options, torch.device(device))
    loader.condition(vae)
    return vae, options, loader


def results_of(vae, options, training_batch, eps):
    """Return terms, gradients and natural statistics of a batch."""
    batch, plan, masked, _ = training_batch
    terms = bound(vae, batch, plan, eps, masked, options.importance > 1)
    vae.zero_grad()
    (terms.elbo + terms.masked_log_prob).backward()
    parts = [terms.stacked(), *(p.grad for p in vae.parameters() if p.grad is not None)]
    return [*parts, *(terms.statistics or ())]


def draw_eps(vae, options, batch):
    return vae.draw_eps(batch, options.draws, torch.Generator().manual_seed(0), options.encoder_dropout)


@pytest.mark.parametrize("cap", [1, None])
@pytest.mark.parametrize("name", MODELS)
def test_padding_counts_for_nothing(name, cap):
    """Terms, natural statistics and gradients are those of the same batch without padding."""
    vae, options, loader = built(name, cap)
    for training_batch in loader.epoch(vae, 0):
        sizes = {part: size + 3 for part, size in sizes_of(training_batch).items()}
        if not len(training_batch.plan.line):
            sizes["pairs"] = 0
        if not len(training_batch.plan.open):
            sizes["open"] = 0
        large = padded(training_batch, sizes, 7)
        eps = draw_eps(vae, options, large.batch)
        without = results_of(vae, options, training_batch, eps.rows(slice(len(training_batch.batch))))
        for one, other in zip(results_of(vae, options, large, eps), without, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


class RunAnew:
    """In place of a graph, on a machine without a GPU: a replay runs anew on the same inputs."""

    def __init__(self, run, generator, batch, sizes):
        self.run, self.sizes, self.inputs = run, sizes, inputs_for(batch, generator.device)
        self.places = [value.data_ptr() for value in tensors(self.inputs.batch)]

    def replay(self, batch, weight):
        self.inputs.fill(batch)
        assert [value.data_ptr() for value in tensors(self.inputs.batch)] == self.places
        return self.run(self.inputs.batch, weight)


@pytest.mark.parametrize("cap", [1, None])
@pytest.mark.parametrize("name", MODELS)
def test_a_batch_by_reference_is_the_batch(name, cap, monkeypatch):
    """Its numbers go to the inputs of a graph, where its rows are gathered: those of an epoch, then without masks."""
    monkeypatch.setattr(cuda_graph, "_Graph", RunAnew)
    monkeypatch.setattr("lacova.training.loader.PASS_BATCHES", 1)  # as on a GPU
    vae, options, loader = built(name, cap)
    results = []

    def run(indexed, weight):
        large = indexed.gather()
        eps = draw_eps(vae, options, large.batch)
        results.append((eps, results_of(vae, options, large, eps)))
        return results[-1][1][0]

    graphs = Captured(run, torch.Generator(), 7)
    for batches in (lambda: loader.epoch(vae, 0), lambda: loader.in_order(vae, masked=False)):
        plain = list(batches())
        loader.by_reference = True  # as on a GPU
        for training_batch, indexed in zip(plain, batches(), strict=True):
            graphs(indexed, 1.0)
            eps, by_reference = results[-1]
            direct = results_of(vae, options, training_batch, eps.rows(slice(len(training_batch.batch))))
            for one, other in zip(by_reference, direct, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
        loader.by_reference = False


def test_what_cannot_be_captured_is_done_batch_by_batch(monkeypatch, caplog):
    """The weights are those of a step that was never to be captured."""

    def broken(run, generator, training_batch, sizes):
        run(training_batch, 1.0)  # the warm-up moves the weights
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(cuda_graph, "_Graph", broken)
    weights = []
    for capture in (False, True):
        vae, options, loader = built("patients", None)
        step = step_of(vae, options, loader, capture=False)
        if capture:
            step.take = captured(step, step.take, 7, snapshot=step.snapshot)
        weights.append(weights_after_an_epoch(step, loader))
    assert "taken one by one: operation not permitted" in caplog.text
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value, rtol=0, atol=0)


def step_of(vae, options, loader, capture):
    return Step(vae, replace(options, capture=capture), loader.units, loader.length, loader.device)


def weights_after_an_epoch(step, loader):
    for number, training_batch in enumerate(loader.epoch(step.vae, 0)):
        step.seed(number)
        step.take(training_batch, 1.0)
    return {name: value.clone() for name, value in step.vae.state_dict().items()}


def spoiled(take, how):
    """Return what takes a step, and then does something that no recording survives."""
    others = [torch.cuda.CUDAGraph()]
    with torch.cuda.graph(others[0]):
        torch.ones(1, device="cuda").add(1.0)

    def run(training_batch, weight):
        values = take(training_batch, weight)
        if torch.cuda.is_current_stream_capturing():
            torch.ones(1).cuda().item() if how == "waits" else others.clear()
        return values

    return run


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("spoil", ["waits", "frees"])
def test_a_recording_that_fails_leaves_nothing_behind(caplog, spoil):
    """Recording fails where the host waits or another graph is freed; the steps are then those of an eager step."""
    weights = []
    for capture in (False, True):
        vae, options, loader = built("patients", None, "cuda")
        step = step_of(vae, options, loader, capture)
        if capture:
            step.take.run = spoiled(step.take.run, spoil)
        weights.append(weights_after_an_epoch(step, loader))
    assert "taken one by one" in caplog.text
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value, rtol=1e-9, atol=1e-9)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_another_models_graph_is_not_collected_while_one_is_recorded(caplog):
    """A graph is part of cycles, which Python may collect at any time: here, in the middle of the recording."""

    def collecting(take):
        def run(training_batch, weight):
            if torch.cuda.is_current_stream_capturing() and gc.isenabled():
                gc.collect()
            return take(training_batch, weight)

        return run

    before = gc.get_threshold()
    gc.set_threshold(0)  # no collection but those of this test
    try:
        for _ in range(2):
            vae, options, loader = built("rows", None, "cuda")
            step = step_of(vae, options, loader, capture=True)
            step.take.run = collecting(step.take.run)
            step.seed(0)
            step.take(next(iter(loader.epoch(vae, 0))), 1.0)
            assert step.take._graphs
            del step
        assert gc.isenabled()
    finally:
        gc.set_threshold(*before)
    assert "taken one by one" not in caplog.text


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("cap", [1, None])
@pytest.mark.parametrize("name", [name for name in MODELS if name != "patients, weighted"])  # which is not captured
def test_a_captured_step_gives_the_weights_of_an_eager_one(name, cap):
    """After two epochs; the eager step takes the same padded batches."""
    (one, options, loader), (two, _, _) = built(name, cap, "cuda"), built(name, cap, "cuda")
    graph, eager = (step_of(vae, options, loader, capture) for vae, capture in ((one, True), (two, False)))
    start = {part: value.clone() for part, value in one.state_dict().items()}
    number = 0
    for epoch in (0, 1):
        for training_batch in loader.epoch(one, epoch):
            graph.seed(number)
            eager.seed(number)
            values = graph.take(training_batch, 1.0).clone()
            expected = eager.take(padded(training_batch, graph.take._graphs[kind_of(training_batch)].sizes, 7), 1.0)
            torch.testing.assert_close(values, expected, rtol=1e-7, atol=1e-7)
            number += 1
    for part, value in one.state_dict().items():
        torch.testing.assert_close(value, two.state_dict()[part], rtol=1e-6, atol=1e-7)
    assert not torch.equal(one.decoder.network[0].weight, start["decoder.network.0.weight"])


def test_lines_that_only_fill_up_a_shape_hold_levels():
    """They repeat the first row, whose missing category would else hold a draw of a number, beyond all levels."""
    vae, options, loader = built("rows", None)
    training_batch = next(loader.epoch(vae, 0))
    sizes = {part: size + 3 for part, size in sizes_of(training_batch).items()}
    large = padded(training_batch, sizes, 7)
    categorical = vae.space.categorical
    batch = replace(large.batch, x_mask=large.batch.x_mask.clone())
    batch.x_mask[0, categorical] = False
    eps = vae.draw_eps(batch, options.draws, torch.Generator().manual_seed(0))
    q_x = vae.covariate_posterior(batch)
    far = replace(q_x, mean=q_x.mean + 50.0)
    x = large.plan.scenarios(far, batch, vae.space, eps).x[:, categorical]
    assert categorical
    assert bool((x == x.round()).all())
    assert bool(((x >= 0) & (x < vae.space.max_levels)).all())
