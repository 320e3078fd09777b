"""Masks that are made before their epoch begins."""

from __future__ import annotations

import torch

from lacova.training.training_batch import tensors
from tests.training.test_cuda_graph import built


def test_masks_computed_ahead_are_those_of_the_epoch():
    """With the prior on the host, an epoch ends with the masks of the next; a prior that changes makes new ones."""
    loaders = []
    for ahead in (False, True):
        vae, _, loader = built("patients", None)
        if ahead:
            loader._host_prior = vae.covariate_prior  # as on a GPU
        loaders.append(loader)
    for epoch in (0, 1, 2):
        if epoch == 2:
            vae.covariate_prior.generators.mul_(2.0)
            for loader in loaders:
                loader.condition(vae)
        for loader in loaders:
            list(loader.epoch(vae, epoch))
        for one, other in zip(*(tensors(loader.masked_table) for loader in loaders), strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0)
    assert loaders[1]._ahead[0] == 3
