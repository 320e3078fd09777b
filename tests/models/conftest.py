"""Fitted models that several files of tests use."""

import pytest

from tests.models.cases import MODELS, numbered_visits
from tests.tables import VISITS


@pytest.fixture(scope="session", params=MODELS.values(), ids=MODELS.keys())
def fitted(request):
    return request.param(VISITS).fit(numbered_visits(), max_epochs=2)
