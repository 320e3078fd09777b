"""Batches in larger buffers count the same, and a captured step takes the same path as an eager one."""

from __future__ import annotations

import gc
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

import lacova
import lacova.training.cuda_graph
from lacova.covariates.masked_loss import masking_rate
from lacova.data.encoder import TableEncoder
from lacova.training.cuda_graph import Captured, _kind, _sizes, padded
from lacova.training.loader import TableLoader
from lacova.training.options import FitOptions
from lacova.training.step import Step, estimate, values

MODELS = {
    "cvae": lambda s: lacova.CVAE(s, latent_dim=2),
    "conditional": lambda s: lacova.CVAE(s, latent_dim=2, latent_prior="conditional"),
    "rows": lambda s: lacova.GPPriorVAE(s, prior="gp(day) + gp(age):cat(sex)", latent_dim=2, inducing=5),
    "rows, exact": lambda s: lacova.GPPriorVAE(
        s, prior="gp(day) + gp(age):cat(sex)", latent_dim=2, inducing=5, expectation="exact"
    ),
    "patients": lambda s: lacova.GPPriorVAE(s, latent_dim=2, inducing=5),
    "patients, constant levels": lambda s: lacova.GPPriorVAE(s, latent_dim=2, inducing=5, patient_effects="intercept"),
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
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 6, 12)
    patient = np.repeat(np.arange(12), counts)
    n = len(patient)
    table = pd.DataFrame({
        "id": patient, "day": rng.normal(size=n), "age": rng.normal(size=12)[patient],
        "sex": rng.choice(["f", "m"], 12)[patient], "dose": rng.choice(["a", "b", "c"], n),
        "alt": rng.normal(size=n), "ast": rng.normal(size=n),
    })  # fmt: skip
    gaps = rng.random((n, 6)) < 0.3
    gaps[:, 1:3] = gaps[:12, 1:3][patient]
    table.iloc[:, 1:] = table.iloc[:, 1:].mask(gaps)
    return table


SCHEMA = lacova.Schema(
    ["alt", "ast"], {"day": "continuous", "age": "continuous", "sex": "categorical", "dose": "categorical"},
    instance="id", time="day", static=("age", "sex"),
)  # fmt: skip


def training_batch_of(make, cap, device="cpu"):
    table = visits()
    schema = SCHEMA if "patients" in make else replace(SCHEMA, instance=None, time=None, static=())
    model = MODELS[make](schema)
    encoder = TableEncoder.learn(model.schema, table)
    encoded = encoder.encode(table, dtype=torch.float64)
    torch.manual_seed(0)
    vae = model._assemble(encoder, encoded, 0).double().to(device)
    importance = 4 if "weighted" in make or "miwae" in make else 1
    recall = float(model.covariates == "joint")
    options = FitOptions(
        batch_size=7, masked_loss=recall, cap=cap, max_epochs=1, importance=importance, encoder_dropout=0.4
    )
    rows = TableLoader(encoded, masking_rate(encoded), options, torch.device(device))
    rows.condition(vae)
    return vae, options, rows


@pytest.mark.parametrize("cap", [1, None])
@pytest.mark.parametrize("make", MODELS)
def test_padding_counts_for_nothing(make, cap):
    """Terms, natural statistics and gradients of a batch, and of the same batch in larger tensors."""
    vae, options, rows = training_batch_of(make, cap)
    for training_batch in rows.epoch(vae, 0):
        sizes = {name: size + 3 for name, size in _sizes(training_batch).items()}
        if not len(training_batch.how.line):
            sizes["pairs"] = 0
        if not len(training_batch.how.open):
            sizes["open"] = 0
        large = padded(training_batch, sizes, 7)
        noise = vae.draw_eps(large.shown, options.draws, torch.Generator().manual_seed(0), options.encoder_dropout)
        small = noise.rows(slice(len(training_batch.shown)))
        found = []
        for batch, numbers in ((training_batch, small), (large, noise)):
            terms, asked = estimate(vae, batch, numbers, options.importance > 1)
            vae.zero_grad()
            (terms.elbo + asked).backward()
            parts = [values(terms, asked), *(p.grad for p in vae.parameters() if p.grad is not None)]
            found.append([*parts, *(terms.statistics or ())])
        for one, two in zip(*found, strict=True):
            torch.testing.assert_close(two, one, rtol=1e-9, atol=1e-9)


def test_what_cannot_be_captured_is_done_batch_by_batch(monkeypatch, caplog):
    """As if nothing had been tried: the same weights as by a step that never meant to capture."""
    weights = []
    for capture in (False, True):
        vae, options, rows = training_batch_of("patients", None)

        def broken(run, generator, training_batch, sizes):
            run(training_batch, 1.0)  # the warm-up moves the weights
            raise RuntimeError("operation not permitted when stream is capturing")

        monkeypatch.setattr(lacova.training.cuda_graph, "_Graph", broken)
        step = Step(vae, options, rows.units, rows.length, rows.device)
        if capture:
            step._run = Captured(step._take, step.noise, 7, step._undo, step._give_up)
        for number, training_batch in enumerate(rows.epoch(vae, 0)):
            step(training_batch, number, 1.0)
        weights.append({name: value.clone() for name, value in vae.state_dict().items()})
    assert "taken one by one: operation not permitted" in caplog.text
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value, rtol=0, atol=0)


def step_of(vae, options, rows, capture):
    return Step(vae, replace(options, capture=capture), rows.units, rows.length, rows.device)


def spoiled(step, how):
    """What the step does, and something that no recording survives."""
    others = [torch.cuda.CUDAGraph()]
    with torch.cuda.graph(others[0]):
        torch.ones(1, device="cuda").add(1.0)

    def run(training_batch, weight):
        loss = step._take(training_batch, weight)
        if torch.cuda.is_current_stream_capturing():
            torch.ones(1).cuda().item() if how == "waits" else others.clear()
        return loss

    return run


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("spoil", ["waits", "frees"])
def test_a_recording_that_fails_leaves_nothing_behind(caplog, spoil):
    """Where the host waits, or another graph is freed; taken one by one, steps are those of who never meant to."""
    weights = []
    for capture in (False, True):
        vae, options, rows = training_batch_of("patients", None, "cuda")
        step = step_of(vae, options, rows, capture)
        if capture:
            step._run.run = spoiled(step, spoil)
        for number, training_batch in enumerate(rows.epoch(vae, 0)):
            step(training_batch, number, 1.0)
        weights.append({name: value.clone() for name, value in vae.state_dict().items()})
    assert "taken one by one" in caplog.text
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value, rtol=1e-9, atol=1e-9)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_another_models_graph_is_not_collected_while_one_is_recorded(caplog):
    """It stands in cycles, which Python may collect at any time: here, in the middle of the recording."""

    def collects(step):
        def run(training_batch, weight):
            if torch.cuda.is_current_stream_capturing() and gc.isenabled():
                gc.collect()
            return step._take(training_batch, weight)

        return run

    usual = gc.get_threshold()
    gc.set_threshold(0)  # not by itself
    try:
        for _ in range(2):
            vae, options, rows = training_batch_of("rows", None, "cuda")
            step = step_of(vae, options, rows, True)
            step._run.run = collects(step)
            step(next(iter(rows.epoch(vae, 0))), 0, 1.0)
            assert step._run._graphs
            del step
        assert gc.isenabled()
    finally:
        gc.set_threshold(*usual)
    assert "taken one by one" not in caplog.text


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("cap", [1, None])
@pytest.mark.parametrize("make", [name for name in MODELS if name != "patients, weighted"])  # which is not captured
def test_a_captured_step_takes_the_path_of_an_eager_one(make, cap):
    """The same weights after two epochs, the eager step being given the batches in the same buffers."""
    (one, options, rows), (two, _, _) = training_batch_of(make, cap, "cuda"), training_batch_of(make, cap, "cuda")
    captured, eager = (step_of(vae, options, rows, capture) for vae, capture in ((one, True), (two, False)))
    start = {name: value.clone() for name, value in one.state_dict().items()}
    number = 0
    for epoch in (0, 1):
        for training_batch in rows.epoch(one, epoch):
            got = captured(training_batch, number, 1.0).clone()
            want = eager(padded(training_batch, captured._run._graphs[_kind(training_batch)].sizes, 7), number, 1.0)
            torch.testing.assert_close(got, want, rtol=1e-7, atol=1e-7)
            number += 1
    for name, value in one.state_dict().items():
        torch.testing.assert_close(value, two.state_dict()[name], rtol=1e-6, atol=1e-7)
    assert not torch.equal(one.decoder.network[0].weight, start["decoder.network.0.weight"])
