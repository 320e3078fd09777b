"""Small fits of visits with gaps, and ways to end them early."""

import signal

import numpy as np
import pandas as pd

from lacova import CVAE, Dense, GPPriorVAE, Schema
from lacova.data.io.archive import digest
from lacova.training.step import Step

SMALL = {"latent_dim": 2, "networks": Dense((6,), (6,))}
VISITS = Schema(
    ["alt", "ast"], {"age": "continuous", "sex": "categorical", "dose": "continuous"}, instance="id", time="day",
    static=["age", "sex"],
)  # fmt: skip
ROWS = Schema(["alt", "ast"], {"age": "continuous", "sex": "categorical", "dose": "continuous"})
STEPS = 5  # of an epoch of `fit_gp`


def visits(seed=0, patients=9, count=3, gaps=0.2):
    """Return visits of patients with gaps in Y and X."""
    rng = np.random.default_rng(seed)
    n, patient = patients * count, np.repeat(np.arange(patients), count)
    table = pd.DataFrame({
        "day": np.tile(np.arange(float(count)), patients) + rng.normal(0, 0.1, n),
        "age": rng.normal(50, 10, patients)[patient],
        "sex": np.array(["f", "m"])[patient % 2],
        "dose": rng.normal(1, 0.2, n),
        "alt": rng.normal(30, 5, n),
        "ast": rng.normal(20, 3, n),
    })  # fmt: skip
    table["alt"] += 3 * table["day"]
    table = table.mask(rng.random(table.shape) < gaps)
    return table.assign(id=[f"p{seed}-{p}" for p in patient])


def fit_cvae(**options):
    """Fit independent rows, without validation rows."""
    options = {"max_epochs": 24, "batch_size": 10, "device": "cpu", **options}
    return CVAE(ROWS, **SMALL).fit(visits(), **options)


def fit_gp(*, schema=VISITS, train=None, validation=True, settings=None, **options):
    """Fit visits with natural gradients, the masked loss, early stopping and updates of the covariate prior."""
    options = {"max_epochs": 3, "batch_size": 2, "prior_every": 2, "device": "cpu", **options}
    model = GPPriorVAE(schema, **{"inducing": 4, **SMALL, **(settings or {})})
    return model.fit(visits() if train is None else train, visits(1, 4) if validation else None, **options)


def same(one, other):
    """Return whether two models have the same weights and training records to the last bit."""
    weights, others = one.vae.state_dict(), other.vae.state_dict()
    return digest(weights) == digest(others) and one.training.equals(other.training)


def hooked_step(hook):
    """Return an `__init__` for `Step` after which every step calls `hook` when it is done."""
    init = Step.__init__

    def init_with_hook(self, *arguments):
        init(self, *arguments)
        take = self.take

        def take_and_call(batch, weight):
            values = take(batch, weight)
            hook()
            return values

        self.take = take_and_call

    return init_with_hook


class Killed(BaseException):
    """Stands for SIGKILL: nothing in the package catches it."""


def kill(*_):
    raise Killed


def press_ctrl_c(*_):
    signal.raise_signal(signal.SIGINT)
