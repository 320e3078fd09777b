"""Compare sampled and exact expectations over missing covariates: the time and the variance of a gradient.

    python benchmarks/expectations.py [--rows 1000] [--repeats 30]

The variance is that of the gradient on one batch of 100 rows of rotated digits (set 2, 20% missing), summed over a
group of parameters and divided by the squared norm of its mean.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

import lacova
from lacova.data.batches import Batches
from lacova.datasets import mask_at_random, rotated_digits
from lacova.inference.objective import elbo


def relative_variance(gradients: list[torch.Tensor]) -> float:
    stack = torch.stack(gradients).double()
    return float(stack.var(0).sum() / stack.mean(0).square().sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=30)
    options = parser.parse_args()
    complete, schema = rotated_digits(2, options.rows)
    table = mask_at_random(complete, list(schema.columns), 0.2, 1)
    for expectation in ("sample", "exact"):
        model = lacova.GPPriorVAE(schema, networks="dense-digits", scaling="none", expectation=expectation)
        vae = model.fit(table, max_epochs=8, batch_size=50, device="cpu").vae
        batch = Batches(model.encode(table)).batch(torch.arange(100))
        generator, times = torch.Generator().manual_seed(0), []
        gradients: dict[str, list[torch.Tensor]] = {"covariate posterior": [], "kernel": []}
        for _ in range(options.repeats):
            start = time.perf_counter()
            vae.zero_grad()
            (-elbo(vae, batch, generator).elbo / options.rows).backward()
            times.append(1000 * (time.perf_counter() - start))
            for name, part in (("covariate posterior", vae.covariate_posterior), ("kernel", vae.prior)):
                gradients[name].append(torch.cat([p.grad.flatten() for p in part.parameters()]))
        figures = ", ".join(f"{name} {relative_variance(parts):.4f}" for name, parts in gradients.items())
        print(f"{expectation:7s} {statistics.median(times):7.1f} ms a gradient; relative variance: {figures}")


if __name__ == "__main__":
    main()
