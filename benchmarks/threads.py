"""A fit with torch's default threads beside a busy process on every core, against one thread in the same company.

    python benchmarks/threads.py

Prints seconds of both, and their ratio; the target is at most 1.2. The fit is that of 45 patients with 6 measurements.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time

FIT = """
import time, warnings
import numpy as np, pandas as pd, lacova
warnings.simplefilter("ignore")
rng = np.random.default_rng(0)
patient = np.repeat(np.arange(45), 6)
table = pd.DataFrame(rng.normal(size=(270, 6)) + rng.normal(size=(45, 6))[patient], columns=list("abcdef"))
table = table.mask(rng.random(table.shape) < 0.2).assign(id=patient, day=rng.uniform(0, 9, 270))
schema = lacova.Schema(list("abcdef"), {}, instance="id", time="day")
model = lacova.GPPriorVAE(schema)
model.fit(table, max_epochs=1, device="cpu")
start = time.perf_counter()
model.fit(table, max_epochs=20, device="cpu")
print(time.perf_counter() - start)
"""


def busy() -> None:
    while True:
        pass


def seconds(threads: str | None) -> float:
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    if threads is not None:
        environment["OMP_NUM_THREADS"] = threads
    done = subprocess.run([sys.executable, "-c", FIT], env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout)


def main() -> None:
    neighbours = [multiprocessing.Process(target=busy, daemon=True) for _ in range(os.cpu_count() or 1)]
    for process in neighbours:
        process.start()
    time.sleep(0.5)
    rounds = [(seconds(None), seconds("1")) for _ in range(3)]
    for process in neighbours:
        process.kill()
    for default, one in rounds:
        print(f"default threads {default:6.1f} s   one thread {one:6.1f} s   ratio {default / one:.2f}")


if __name__ == "__main__":
    main()
