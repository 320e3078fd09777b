"""Measure training from Parquet files that do not fit into memory, on generated longitudinal data.

    python benchmarks/large.py generate FILE [--patients 1000000] [--visits 10] [--row-group 20000] [--seed 0]
    python benchmarks/large.py measure [--rows 10000 100000 1000000 10000000] [--steps 300] [--compare 100000]

`measure` writes a file of each size and removes it afterwards. For each size, a new process makes the first pass, takes
training steps, over as many epochs as they need, and records its peak memory. The program prints a JSON line for each,
then a table. Milliseconds per step are the median processor time of the training thread, which other programs on the
machine affect little, and the mean wall time, waiting for rows included.

`--compare` compares rows per second over full epochs of that many rows, streamed and in memory, by wall time and by
processor time, preparation of rows included; the best of `--repeats`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch

import lacova
from lacova.models.builder import build
from lacova.models.fitting import read_training_data
from lacova.training.distributed import SINGLE
from lacova.training.options import FitOptions
from lacova.training.step import Step

MEASUREMENTS, NUMBERS, CATEGORIES = 30, 6, 3  # with the day, 10 covariates
GAPS = 0.2


def schema() -> lacova.Schema:
    kinds = {f"x{k}": "continuous" for k in range(NUMBERS)} | {f"c{k}": "categorical" for k in range(CATEGORIES)}
    names = [f"y{k}" for k in range(MEASUREMENTS)]
    return lacova.Schema(names, kinds, instance="id", time="day", static=["x0", "c0", "c1"])


def visits(patients: int, per_patient: int, first: int, seed: int) -> pd.DataFrame:
    """Simulate patients, numbered from `first`, with one to 2 `per_patient` − 1 visits each."""
    rng = np.random.default_rng([seed, first])
    count = rng.integers(1, 2 * per_patient, patients)
    who = np.repeat(np.arange(patients), count)
    n = len(who)
    age, sex, arm = rng.normal(50, 12, patients), rng.integers(0, 2, patients), rng.integers(0, 3, patients)
    day = rng.uniform(0, 365, n).round()
    effects = rng.normal(size=(patients, 4))
    state = np.stack([np.sin(day / 60), day / 365, age[who] / 50, sex[who]], axis=1) + 0.5 * effects[who]
    loading = np.random.default_rng(seed).normal(size=(4, MEASUREMENTS))
    y = 10 + state @ loading + rng.normal(0, 0.3, (n, MEASUREMENTS))
    x = 0.6 * state @ np.random.default_rng(seed + 1).normal(size=(4, NUMBERS - 1)) + rng.normal(size=(n, NUMBERS - 1))
    columns = {"id": first + who, "day": day, "x0": age[who]}
    columns |= {f"x{k + 1}": x[:, k] for k in range(NUMBERS - 1)}
    columns |= {"c0": np.array(["f", "m"])[sex[who]], "c1": np.array(["a", "b", "c"])[arm[who]]}
    columns |= {"c2": np.array(["none", "mild", "severe"])[np.digitize(x[:, 0] + 0.5 * rng.normal(size=n), [0.5, 2])]}
    columns |= {f"y{k}": y[:, k] for k in range(MEASUREMENTS)}
    frame = pd.DataFrame(columns)
    for name in frame.columns.drop("id"):
        frame.loc[rng.random(n) < GAPS, name] = None
    return frame


def generate(path: Path, patients: int, per_patient: int, row_group: int, seed: int) -> int:
    """Write a file, some patients at a time, and return the number of rows."""
    rows, at_a_time = 0, max(1, row_group // per_patient)
    writer = None
    for first in range(0, patients, at_a_time):
        table = pa.Table.from_pandas(
            visits(min(at_a_time, patients - first), per_patient, first, seed), preserve_index=False
        )
        writer = pq.ParquetWriter(path, table.schema) if writer is None else writer
        writer.write_table(table, row_group_size=row_group)
        rows += len(table)
    assert writer is not None
    writer.close()
    return rows


def peak_memory() -> float:
    """Return the peak memory of this process in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


class Run:
    """A model that is ready to train on a file, streamed or in memory."""

    def __init__(self, path: Path, streamed: bool, device: str, batch_size: int, buffer_rows: int) -> None:
        torch.manual_seed(0)
        self.options = FitOptions(batch_size=batch_size, masked_loss=1.0, buffer_rows=buffer_rows)
        self.model = lacova.GPPriorVAE(schema(), latent_dim=8)
        begin = time.perf_counter()
        where = torch.device(device)
        rows = path if streamed else pd.read_parquet(path)
        data = read_training_data(self.model, rows, None, self.options, where, SINGLE)
        self.first_pass = time.perf_counter() - begin
        self.vae = build(self.model, data.encoder, data.table, 0).to(where)
        self.loader = data.train
        self.loader.condition(self.vae)
        self.ready = time.perf_counter() - begin
        self.step = Step(self.vae, self.options, self.loader.units, self.loader.length, where)

    def train(self, steps: int, count_first_wait: bool = False) -> tuple[list[float], float, float]:
        """Take steps; return the processor seconds of each in this thread, and the wall and processor seconds of all.

        `count_first_wait` includes the wait for the first batch, which recurs in every epoch.
        """
        self.vae.train()
        thread: list[float] = []
        begin, busy = time.perf_counter(), time.process_time()
        for epoch in itertools.count():
            for k, training_batch in enumerate(self.loader.epoch(self.vae, epoch)):
                if not thread and not count_first_wait:
                    begin, busy = time.perf_counter(), time.process_time()
                before = time.thread_time()
                self.step.seed(epoch * self.loader.steps + k)
                self.step.take(training_batch, 1.0)
                thread.append(time.thread_time() - before)
                if len(thread) == steps:
                    return thread, time.perf_counter() - begin, time.process_time() - busy
        raise AssertionError


def measure_one(options: argparse.Namespace) -> None:
    """Measure one file in this process and print a JSON line."""
    run = Run(options.file, options.way == "stream", options.device, options.batch_size, options.buffer_rows)
    run.train(3)
    steps = options.epochs * run.loader.steps or options.steps
    thread, wall, busy = run.train(steps, count_first_wait=options.epochs > 0)
    figures = {"way": options.way, "rows": run.loader.length, "patients": run.loader.units, "steps": steps}
    figures |= {"first_pass_s": run.first_pass, "ready_s": run.ready}
    figures |= {"step_cpu_ms": 1000 * statistics.median(thread), "step_ms": 1000 * wall / steps}
    rows = steps / run.loader.steps * run.loader.length
    figures |= {"rows_per_s": rows / wall, "rows_per_cpu_s": rows / busy, "resident_gb": peak_memory()}
    print(json.dumps(figures), flush=True)


def spawn(file: Path, way: str, options: argparse.Namespace, epochs: int = 0) -> dict[str, float]:
    """Measure one file in a process of its own."""
    command = [sys.executable, __file__, "one", str(file), way, "--epochs", str(epochs)]
    for name in ("steps", "device", "batch_size", "buffer_rows"):
        command += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    print(done.stdout.strip(), flush=True)
    return json.loads(done.stdout)


def measure(options: argparse.Namespace) -> None:
    folder = Path(options.folder or tempfile.mkdtemp())
    files = {rows: folder / f"large-{rows}.parquet" for rows in {*options.rows, options.compare} - {None}}
    for rows, file in files.items():
        if not file.exists():
            begin = time.perf_counter()
            generate(file, rows // options.visits, options.visits, options.row_group, options.seed)
            figures = {"generated": rows, "s": time.perf_counter() - begin, "gb": file.stat().st_size / 1e9}
            print(json.dumps(figures), flush=True)
    runs = [spawn(files[rows], "stream", options) for _ in range(options.repeats) for rows in options.rows]
    ways = []
    if options.compare:
        both = ("memory", "stream") * options.repeats
        ways = [spawn(files[options.compare], way, options, epochs=options.epochs) for way in both]
    for file in () if options.keep else files.values():
        file.unlink()
    names = ("first_pass_s", "step_cpu_ms", "step_ms", "resident_gb")
    print("".join(f"{name:>14}" for name in ("rows", "patients", *names)))
    for rows, patients in sorted({(r["rows"], r["patients"]) for r in runs}):
        best = [min(r[name] for r in runs if r["rows"] == rows) for name in names]
        print(f"{rows:14,}{patients:14,}" + "".join(f"{value:14.2f}" for value in best))
    for name in ("rows_per_s", "rows_per_cpu_s") if ways else ():
        memory, stream = (max(r[name] for r in ways if r["way"] == way) for way in ("memory", "stream"))
        print(f"{name}: {memory:.0f} in memory, {stream:.0f} streamed, {stream / memory:.2f} times as many")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    generating, measuring, single = (commands.add_parser(name) for name in ("generate", "measure", "one"))
    generating.add_argument("file", type=Path)
    generating.add_argument("--patients", type=int, default=1_000_000)
    measuring.add_argument("--folder", type=Path)
    measuring.add_argument("--rows", type=int, nargs="*", default=[10**4, 10**5, 10**6, 10**7])
    measuring.add_argument("--compare", type=int, help="rows to train on for full epochs, streamed and in memory")
    measuring.add_argument("--repeats", type=int, default=2, help="repetitions, of which the best counts")
    measuring.add_argument("--keep", action="store_true", help="keep the files")
    single.add_argument("file", type=Path)
    single.add_argument("way", choices=["stream", "memory"])
    for command in (generating, measuring):
        command.add_argument("--visits", type=int, default=10, help="mean number per patient")
        command.add_argument("--row-group", type=int, default=20_000)
        command.add_argument("--seed", type=int, default=0)
    for command in (measuring, single):
        command.add_argument("--epochs", type=int, default=0 if command is single else 1)
        command.add_argument("--steps", type=int, default=300)
        command.add_argument("--device", default="cpu")
        command.add_argument("--batch-size", type=int, default=20)
        command.add_argument("--buffer-rows", type=int, default=50_000)
    options = parser.parse_args()
    if options.command == "generate":
        rows = generate(options.file, options.patients, options.visits, options.row_group, options.seed)
        print(f"{rows:,} rows of {options.patients:,} patients in {options.file}")
    elif options.command == "measure":
        measure(options)
    else:
        measure_one(options)


if __name__ == "__main__":
    main()
