"""Fits that are killed again and again, as a program: `python -m tests.training.killed_fits FOLDER KILLS SEED`.

For each case, one fit is left alone, and another is killed with SIGKILL at random moments, KILLS times in all, and goes
on from its checkpoint each time. FOLDER/CASE then holds `alone.lacova` and `killed.lacova`. Prints how each process
ended. Fits run in forks, since imports take longer than they do.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import torch

import lacova.training.step
from lacova import CVAE, Dense, GPPriorVAE, Schema

SMALL = {"latent_dim": 2, "networks": Dense((6,), (6,))}
VISITS = Schema(
    ["alt", "ast"], {"age": "continuous", "sex": "categorical", "dose": "continuous"}, instance="id", time="day",
    static=["age", "sex"],
)  # fmt: skip
ROWS = Schema(["alt", "ast"], {"age": "continuous", "sex": "categorical", "dose": "continuous"})
EVERY = 3


def visits(seed=0, patients=9, count=3, gaps=0.2):
    """Patients with gaps in Y and X, at several visits."""
    rng = np.random.default_rng(seed)
    n, who = patients * count, np.repeat(np.arange(patients), count)
    table = pd.DataFrame({
        "day": np.tile(np.arange(float(count)), patients) + rng.normal(0, 0.1, n),
        "age": rng.normal(50, 10, patients)[who],
        "sex": np.array(["f", "m"])[who % 2],
        "dose": rng.normal(1, 0.2, n),
        "alt": rng.normal(30, 5, n),
        "ast": rng.normal(20, 3, n),
    })  # fmt: skip
    table["alt"] += 3 * table["day"]
    table = table.mask(rng.random(table.shape) < gaps)
    return table.assign(id=[f"p{seed}-{w}" for w in who])


def cvae(**options):
    """Independent rows, no validation rows."""
    options = {"max_epochs": 24, "batch_size": 10, "device": "cpu", **options}
    return CVAE(ROWS, **SMALL).fit(visits(), **options)


def gp(**options):
    """Visits of patients: natural gradients, recall, early stopping, and a covariate prior that is learnt on."""
    options = {"max_epochs": 16, "batch_size": 2, "prior_every": 2, "device": "cpu", **options}
    return GPPriorVAE(VISITS, inducing=4, **SMALL).fit(visits(), visits(1, 4), **options)


CASES = {"cvae": cvae, "gp": gp}


def start(case, model, told, **options):
    """Fit and save in a fork, which writes a byte to `told` after every step; returns its process number."""
    child = os.fork()
    if child:
        return child
    take = lacova.training.step.Step.__call__

    def step(*args):
        found = take(*args)
        os.write(told, b".")
        return found

    lacova.training.step.Step.__call__ = step
    try:
        CASES[case](**options).save(model)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    os._exit(0)


def kill(case, folder, moment, delay):
    """Start or go on with a fit, and kill it so many steps and seconds later; None lets it end. Returns its end."""
    heard, told = os.pipe()
    child = start(case, folder / "killed.lacova", told, checkpoint=folder / "checkpoint", checkpoint_every=EVERY)
    os.close(told)
    for _ in range(moment or 0):
        if not os.read(heard, 1):  # it has ended
            break
    if moment is not None:
        time.sleep(delay)
        os.kill(child, signal.SIGKILL)
    end = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(case, "killed" if end == -signal.SIGKILL else end, flush=True)
    os.close(heard)
    return end


def warm_up():
    """The first optimiser of a process imports half of torch: once, before there are forks."""
    weight = torch.zeros(1, requires_grad=True)
    weight.grad = torch.zeros(1)
    torch.optim.AdamW([weight], fused=True).step()


def same(home):
    return (home / "killed.lacova").read_bytes() == (home / "alone.lacova").read_bytes()


def main(folder, kills, seed):
    warm_up()
    rng, (_, nobody) = random.Random(seed), os.pipe()
    for case in CASES:
        home = folder / case
        home.mkdir()
        assert os.waitpid(start(case, home / "alone.lacova", nobody), 0)[1] == 0
        left = kills
        while left:
            end = kill(case, home, rng.randrange(4 * EVERY), rng.choice([0.0, rng.random() / 50]))
            assert end in (0, -signal.SIGKILL)
            left -= end != 0
            assert end != 0 or same(home)  # it was quicker; the next fit starts again
        assert kill(case, home, None, 0.0) == 0


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
