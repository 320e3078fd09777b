"""Measure the cost of a training step, as a ratio to a plain VAE step with the same networks in the same run.

    python benchmarks/steps.py [--device cpu] [--steps 60] [--only W1,W2] [--compile] [--profile] [--out bench.json]

W1  N=4000 images of 36×36, small convolutions, 4 covariates with 20% missing, L=32, M=60, 50 rows a batch.
W2  200 patients of 20 visits, the same networks, L=32, M=120, 5 patients a batch (D̂⁴); "ragged" has 5 to 35 visits.
CDISC, PBC  the default model of a clinical table, 10 patients a batch; with the folder of the study data (LACOVA_DATA).
conv, dense  the paper's networks, 200 rows a batch, L=8, M=60, exact expectations: for a GPU.
fit  a fit of rotated digits for 300 epochs with the paper's convolutions; also less the time of a fit of 1 epoch.
import  `import lacova` against `import torch, pandas, sklearn`.

The plain VAE has the same encoder and decoder, a standard normal prior and no model of the covariates. Steps of
both kinds alternate, so that other load on the machine affects both. Times are medians; on the CPU, of the processor
time of one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

import lacova
from lacova.covariates.masked_loss import masking_rate
from lacova.data.table_encoder import TableEncoder
from lacova.datasets import mask_at_random, rotated_digits
from lacova.models.builder import build
from lacova.training.accelerate import COMPILE
from lacova.training.cuda_graph import Captured
from lacova.training.loader import TableLoader
from lacova.training.options import FitOptions
from lacova.training.step import Step
from lacova.training.training_batch import AnyBatch, TrainingBatch

SMALL = lacova.Conv((36, 36), (16, 32), (32, 16), (300, 30), (30, 300))
TARGETS = {"W1": 1.4, "W2": 1.7, "conv": 1.35, "dense": 4.0}


def digits(rows: int) -> tuple[pd.DataFrame, lacova.Schema]:
    complete, schema = rotated_digits(3, rows)
    return mask_at_random(complete, list(schema.columns), 0.2, 1), schema


def patients(counts: np.ndarray) -> tuple[pd.DataFrame, lacova.Schema]:
    """Return random numbers in the shape of the Health MNIST study: the cost of a step does not depend on them."""
    rng = np.random.default_rng(0)
    patient, n = np.repeat(np.arange(len(counts)), counts), int(counts.sum())
    age = np.concatenate([np.arange(c) for c in counts]).astype(float)
    table = pd.DataFrame({"id": patient, "age": age, "onset": age - 9 + rng.normal(size=n)})
    categories = ["sex", "disease", "location"]
    for name in categories:
        table[name] = rng.choice(["a", "b"], len(counts))[patient]
    pixels = [f"p{k}" for k in range(36 * 36)]
    table = pd.concat([table, pd.DataFrame(rng.normal(size=(n, len(pixels))), columns=pixels)], axis=1)
    schema = lacova.Schema(
        pixels, {"age": "continuous", "onset": "continuous", **dict.fromkeys(categories, "categorical")},
        instance="id", time="age", static=tuple(categories),
    )  # fmt: skip
    return mask_at_random(table, ["onset", *pixels], 0.2, 1), schema


class Pair:
    """The two kinds of step of a workload, with separate parameters."""

    def __init__(
        self, table: pd.DataFrame, schema: lacova.Schema, model: lacova.GPPriorVAE, batch: int, device: torch.device,
        compiled: bool,
    ) -> None:  # fmt: skip
        encoder = TableEncoder.learn(schema, table, model.scaling)
        encoded = encoder.encode(table)
        torch.manual_seed(0)
        self.vae = build(model, encoder, encoded, 0).to(device)
        options = FitOptions(batch_size=batch, masked_loss=1.0, compile=compiled)
        self.loader = TableLoader(encoded, masking_rate(encoded), options, device)
        self.loader.condition(self.vae)
        self.step = Step(self.vae, options, self.loader.units, self.loader.length, device)
        self.decoder = model.networks.build_decoder(model.latent_dim, self.vae.measurements.output_width).to(device)
        parts = [*self.vae.encoder.parameters(), *self.decoder.parameters(), *self.vae.likelihood.parameters()]
        self.plain_optimiser = torch.optim.AdamW(parts, lr=1e-3, fused=True, capturable=device.type == "cuda")
        self.generator = torch.Generator(device)
        self.epoch = self.number = 0
        self.training_batches, self.plain_batches = self._training_batches(), self._plain_batches()
        self.plain: Callable[[AnyBatch, float], Tensor] = self._plain
        if device.type == "cuda":
            loss = torch.compile(self._loss, dynamic=False, options=COMPILE) if compiled else self._loss
            self.plain = Captured(lambda training_batch, _: self._take(loss, training_batch), self.generator, batch)

    def _training_batches(self) -> Iterator[AnyBatch]:
        while True:
            yield from self.loader.epoch(self.vae, self.epoch)
            self.epoch += 1

    def _plain_batches(self) -> Iterator[AnyBatch]:
        """Yield batches for the plain VAE, which masks no covariates anew."""
        while True:
            yield from self.loader.epoch(self.vae, self.epoch)

    def _plain(self, training_batch: AnyBatch, weight: float) -> Tensor:
        return self._take(self._loss, training_batch)

    def _take(self, loss: Callable[[TrainingBatch, Tensor], Tensor], indexed: AnyBatch) -> Tensor:
        training_batch = indexed.gather()
        batch = training_batch.batch
        eps = torch.randn(len(batch), self.vae.latent_dim, generator=self.generator, device=batch.x.device)
        value = loss(training_batch, eps)
        self.plain_optimiser.zero_grad(set_to_none=True)
        value.backward()
        self.plain_optimiser.step()
        return value.detach()

    def _loss(self, training_batch: TrainingBatch, eps: Tensor) -> Tensor:
        batch = training_batch.batch
        mean, var = self.vae.latents(batch)[:2]
        fit = self.vae.likelihood.log_prob(self.decoder(mean + var.sqrt() * eps), batch.y, batch.y_mask).sum()
        return 0.5 * (var + mean**2 - 1.0 - var.log()).sum() - fit

    def run(self, kind: str, training_batch: AnyBatch) -> None:
        if kind == "plain":
            self.plain(training_batch, 1.0)
        else:
            self.step.seed(self.number)
            self.step.take(training_batch, 1.0)
            self.number += 1


def measure(pair: Pair, steps: int, device: torch.device) -> dict[str, float]:
    """Return milliseconds per step. On a GPU, blocks of steps are timed, with batches, after everything is captured."""
    block = 20 if device.type == "cuda" else 1
    spent: dict[str, list[float]] = {"plain": [], "gp": []}
    for _ in range(5):
        training_batch = next(pair.training_batches)
        for kind in spent:
            pair.run(kind, training_batch)
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    for _ in range(max(1, steps // block)):
        for kind, times in spent.items():
            _synchronise(device)
            start = clock()
            for _ in range(block):
                pair.run(kind, next(pair.training_batches if kind == "gp" else pair.plain_batches))
            _synchronise(device)
            times.append((clock() - start) / block)
    plain, gp = (1000 * statistics.median(spent[kind]) for kind in ("plain", "gp"))
    return {"plain_ms": plain, "gp_ms": gp, "ratio": gp / plain}


def profiled(pair: Pair, device: torch.device, steps: int = 10) -> str:
    """Return a table of calls per step and share of the time by operation; on a GPU, of kernels."""
    from torch.profiler import ProfilerActivity, profile

    gpu = device.type == "cuda"
    for _ in range(45 if gpu else 5):
        pair.run("gp", next(pair.training_batches))
    training_batches = [next(pair.training_batches) for _ in range(steps)]
    with profile(activities=[ProfilerActivity.CUDA if gpu else ProfilerActivity.CPU]) as profiler:
        for training_batch in training_batches:
            pair.run("gp", training_batch)
        _synchronise(device)
    spent = [
        (event.self_device_time_total if gpu else event.self_cpu_time_total, event.count, event.key)
        for event in profiler.key_averages()
    ]
    spent = sorted((operation for operation in spent if operation[0] > 0), reverse=True)
    total, calls = (sum(operation[k] for operation in spent) for k in (0, 1))
    lines = [f"  {calls / steps:.0f} {'kernels' if gpu else 'calls'}, {total / steps / 1000:.2f} ms a step"]
    lines += [f"  {time / total:6.1%} {count / steps:7.1f}  {name[:90]}" for time, count, name in spent[:16]]
    return "\n".join(lines)


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def step_workloads(device: torch.device, compiled: bool) -> dict[str, Callable[[], Pair]]:
    def pair(data: tuple[pd.DataFrame, lacova.Schema], batch: int, **settings: Any) -> Pair:
        return Pair(*data, lacova.GPPriorVAE(data[1], scaling="none", **settings), batch, device, compiled)

    small: dict[str, Any] = {"networks": SMALL, "latent_dim": 32}
    paper: dict[str, Any] = {"latent_dim": 8, "inducing": 60, "expectation": "exact"}
    ragged = np.random.default_rng(1).integers(5, 36, 200)
    workloads = {
        "W1": lambda: pair(digits(4000), 50, inducing=60, **small),
        "W2": lambda: pair(patients(np.full(200, 20)), 5, inducing=120, **small),
        "W2 ragged": lambda: pair(patients(ragged), 5, inducing=120, **small),
    }
    if folder := os.environ.get("LACOVA_DATA"):
        sys.path.insert(0, str(Path(__file__).parents[1]))
        from reproduction.clinical.tasks import task

        for name in ("CDISC", "PBC"):
            one = task("impute", name.lower(), 0.2, 10, Path(folder))
            model = lacova.GPPriorVAE(one.schema)
            workloads[name] = partial(Pair, one.train, one.schema, model, 10, device, compiled)
    if device.type == "cuda":
        workloads |= {
            "conv": lambda: pair(digits(4000), 200, networks="rotated-digits", **paper),
            "dense": lambda: pair(digits(4000), 200, networks="dense-digits", **paper),
        }
    return workloads


def time_fit(device: torch.device, compiled: bool) -> dict[str, float]:
    """Return the seconds of a fit of 300 epochs, also less those of one epoch: set-up, capture, compilation."""
    table, schema = digits(4400)

    def seconds(epochs: int) -> float:
        model = lacova.GPPriorVAE(schema, networks="rotated-digits", latent_dim=8, scaling="none")
        start = time.perf_counter()
        model.fit(
            table[:4000], table[4000:], max_epochs=epochs, patience=300, batch_size=200, device=str(device),
            progress=False, compile=compiled,
        )  # fmt: skip
        _synchronise(device)
        return time.perf_counter() - start

    first = seconds(1)  # nothing is in the compiler's cache yet
    total, again = seconds(300), seconds(1)
    return {"first_epoch_s": first, "seconds": total, "one_epoch_s": again, "aside_s": total - again}


def imports() -> dict[str, float]:
    def seconds(code: str) -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        return time.perf_counter() - start

    seconds("import lacova, sklearn")  # warms the file cache
    pairs = [(seconds("import lacova"), seconds("import torch, pandas, sklearn")) for _ in range(5)]
    ours, theirs = (statistics.median(column) for column in zip(*pairs, strict=True))
    return {"lacova_s": ours, "others_s": theirs, "ratio": ours / theirs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--only", default="", help="names, separated by commas")
    parser.add_argument("--compile", action="store_true", help="compile the loss (CUDA)")
    parser.add_argument("--profile", action="store_true", help="only print a profile of the GP steps")
    parser.add_argument("--out", help="file for the figures as JSON")
    options = parser.parse_args()
    device = torch.device(options.device)
    torch.set_num_threads(1)
    wanted = options.only.split(",") if options.only else None
    results: dict[str, dict[str, float]] = {}

    def report(name: str, figures: dict[str, float]) -> None:
        results[name] = figures
        target = f"  target {TARGETS[name]}" if name in TARGETS else ""
        print(f"{name:10s} " + "  ".join(f"{k} {v:.4g}" for k, v in figures.items()) + target, flush=True)

    for name, make in step_workloads(device, options.compile).items():
        if options.profile and (wanted is None or name in wanted):
            print(f"{name}\n{profiled(make(), device)}", flush=True)
        elif wanted is None or name in wanted:
            figures = measure(make(), options.steps, device)
            figures["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            report(name, figures)
    if options.profile:
        return
    if (wanted is None and device.type == "cuda") or (wanted and "fit" in wanted):
        report("fit", time_fit(device, options.compile))
    if wanted is None or "import" in wanted:
        report("import", imports())
    if options.out:
        with open(options.out, "w", encoding="utf-8") as file:
            json.dump({"device": str(device), "torch": torch.__version__, "workloads": results}, file, indent=2)


if __name__ == "__main__":
    main()
