"""Column means completed by MIWAE and NotMIWAE where high values go missing, beside the truth.

python benchmarks/gaps_not_at_random.py
"""

import numpy as np
import pandas as pd

import lacova


def simulated(rows: int = 1500, seed: int = 3) -> tuple[pd.DataFrame, pd.DataFrame]:
    """One latent dimension; the first two of four columns lose entries with log-odds 3 (y − 1.5)."""
    rng = np.random.default_rng(seed)
    loading = np.array([[1.0], [0.8], [-0.6], [0.9]])
    values = rng.normal(size=(rows, 1)) @ loading.T + 0.5 * rng.normal(size=(rows, 4)) + 1.0
    full = pd.DataFrame(values, columns=list("abcd"))
    table = full.copy()
    for name in "ab":
        table[name] = full[name].mask(rng.random(rows) < 1 / (1 + np.exp(-3 * (full[name] - 1.5))))
    return full, table


def main() -> None:
    full, table = simulated()
    schema, networks = lacova.Schema(list("abcd"), {}), lacova.Dense((32,), ())
    models = {"MIWAE": lacova.MIWAE(schema, latent_dim=1, networks=networks)}
    for mechanism in ("selfmasking", "selfmasking_high", "linear"):
        models[f"NotMIWAE, {mechanism}"] = lacova.NotMIWAE(schema, latent_dim=1, networks=networks, mechanism=mechanism)
    means = {"truth": full.mean(), "seen": table.mean()}
    for name, model in models.items():
        model.fit(table, max_epochs=100, learning_rate=5e-3, batch_size=300, device="cpu")
        means[name] = model.impute(table).mean()
        if "selfmasking" in name:
            print(name, model.gaps().loc[["a", "b"]].round(2), sep="\n")
    print(pd.DataFrame(means).T[["a", "b"]].round(2))


if __name__ == "__main__":
    main()
