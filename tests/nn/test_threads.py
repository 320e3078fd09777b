import pytest
import torch

from lacova import CVAE, Conv, Dense, Schema
from lacova.nn.threads import suitable_threads
from lacova.training.step import Step
from tests.tables import ROWS, visits


@pytest.fixture
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("three_threads")
@pytest.mark.parametrize(("parallel", "within"), [(False, 1), (True, 3)])
def test_the_callers_number_is_put_back_also_after_an_error(parallel, within):
    def fail():
        with suitable_threads(parallel):
            assert torch.get_num_threads() == within
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert torch.get_num_threads() == 3


@pytest.mark.usefixtures("three_threads")
def test_a_fit_and_an_answer_use_one_thread(monkeypatch):
    seen, seed = set(), Step.seed
    monkeypatch.setattr(Step, "seed", lambda self, number: (seen.add(torch.get_num_threads()), seed(self, number))[1])
    model = CVAE(ROWS, latent_dim=1, networks=Dense((4,), (4,))).fit(visits(), max_epochs=1)
    assert (seen, torch.get_num_threads()) == ({1}, 3)
    vae = model.vae
    latents = vae.latents
    monkeypatch.setattr(vae, "latents", lambda *a, **k: (seen.add(torch.get_num_threads()), latents(*a, **k))[1])
    model.impute(visits())
    model.predict(visits())
    assert (seen, torch.get_num_threads()) == ({1}, 3)


def test_convolutions_keep_the_callers_threads():
    assert Conv.parallel
    assert not Dense.parallel
    assert CVAE(Schema(["y"], {"x": "continuous"})).networks.parallel is False
