"""The conditional VAE: any gaps, and what it refuses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lacova
from lacova import CVAE, Schema
from tests.models.cases import SMALL
from tests.models.random_tables import TREATMENTS, check_no_gap_is_left, few_examples, tables
from tests.tables import VISITS


@few_examples
@given(table=tables(), latent=st.sampled_from(["normal", "conditional"]), covariates=st.sampled_from(TREATMENTS))
def test_cvae_takes_any_gaps(table, latent, covariates):
    model = CVAE(table[0], **SMALL, latent_prior=latent, covariates=covariates)
    check_no_gap_is_left(model, *table)


def test_an_unknown_latent_prior_is_refused():
    message = r"^latent_prior is 'gp'; expected 'normal' or 'conditional', or a lacova\.priors\.LatentPrior with @"
    with pytest.raises(ValueError, match=message):
        CVAE(VISITS, latent_prior="gp")


def test_a_schema_without_covariates_is_refused():
    message = "^CVAE conditions on covariates: name at least one in the schema, or use VAE or MIWAE.$"
    with pytest.raises(ValueError, match=message):
        lacova.CVAE(Schema(["alt"], {}))


@pytest.mark.parametrize(("prior", "shown"), [("normal", "N(0, I)"), ("conditional", "a network of x")])
def test_describe_names_the_latent_prior(prior, shown):
    assert CVAE(VISITS, latent_prior=prior).facts()["prior of z"] == shown
