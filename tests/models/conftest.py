"""Fitted models that several files of tests use."""

import pytest

from tests.models import literature
from tests.models.cases import MODELS, numbered_visits
from tests.tables import VISITS


@pytest.fixture(scope="session", params=MODELS.values(), ids=MODELS.keys())
def fitted(request):
    return request.param(VISITS).fit(numbered_visits(), max_epochs=2)


@pytest.fixture(scope="session")
def literature_models():
    """Return the fitted models of the literature by name."""
    return {name: literature.fit(name) for name in literature.MODELS}
