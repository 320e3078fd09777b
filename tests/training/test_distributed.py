"""Several processes take the steps of one: first simulated one after the other, then two real processes."""

import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import lacova
from lacova.cli import main
from lacova.covariates.masked_loss import masking_rate
from lacova.models.builder import build
from lacova.models.fitting import fit_process, read_training_data
from lacova.training.distributed import SINGLE, Team, launch
from lacova.training.loader import TableLoader
from lacova.training.options import FitOptions, TrainingError
from lacova.training.step import Step

SCHEMA = lacova.Schema(
    ["alt", "ast"], {"sex": "categorical", "arm": "categorical", "age": "continuous"}, instance="id", time="day",
    static=["sex", "age"],
)  # fmt: skip
MODELS = {
    "cvae": partial(lacova.CVAE, SCHEMA, latent_dim=2),
    "gp": partial(lacova.GPPriorVAE, SCHEMA, latent_dim=2, inducing=10),
    "exact": partial(lacova.GPPriorVAE, SCHEMA, latent_dim=2, inducing=10, expectation="exact"),
}
OPTIONS = FitOptions(batch_size=9, max_epochs=1, masked_loss=1.0)
CPU = torch.device("cpu")


def visits(patients=22):
    """Return one to five visits of each patient, with gaps in most columns."""
    rng = np.random.default_rng(1)
    patient = np.repeat(np.arange(patients), rng.integers(1, 6, patients))
    n = len(patient)
    age = rng.normal(50, 10, patients)[patient]
    table = pd.DataFrame({
        "id": patient, "day": rng.uniform(0, 100, n), "sex": rng.choice(["f", "m"], patients)[patient],
        "arm": rng.choice(["a", "b", "c"], n), "age": age, "alt": age + rng.normal(0, 5, n), "ast": rng.normal(0, 1, n),
    })  # fmt: skip
    for name in ("sex", "arm", "age", "alt", "ast"):
        table[name] = table[name].mask(rng.random(n) < 0.3)
    return table


class Member(Team):
    """One process of several, without the others; it keeps what the processes would sum."""

    def __init__(self, rank, size):
        self.rank, self.size = rank, size

    def sum(self, tensors):
        self.summed = [tensor.detach().clone() for tensor in tensors]


def loaders_of(name, size, options=OPTIONS):
    """Return a model in double precision, and the loader of each member of a team of `size`."""
    model = MODELS[name]()
    data = read_training_data(model, visits(), None, options, CPU, SINGLE)
    vae = build(model, data.encoder, data.table, 0).double()
    if name != "cvae":
        vae.prior.inducing.shift += 1.0  # where it starts, the KL of q(v) is zero
    encoded = replace(data.table, y=data.table.y.double(), x=data.table.x.double())
    loaders = []
    for rank in range(size):
        team = SINGLE if size == 1 else Member(rank, size)
        loaders.append(TableLoader(encoded, masking_rate(encoded), options, CPU, team))
        loaders[-1].condition(vae)
    return vae, loaders


def assert_close_to_largest(actual, expected, rtol):
    """Compare relative to the largest entry: sums of terms that cancel are small and not exact."""
    largest = float(expected.detach().abs().max()) if expected.numel() else 0.0
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=rtol * largest + 1e-13)


def summed_in_a_step(vae, loader, training_batch):
    """Return the gradients, terms and statistics of one part of a step, and leave the model as it was."""
    team = Member(0, 2)
    step = Step(vae, replace(OPTIONS, encoder_dropout=0.5), loader.units, loader.length, CPU, team)
    restore = step.snapshot()
    step.seed(7)
    step.take(training_batch, 3.0)
    restore()
    return team.summed


@pytest.mark.parametrize("size", [2, 3, 25])  # the last: more than a batch has patients
@pytest.mark.parametrize("name", MODELS)
def test_the_parts_of_a_step_add_up_to_it(name, size):
    vae, [whole] = loaders_of(name, 1)
    _, members = loaders_of(name, size)
    for training_batch, *parts in zip(whole.epoch(vae, 3), *(one.epoch(vae, 3) for one in members), strict=True):
        expected = summed_in_a_step(vae, whole, training_batch)
        by_part = [summed_in_a_step(vae, whole, part) for part in parts]
        assert all(tensor.abs().sum() > 0 for tensor in expected[-3:])
        for tensor, terms in zip(expected, zip(*by_part, strict=True), strict=True):
            assert_close_to_largest(sum(terms), tensor, 1e-8)


def test_no_patient_is_split_and_every_row_is_in_one_part():
    vae, members = loaders_of("cvae", 3)
    day = vae.space.names.index("day")  # all different
    patient_of = dict(zip(members[0].host.x[:, day].tolist(), visits()["id"], strict=True))
    seen = []
    for parts in zip(*(one.epoch(vae, 0) for one in members), strict=True):
        days = [part.batch.x[:, day].tolist() if part.batch.scale else [] for part in parts]
        patients = [{patient_of[value] for value in own} for own in days]
        assert sum(map(len, patients)) == len(set().union(*patients))
        assert max(map(len, patients)) - min(map(len, patients)) <= 1
        seen += [value for own in days for value in own]
    assert sorted(seen) == sorted(patient_of)


def test_bad_numbers_of_processes_are_refused_before_any_starts():
    for devices, nodes, device, message in (
        (0, 1, "cpu", "devices must be a whole number of at least 1, got 0"),
        (2, True, "cpu", "nodes must be a whole number"),
        (2, 1, "cuda:1", "several processes choose their own"),
        (1, 2, "cpu", "only torchrun and srun reach other machines"),
    ):
        pytest.importorskip("lightning_fabric")
        with pytest.raises(ValueError, match=message):
            MODELS["cvae"]().fit(visits(), devices=devices, nodes=nodes, device=device)


def test_without_fabric_a_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "lightning_fabric", None)
    monkeypatch.setitem(sys.modules, "lightning_fabric.plugins.environments.slurm", None)
    with pytest.raises(TrainingError, match=r"pip install 'lacova\[distributed\]'"):
        MODELS["cvae"]().fit(visits(), devices=2)


def trained(name, options, team=SINGLE, device=CPU):
    """Return weights, buffers and last gradients of a model after training, and the records."""
    table = visits()
    held_out, options = table["id"] >= 18, replace(options, progress=False)
    fitted, outcome = fit_process(MODELS[name](), table[~held_out], table[held_out], options, None, team, device)
    weights = dict(fitted.vae.state_dict())
    return weights, {k: p.grad for k, p in fitted.vae.named_parameters()}, outcome.records


ONE_STEP = replace(OPTIONS, batch_size=18, learning_rate=1e-9, fast_learning_rate=1e-9)
EPOCHS = replace(OPTIONS, batch_size=5, max_epochs=3, natural_rate=0.3, prior_every=2, start="random")
STOPPING = replace(OPTIONS, max_epochs=40, patience=2, learning_rate=0.05, start="random")


def together(team, device):
    """Return what two processes compute, how many results differ, messages of failures, and shared flags."""
    results = {name: trained(name, ONE_STEP, team, device) for name in MODELS}
    results |= {f"epochs {name}": trained(name, EPOCHS, team, device) for name in MODELS}
    results |= {"stopped": trained("cvae", STOPPING, team, device)}
    differences = torch.zeros(2)
    for weights, _, records in results.values():
        main_weights, main_records = team.broadcast((weights, records))
        same = [torch.allclose(weights[k], main_weights[k], 0.0, 0.0, equal_nan=True) for k in weights]
        differences[0] += same.count(False)
        differences[1] += main_records != records
    team.sum([differences])
    messages = []
    for failing in (0, 1):
        try:
            with team.together():
                if team.rank == failing:
                    raise lacova.DataError(f"the rows of {failing} are bad.")
                team.sum([torch.ones(3)])
        except (lacova.DataError, TrainingError) as error:
            messages.append(f"{type(error).__name__}: {error}")
    flags = [team.any(team.rank == 1), team.any(False)]
    return results, differences.tolist(), messages, flags


@pytest.fixture(scope="module")
def pair():
    pytest.importorskip("lightning_fabric")
    return launch(together, 2, 1, "cpu")


@pytest.mark.parametrize("name", MODELS)
def test_two_processes_have_the_gradients_and_statistics_of_one(pair, name):
    weights, gradients, _ = trained(name, ONE_STEP)
    weights_of_two, gradients_of_two, _ = pair[0][name]
    for k, value in gradients.items():
        assert_close_to_largest(gradients_of_two[k], value, 1e-5)  # float32, in which sums are rounded in another order
    if name != "cvae":
        for k in ("prior.inducing.precision", "prior.inducing.shift"):
            torch.testing.assert_close(weights_of_two[k], weights[k], rtol=1e-5, atol=1e-6)
        assert weights["prior.inducing.shift"].abs().max() > 0.01


@pytest.mark.parametrize("name", MODELS)
def test_two_processes_have_the_weights_and_terms_of_one(pair, name):
    weights, _, records = trained(name, EPOCHS)
    weights_of_two, _, records_of_two = pair[0][f"epochs {name}"]
    for k, value in weights.items():  # Adam makes small gradients large
        torch.testing.assert_close(weights_of_two[k], value, rtol=1e-3, atol=2e-3)
    for one, two in zip(records, records_of_two, strict=True):
        assert two == pytest.approx(one, rel=1e-4, abs=1e-5)


def test_the_two_processes_agree(pair):
    results, differences, _, flags = pair
    assert differences == [0.0, 0.0]
    assert len(results["stopped"][2]) < STOPPING.max_epochs
    assert flags == [True, False]


def test_a_failure_of_one_process_reaches_the_other(pair):
    assert pair[2] == [
        "DataError: the rows of 0 are bad.",
        "OtherProcessError: process 1 of 2 failed: DataError: the rows of 1 are bad.",
    ]


FAILING = """
import pandas as pd, lacova
from lacova.training.step import Step

seed = Step.seed

def failing_seed(self, number):
    if self.team.rank == 1 and number == 2:
        raise ValueError("the second process has failed.")
    seed(self, number)

Step.seed = failing_seed
if __name__ == "__main__":
    model = lacova.VAE(lacova.Schema(["alt"], {}), latent_dim=1)
    model.fit(pd.DataFrame({"alt": range(20)}), devices=2, device="cpu", batch_size=5, start="random")
"""


def environment():
    return os.environ | {"PYTHONPATH": str(Path(lacova.__file__).parents[1]), "OMP_NUM_THREADS": "1"}


def test_an_exception_in_one_process_ends_all(tmp_path):
    pytest.importorskip("lightning_fabric")
    script = tmp_path / "failing.py"
    script.write_text(FAILING)
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=120, env=environment()
    )
    assert done.returncode == 1
    assert "\nValueError: the second process has failed.\n" in done.stderr


def test_lacova_fit_with_two_processes_writes_one_model(tmp_path, monkeypatch, capfd):
    pytest.importorskip("lightning_fabric")
    monkeypatch.chdir(tmp_path)
    visits(30).to_csv("visits.csv", index=False)
    SCHEMA.to_toml("schema.toml")
    command = ["fit", "visits.csv", "--schema", "schema.toml", "--epochs", "2", "--batch-size", "6", "--device", "cpu"]
    assert main([*command, "--out", "one"]) == 0
    capfd.readouterr()
    assert main([*command, "--out", "two", "--devices", "2", "--json"]) == 0
    assert capfd.readouterr().err.count("\n") == 1
    assert sorted(p.name for p in Path().iterdir()) == ["one", "schema.toml", "two", "visits.csv"]
    one, two = (pd.read_csv(f"{run}/training.csv") for run in ("one", "two"))
    pd.testing.assert_frame_equal(two, one, rtol=1e-4, atol=1e-5)
    assert len(lacova.load("two/model.lacova").impute(visits(30))) == len(visits(30))
