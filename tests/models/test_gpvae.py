"""GPVAE: the VAE of time series. tests/priors/test_temporal.py checks its prior and its chain."""

import pytest

from lacova import GPVAE, SchemaError
from tests.models.literature import NO_INSTANCE, NO_TIME
from tests.tables import VISITS


@pytest.mark.parametrize(
    ("name", "prior"),
    [
        ("gpvae", "a cauchy process of day, length-scale one standard deviation"),
        ("gpvae-more", "a se process of day, length-scale 3 to start from"),
    ],
)
def test_it_describes_its_prior(name, prior, literature_models):
    text = literature_models[name].describe()
    assert text.split("prior of z")[1].split("\n")[0].strip() == prior
    assert text.split()[1] == type(literature_models[name]).__name__


REFUSED = {
    "time": (lambda: GPVAE(NO_TIME), r"GPVAE needs a time column.*give Schema\(time=...\)"),
    "instance": (lambda: GPVAE(NO_INSTANCE), "GPVAE needs an instance column"),
    "kernel": (lambda: GPVAE(VISITS, kernel="rbf"), "kernel is 'rbf'; expected 'cauchy' or 'se'"),
    "posterior": (lambda: GPVAE(VISITS, posterior="full"), "posterior is 'full'; expected 'banded' or 'diag"),
    "scale": (lambda: GPVAE(VISITS, length_scale=0), "length_scale is 0; expected a positive number, in"),
    "text": (lambda: GPVAE(VISITS, length_scale="2"), "length_scale is '2'"),
}


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED)
def test_bad_input_is_refused_with_a_remedy(make, message):
    with pytest.raises((ValueError, SchemaError), match=message):
        make()
