"""Batches in which rows are drawn: their size, and their random numbers."""

import numpy as np
import pandas as pd
import torch

import lacova
from lacova.data.table_encoder import TableEncoder
from lacova.inference.draws import CHUNK, chunks
from tests.tables import VISITS, visits


def test_patients_have_the_same_random_numbers_but_not_those_drawn_before():
    table = TableEncoder.learn(VISITS, visits(4)).encode(visits(4))
    generator = torch.Generator().manual_seed(0)
    shared = torch.randn(3, generator=generator)
    own = [torch.randn(3, generator=generator) for _ in chunks(table, 1, generator)]
    assert len(own) == 4
    assert all(torch.equal(own[0], other) for other in own)
    assert not torch.equal(own[0], shared)


def test_a_small_table_is_scored_in_little_memory():
    """A GP prior holds far more numbers per row and draw than are decoded; batches count them."""
    rng = np.random.default_rng(0)
    patient = np.repeat(np.arange(50), 4)
    frame = pd.DataFrame({"id": patient, "day": rng.uniform(0, 9, 200), "a": rng.normal(0, 1, 200)})
    model = lacova.GPPriorVAE(lacova.Schema(["a"], {}, "id", "day"), latent_dim=4, inducing=40)
    model.fit(frame, max_epochs=1)
    sizes = []
    sample = model.vae.prior.sample
    model.vae.prior.sample = lambda x, *rest: sizes.append(len(x)) or sample(x, *rest)
    model.score(frame, draws=500)
    assert sum(sizes) == 200  # covariates without gaps are the same in all draws
    sizes.clear()
    model.score(frame.assign(day=frame["day"].mask(frame.index % 4 == 0)), draws=500)
    assert sum(sizes) == 500 * 200
    assert max(sizes) * 4 * 40 <= CHUNK
