"""Fits that are killed again and again, as a program: `python -m tests.training.killed_fits FOLDER KILLS SEED`.

For each case, one fit runs to its end, and another is killed with SIGKILL at random moments, KILLS times in all, and
continues from its checkpoint each time. FOLDER/CASE then holds `uninterrupted.lacova` and `killed.lacova`. The program
prints how each process ended. Fits run in forks, because imports take longer than the fits.
"""

import os
import random
import signal
import sys
import time
from functools import partial
from pathlib import Path

import torch

from lacova.training.step import Step
from tests.training.cases import fit_cvae, fit_gp, hooked_step

EVERY = 3  # steps from one checkpoint to the next


CASES = {"cvae": fit_cvae, "gp": partial(fit_gp, max_epochs=16)}


def start(case, model, pipe, **options):
    """Fit and save in a fork, which writes a byte to `pipe` after every step, and return its process number."""
    child = os.fork()
    if child:
        return child
    Step.__init__ = hooked_step(lambda: os.write(pipe, b"."))
    try:
        CASES[case](**options).save(model)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    os._exit(0)


def kill(case, folder, moment, delay):
    """Start or continue a fit, kill it so many steps and seconds later (None lets it end), and return its exit code."""
    read_end, write_end = os.pipe()
    child = start(case, folder / "killed.lacova", write_end, checkpoint=folder / "checkpoint", checkpoint_every=EVERY)
    os.close(write_end)
    for _ in range(moment or 0):
        if not os.read(read_end, 1):  # it has ended
            break
    if moment is not None:
        time.sleep(delay)
        os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(case, "killed" if code == -signal.SIGKILL else code, flush=True)
    os.close(read_end)
    return code


def warm_up():
    """Take a step of an optimiser, which imports half of torch the first time: once, before there are forks."""
    weight = torch.zeros(1, requires_grad=True)
    weight.grad = torch.zeros(1)
    torch.optim.AdamW([weight], fused=True).step()


def same_file(home):
    return (home / "killed.lacova").read_bytes() == (home / "uninterrupted.lacova").read_bytes()


def main(folder, kills, seed):
    warm_up()
    rng, (_, unread) = random.Random(seed), os.pipe()
    for case in CASES:
        home = folder / case
        home.mkdir()
        assert os.waitpid(start(case, home / "uninterrupted.lacova", unread), 0)[1] == 0
        left = kills
        while left:
            code = kill(case, home, rng.randrange(4 * EVERY), rng.choice([0.0, rng.random() / 50]))
            assert code in (0, -signal.SIGKILL)
            left -= code != 0
            assert code != 0 or same_file(home)  # it ended before it was killed; the next fit starts again
        assert kill(case, home, None, 0.0) == 0


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
