"""A small table of visits, and quick settings to compare models with."""

import numpy as np
import pandas as pd

from lacova import Schema

VISITS = Schema(["alt", "ast"], {"sex": "categorical"}, instance="id", time="day", static=["sex"])
QUICK = {"folds": 2, "max_epochs": 2, "device": "cpu", "draws": 20}
PAIR = {"VAE": ("VAE", {"latent_dim": 1}), "CVAE": ("CVAE", {"latent_dim": 1})}


def visits(patients=12, seed=0):
    rng = np.random.default_rng(seed)
    patient = np.repeat(np.arange(patients), 3)
    n = len(patient)
    table = pd.DataFrame({
        "id": patient, "day": np.tile([0.0, 30.0, 60.0], patients), "sex": np.where(patient % 2, "f", "m"),
        "alt": 30 + 8 * (patient % 2) + rng.normal(size=n), "ast": rng.normal(20, 3, n), "note": "-",
    })  # fmt: skip
    return table.sample(frac=1, random_state=seed, ignore_index=True)
