"""Compare column means imputed by MIWAE and NotMIWAE with the truth, where high values tend to be missing.

python benchmarks/gaps_not_at_random.py [--epochs 100]
"""

import argparse

import numpy as np
import pandas as pd

import lacova


def simulated(rows: int = 1500, seed: int = 3) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Simulate one latent dimension; entries of the first two of four columns are missing with log-odds 3 (y − 1.5)."""
    rng = np.random.default_rng(seed)
    loading = np.array([[1.0], [0.8], [-0.6], [0.9]])
    values = rng.normal(size=(rows, 1)) @ loading.T + 0.5 * rng.normal(size=(rows, 4)) + 1.0
    full = pd.DataFrame(values, columns=list("abcd"))
    table = full.copy()
    for name in "ab":
        table[name] = full[name].mask(rng.random(rows) < 1 / (1 + np.exp(-3 * (full[name] - 1.5))))
    return full, table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=100)
    epochs = parser.parse_args().epochs
    full, table = simulated()
    schema, networks = lacova.Schema(list("abcd"), {}), lacova.Dense((32,), ())
    models = {"MIWAE": lacova.MIWAE(schema, latent_dim=1, networks=networks)}
    for mechanism in ("selfmasking", "selfmasking_high", "linear"):
        models[f"NotMIWAE, {mechanism}"] = lacova.NotMIWAE(schema, latent_dim=1, networks=networks, mechanism=mechanism)
    means = {"truth": full.mean(), "observed": table.mean()}
    for name, model in models.items():
        model.fit(table, max_epochs=epochs, learning_rate=5e-3, batch_size=300, device="cpu")
        means[name] = model.impute(table).mean()
        if "selfmasking" in name:
            print(name, model.gaps().loc[["a", "b"]].round(2), sep="\n")
    print(pd.DataFrame(means).T[["a", "b"]].round(2))


if __name__ == "__main__":
    main()
