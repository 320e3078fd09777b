"""Fitted models that several files of tests use."""

import pytest

from tests.models import literature, saved_models
from tests.models.cases import MODELS, numbered_visits
from tests.tables import VISITS


@pytest.fixture(scope="session", params=MODELS.values(), ids=MODELS.keys())
def fitted(request):
    return request.param(VISITS).fit(numbered_visits(), max_epochs=2)


@pytest.fixture(scope="session")
def literature_models():
    """Return the fitted models of the literature by name."""
    return {name: literature.fit(name) for name in literature.MODELS}


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    """Return every case of `saved_models`, fitted and saved."""
    return saved_models.save_all(tmp_path_factory.mktemp("saved"))


@pytest.fixture(scope="session")
def small(saved):
    """Return the bytes of four small files of different kinds."""
    return {name: saved[name].path.read_bytes() for name in ("gp", "paper", "knn", "kinds")}
