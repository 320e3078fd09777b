"""Milliseconds per training step: the GP prior and the plain prior with the same networks, in one run.

python benchmarks/training_step.py [--rows 1000] [--steps 30]
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

import lacova
from lacova.batches import Batches
from lacova.datasets import mask_at_random, rotated_digits
from lacova.objective import elbo


def median_step(model: lacova.CVAE | lacova.GPPriorVAE, table, steps: int) -> float:
    _, vae = model._fitted()
    batches = Batches(model._encode(table), 100)
    generator = torch.Generator().manual_seed(0)
    optimiser = torch.optim.Adam(vae.parameters(), fused=True)
    times = []
    for k in range(steps + 3):
        batch = next(batches.shuffled(generator))
        start = time.perf_counter()
        terms = elbo(vae, batch, generator)
        optimiser.zero_grad()
        (-terms.elbo / len(table)).backward()
        optimiser.step()
        if terms.statistics is not None:
            vae.prior.inducing.natural_step(terms.statistics, 0.1)
        if k >= 3:
            times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    complete, schema = rotated_digits(1, options.rows)
    masked = mask_at_random(complete, list(schema.columns), 0.2, 1)
    settings = {"latent_dim": 8, "networks": "dense-digits", "scaling": "none"}
    plain = median_step(lacova.CVAE(schema, **settings).fit(complete, max_epochs=1), complete, options.steps)
    print(f"{'CVAE, complete X':32s} {plain:8.1f} ms   1.00×")
    for name, kind, table, extra in (
        ("CVAE, 20% of X missing", lacova.CVAE, masked, {}),
        ("GP prior, complete X", lacova.GPPriorVAE, complete, {}),
        ("GP prior, 20% of X missing", lacova.GPPriorVAE, masked, {}),
        ("the same, exact expectations", lacova.GPPriorVAE, masked, {"expectation": "exact"}),
    ):
        value = median_step(kind(schema, **settings, **extra).fit(table, max_epochs=1), table, options.steps)
        print(f"{name:32s} {value:8.1f} ms  {value / plain:5.2f}×")


if __name__ == "__main__":
    main()
