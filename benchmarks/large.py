"""Training from Parquet that does not fit memory: a generator of large longitudinal data, and what it costs.

python benchmarks/large.py generate FILE [--patients 1000000] [--visits 10] [--row-group 20000] [--seed 0]
python benchmarks/large.py measure [--folder DIR] [--rows 10000 100000 1000000 10000000] [--steps 60] [--keep]

`measure` writes a file of each size, removes it afterwards, and prints a JSON line per measurement, then a table: the
first pass over the rows, seconds per training step (median, and in all), resident memory. Each is a process of its
own. `--compare N` sets rows per second over whole epochs beside those of the same rows in memory.
"""

from __future__ import annotations

import argparse
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
from lacova.options import FitOptions
from lacova.step import Step

MEASUREMENTS, NUMBERS, CATEGORIES = 30, 6, 3  # with the day, 10 covariates
GAPS = 0.2


def schema() -> lacova.Schema:
    kinds = {f"x{k}": "continuous" for k in range(NUMBERS)} | {f"c{k}": "categorical" for k in range(CATEGORIES)}
    names = [f"y{k}" for k in range(MEASUREMENTS)]
    return lacova.Schema(names, kinds, instance="id", time="day", static=["x0", "c0", "c1"])


def visits(patients: int, per_patient: int, first: int, seed: int) -> pd.DataFrame:
    """Patients of one to twice `per_patient` − 1 visits, from the patient `first` on."""
    rng = np.random.default_rng([seed, first])
    count = rng.integers(1, 2 * per_patient, patients)
    who = np.repeat(np.arange(patients), count)
    n = len(who)
    age, sex, arm = rng.normal(50, 12, patients), rng.integers(0, 2, patients), rng.integers(0, 3, patients)
    day = rng.uniform(0, 365, n).round()
    own = rng.normal(size=(patients, 4))
    state = np.stack([np.sin(day / 60), day / 365, age[who] / 50, sex[who]], axis=1) + 0.5 * own[who]
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
    """Write a file, some patients at a time; returns the number of rows."""
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


def resident() -> float:
    """The most memory that this process has held, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


class Run:
    """A model that is ready to train on a file, streamed or in memory."""

    def __init__(self, path: Path, streamed: bool, device: str, batch_size: int, buffer_rows: int) -> None:
        torch.manual_seed(0)
        self.options = FitOptions(batch_size=batch_size, recall=1.0, buffer_rows=buffer_rows)
        self.model = lacova.GPPriorVAE(schema(), latent_dim=8)
        begin = time.perf_counter()
        where = torch.device(device)
        start = self.model._begin(path if streamed else pd.read_parquet(path), None, self.options, where)
        self.first_pass = time.perf_counter() - begin
        self.vae = self.model._assemble(start.codec, start.table, 0).to(where)
        self.rows = start.train
        self.rows.prepare(self.vae)
        self.ready = time.perf_counter() - begin
        self.step = Step(self.vae, self.options, self.rows.units, self.rows.length, where)

    def train(self, steps: int, epoch: int = 0) -> list[float]:
        """Seconds of each of the first steps of an epoch, reading and preparing included."""
        times, begin = [], time.perf_counter()
        self.vae.train()
        for k, lesson in enumerate(self.rows.epoch(self.vae, epoch)):
            self.step(lesson, k, 1.0)
            times.append(time.perf_counter() - begin)
            begin = time.perf_counter()
            if k + 1 == steps:
                break
        return times


def one(options: argparse.Namespace) -> None:
    """What one process measures."""
    run = Run(options.file, options.way == "stream", options.device, options.batch_size, options.buffer_rows)
    found = {"way": options.way, "rows": run.rows.length, "patients": run.rows.units}
    found |= {"first_pass_s": run.first_pass, "ready_s": run.ready}
    if options.epochs:
        run.train(3)
        begin = time.perf_counter()
        for epoch in range(options.epochs):
            run.train(run.rows.steps, epoch)
        found["rows_per_s"] = options.epochs * run.rows.length / (time.perf_counter() - begin)
    else:
        times = run.train(options.steps + 5)[5:]  # the first ones wait for the first buffer, and warm up
        found |= {"steps": len(times), "step_ms": 1000 * statistics.median(times)}
    print(json.dumps(found | {"resident_gb": resident()}), flush=True)


def spawn(file: Path, way: str, options: argparse.Namespace, epochs: int = 0) -> dict[str, float]:
    command = [sys.executable, __file__, "one", str(file), way, "--epochs", str(epochs)]
    for name in ("steps", "device", "batch_size", "buffer_rows"):
        command += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    print(done.stdout.strip(), flush=True)
    return json.loads(done.stdout)


def measure(options: argparse.Namespace) -> None:
    results, folder = [], Path(options.folder or tempfile.mkdtemp())
    for rows in sorted({*options.rows, *([options.compare] if options.compare else [])}):
        file = folder / f"large-{rows}.parquet"
        if not file.exists():
            begin = time.perf_counter()
            generate(file, rows // options.visits, options.visits, options.row_group, options.seed)
            size = file.stat().st_size / 1e9
            print(json.dumps({"generated": rows, "s": time.perf_counter() - begin, "gb": size}), flush=True)
        if rows in options.rows:
            results.append(spawn(file, "stream", options))
        if rows == options.compare:
            ways = [spawn(file, way, options, epochs=options.epochs) for way in ("memory", "stream") * options.repeats]
            best = {way: max(r["rows_per_s"] for r in ways if r["way"] == way) for way in ("memory", "stream")}
            print(json.dumps({"rows_per_s": best, "streamed_over_in_memory": best["stream"] / best["memory"]}))
        if not options.keep:
            file.unlink()
    print(f"{'rows':>12} {'patients':>10} {'first pass, s':>14} {'ms per step':>12} {'resident, GB':>13}")
    for r in results:
        line = f"{r['rows']:12,} {r['patients']:10,} {r['first_pass_s']:14.1f} {r['step_ms']:12.1f}"
        print(f"{line} {r['resident_gb']:13.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    making, measuring, single = (commands.add_parser(name) for name in ("generate", "measure", "one"))
    making.add_argument("file", type=Path)
    making.add_argument("--patients", type=int, default=1_000_000)
    measuring.add_argument("--folder", type=Path)
    measuring.add_argument("--rows", type=int, nargs="*", default=[10**4, 10**5, 10**6, 10**7])
    measuring.add_argument("--compare", type=int, help="rows to train on for whole epochs, streamed and in memory")
    measuring.add_argument("--repeats", type=int, default=2)
    measuring.add_argument("--keep", action="store_true", help="leave the files")
    single.add_argument("file", type=Path)
    single.add_argument("way", choices=["stream", "memory"])
    for command in (making, measuring):
        command.add_argument("--visits", type=int, default=10, help="mean number per patient")
        command.add_argument("--row-group", type=int, default=20_000)
        command.add_argument("--seed", type=int, default=0)
    for command in (measuring, single):
        command.add_argument("--epochs", type=int, default=1)
        command.add_argument("--steps", type=int, default=60)
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
        one(options)


if __name__ == "__main__":
    main()
