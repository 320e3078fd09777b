"""Runs that are killed while they are written, as a program: `python -m tests.cli.killed_runs FOLDER KILLS SEED`.

FOLDER holds `run`, as `lacova fit` wrote it, and the schema `s.toml`. A fork replaces the run by one that differs in
its training record, and is killed with SIGKILL at a random moment, KILLS times. The old model or the new one must load
each time, and what else is in the folder must be as it was. The program prints how often it was which.
"""

import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import lacova
from lacova.cli.run_folder import FILES, MODEL, write_run


def others(run):
    """Return what a user keeps in the folder; names with a dot in front are temporary files."""
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name[0] != "."}.items()


def write_and_kill(model, folder, delay):
    """Write a run in a fork and kill it so many seconds later; None lets it end."""
    child = os.fork()
    if not child:
        write_run(model, folder / "run", folder / "s.toml")
        os._exit(0)
    if delay is not None:
        time.sleep(delay)
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main(folder, kills, seed):
    rng, run, counts = random.Random(seed), folder / "run", Counter()
    model = lacova.load(run / MODEL)
    record, kept = model.training, {(path, data) for path, data in others(run) if path.name not in FILES}
    started = time.perf_counter()
    assert write_and_kill(model, folder, None) == 0
    duration = time.perf_counter() - started
    for number in range(kills):
        model.training = record.assign(number=float(number))
        code = write_and_kill(model, folder, rng.uniform(0.0, 1.1) * duration)
        columns = lacova.load(run / MODEL).training
        new = "number" in columns and columns["number"].iloc[0] == number
        assert kept <= set(others(run))
        assert new or code == -signal.SIGKILL
        counts["ended" if code == 0 else "killed, new" if new else "killed, old"] += 1
    assert write_and_kill(model, folder, None) == 0
    assert not [path for path in run.iterdir() if path.name[0] == "."]
    print(dict(counts))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
