import pytest

from tests.datasets.sdtm.cases import prepared


@pytest.fixture
def plain(tmp_path):
    return prepared(tmp_path)
