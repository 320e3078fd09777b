"""Small models of the literature, with the tables that they are fitted to."""

from lacova import GPPVAE, GPVAE, HIVAE, LVAE, Dense, Schema
from tests.tables import VISITS, mixed_rows, visits

SMALL = {"latent_dim": 2, "networks": Dense((6,), (6,))}
MIXED = Schema(
    {"alt": "gaussian", "falls": "poisson", "ill": "bernoulli", "grade": "categorical", "stage": "ordinal"},
    {"age": "continuous", "sex": "categorical"},
)
NO_TIME = Schema(["alt"], {"age": "continuous"}, instance="id")
NO_INSTANCE = Schema(["alt"], {"age": "continuous"}, time="day")
MODELS = {
    "lvae": (lambda: LVAE(VISITS, inducing=4, **SMALL), visits),
    "gppvae": (lambda: GPPVAE(VISITS, **SMALL), visits),
    "gppvae-features": (lambda: GPPVAE(VISITS, objects=["age", "sex"], views=["day"], inducing=5, **SMALL), visits),
    "gpvae": (lambda: GPVAE(VISITS, **SMALL), visits),
    "gpvae-more": (
        lambda: GPVAE(VISITS, kernel="se", length_scale=3, learn_length_scale=True, posterior="diagonal", **SMALL),
        visits,
    ),
    "hivae": (lambda: HIVAE(MIXED, components=3, column_width=4, **SMALL), mixed_rows),
    "hivae-visits": (lambda: HIVAE(VISITS, **SMALL), visits),
}


def fit(name, seed=0):
    """Fit one of the models to its table."""
    make, table = MODELS[name]
    return make().fit(table(), max_epochs=2, batch_size=4, seed=seed)
