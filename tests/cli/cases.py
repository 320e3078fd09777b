"""A small table of visits, and the command called as from a shell."""

import numpy as np
import pandas as pd

from lacova.cli import main

QUICK = ("--epochs", 2, "--latent-dim", 1, "--device", "cpu")


def visits(patients=30, count=4, seed=0, missing=0.15):
    """Return visits of patients with gaps in all columns but the label."""
    rng = np.random.default_rng(seed)
    n, patient = patients * count, np.repeat(np.arange(patients), count)
    table = pd.DataFrame({
        "id": [f"p{p:02}" for p in patient],
        "day": np.tile(np.arange(count) * 30.0, patients) + rng.normal(0, 2, n).round(1),
        "sex": np.where(patient % 2, "f", "m"),
        "alt": (30 + 4 * (patient % 2) + rng.normal(0, 3, patients)[patient] + rng.normal(0, 1, n)).round(1),
        "ast": rng.normal(25.0, 4.0, n).round(1),
    })  # fmt: skip
    holes = rng.random((n, 5)) < missing
    holes[:, 0] = False
    holes[:, 2] = (rng.random(patients) < missing)[patient]
    return table.mask(holes)


def shell(*words):
    """Run a command and return its exit code."""
    return main([str(word) for word in words])


def refused(capsys, words, message):
    """Assert that a command ends with one sentence on stderr, and return nothing on stdout."""
    assert shell(*words) == 1
    text = capsys.readouterr()
    assert message in text.err
    assert text.out == ""
    assert text.err.count("\n") == 1
