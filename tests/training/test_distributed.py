"""Several processes take the steps of one: first their parts one after the other, then two real processes."""

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
from lacova.training.distributed import SINGLE, Team, launch
from lacova.training.loader import TableLoader
from lacova.training.options import FitOptions, TrainingError
from lacova.training.step import loss

SCHEMA = lacova.Schema(
    ["alt", "ast"], {"sex": "categorical", "arm": "categorical", "age": "continuous"}, instance="id", time="day",
    static=["sex", "age"],
)  # fmt: skip
MODELS = {
    "cvae": partial(lacova.CVAE, SCHEMA, latent_dim=2),
    "gp": partial(lacova.GPPriorVAE, SCHEMA, latent_dim=2, inducing=10),
    "exact": partial(lacova.GPPriorVAE, SCHEMA, latent_dim=2, inducing=10, expectation="exact"),
}
SETTINGS = FitOptions(batch_size=9, max_epochs=1, masked_loss=1.0)
CPU = torch.device("cpu")


def table(patients=22):
    rng = np.random.default_rng(1)
    patient = np.repeat(np.arange(patients), rng.integers(1, 6, patients))
    n = len(patient)
    age = rng.normal(50, 10, patients)[patient]
    found = pd.DataFrame({
        "id": patient, "day": rng.uniform(0, 100, n), "sex": rng.choice(["f", "m"], patients)[patient],
        "arm": rng.choice(["a", "b", "c"], n), "age": age, "alt": age + rng.normal(0, 5, n), "ast": rng.normal(0, 1, n),
    })  # fmt: skip
    for name in ("sex", "arm", "age", "alt", "ast"):
        found[name] = found[name].mask(rng.random(n) < 0.3)
    return found


class Member(Team):
    """One of several, who does not meet the others."""

    def __init__(self, rank, size):
        self.rank, self.size = rank, size


def parts(name, size, options=SETTINGS):
    """A model in double precision, and the rows of each member of a team of `size`."""
    model = MODELS[name]()
    start = model._begin(table(), None, options, CPU)
    vae = model._assemble(start.encoder, start.table, 0).double()
    if name != "cvae":
        vae.prior.inducing.shift += 1.0  # where it starts, the KL of q(v) is zero
    encoded = replace(start.table, y=start.table.y.double(), x=start.table.x.double())
    rows = []
    for rank in range(size):
        team = SINGLE if size == 1 else Member(rank, size)
        rows.append(TableLoader(encoded, masking_rate(encoded), options, CPU, team))
        rows[-1].condition(vae)
    return vae, rows


def close(found, expected, rtol):
    """Relative to the largest entry, for sums of terms that cancel are small and not exact."""
    largest = float(expected.detach().abs().max()) if expected.numel() else 0.0
    torch.testing.assert_close(found, expected, rtol=rtol, atol=rtol * largest + 1e-13)


def taken(vae, training_batch):
    """Gradients, terms and statistics of one part of a step."""
    noise = training_batch.draw_eps(vae, 1, torch.Generator().manual_seed(7), dropout=0.5)
    value, terms, statistics = loss(vae, training_batch, noise, 3.0, 1.0)
    vae.zero_grad()
    value.backward()
    return [parameter.grad.clone() for parameter in vae.parameters()] + [terms, *statistics]


@pytest.mark.parametrize("size", [2, 3, 25])  # the last: more than a batch has patients
@pytest.mark.parametrize("name", MODELS)
def test_the_parts_of_a_step_add_up_to_it(name, size):
    vae, [whole] = parts(name, 1)
    _, members = parts(name, size)
    for training_batch, *shares in zip(whole.epoch(vae, 3), *(rows.epoch(vae, 3) for rows in members), strict=True):
        expected = taken(vae, training_batch)
        found = [sum(each) for each in zip(*(taken(vae, share) for share in shares), strict=True)]
        assert all(tensor.abs().sum() > 0 for tensor in expected[-3:])
        for one, other in zip(expected, found, strict=True):
            close(other, one, 1e-8)


def test_a_patient_is_never_split_and_everyone_is_somewhere():
    vae, members = parts("cvae", 3)
    day = vae.space.names.index("day")  # all different
    owner = dict(zip(members[0].host.x[:, day].tolist(), table()["id"], strict=True))
    seen = []
    for shares in zip(*(rows.epoch(vae, 0) for rows in members), strict=True):
        days = [share.shown.x[:, day].tolist() if share.shown.scale else [] for share in shares]
        owners = [{owner[each] for each in here} for here in days]
        assert sum(map(len, owners)) == len(set().union(*owners))
        assert max(map(len, owners)) - min(map(len, owners)) <= 1
        seen += [each for here in days for each in here]
    assert sorted(seen) == sorted(owner)


def test_what_is_refused_before_any_process_starts():
    for devices, nodes, device, message in (
        (0, 1, "cpu", "devices must be a whole number of at least 1, got 0"),
        (2, True, "cpu", "nodes must be a whole number"),
        (2, 1, "cuda:1", "several processes choose their own"),
        (1, 2, "cpu", "only torchrun and srun reach other machines"),
    ):
        pytest.importorskip("lightning_fabric")
        with pytest.raises(ValueError, match=message):
            MODELS["cvae"]().fit(table(), devices=devices, nodes=nodes, device=device)


def test_without_fabric_a_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "lightning_fabric", None)
    monkeypatch.setitem(sys.modules, "lightning_fabric.plugins.environments.slurm", None)
    with pytest.raises(TrainingError, match=r"pip install 'lacova\[distributed\]'"):
        MODELS["cvae"]().fit(table(), devices=2)


def trained(name, options, team=SINGLE, device=CPU):
    """Weights, buffers and last gradients of a model after training, and the records."""
    frame = table()
    held_out = frame["id"] >= 18
    job = (frame[~held_out], frame[held_out], replace(options, progress=False), None)
    fitted, outcome = MODELS[name]()._train(*job, team, device)
    weights = dict(fitted.vae.state_dict())
    return weights, {k: p.grad for k, p in fitted.vae.named_parameters()}, outcome.records


ONE_STEP = replace(SETTINGS, batch_size=18, learning_rate=1e-9, fast_learning_rate=1e-9)
EPOCHS = replace(SETTINGS, batch_size=5, max_epochs=3, natural_rate=0.3, prior_every=2)
STOPPING = replace(SETTINGS, max_epochs=40, patience=2, learning_rate=0.05)


def together(team, device):
    """What two processes find, and by how much they differ."""
    found = {name: trained(name, ONE_STEP, team, device) for name in MODELS}
    found |= {f"epochs {name}": trained(name, EPOCHS, team, device) for name in MODELS}
    found |= {"stopped": trained("cvae", STOPPING, team, device)}
    apart = torch.zeros(2)
    for weights, _, records in found.values():
        theirs, said = team.broadcast((weights, records))
        apart[0] += sum(not torch.allclose(weights[k], theirs[k], 0.0, 0.0, equal_nan=True) for k in weights)
        apart[1] += said != records
    team.sum([apart])
    messages = []
    for failing in (0, 1):
        try:
            with team.together():
                if team.rank == failing:
                    raise lacova.DataError(f"the rows of {failing} are bad.")
                team.sum([torch.ones(3)])
        except (lacova.DataError, TrainingError) as error:
            messages.append(f"{type(error).__name__}: {error}")
    asked = [team.any(team.rank == 1), team.any(False)]
    return found, apart.tolist(), messages, asked


@pytest.fixture(scope="module")
def pair():
    pytest.importorskip("lightning_fabric")
    return launch(together, 2, 1, "cpu")


@pytest.mark.parametrize("name", MODELS)
def test_two_processes_have_the_gradients_and_statistics_of_one(pair, name):
    weights, gradients, _ = trained(name, ONE_STEP)
    weights_of_two, gradients_of_two, _ = pair[0][name]
    for k, value in gradients.items():
        close(gradients_of_two[k], value, 1e-5)  # float32, in which sums are rounded in another order
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


def test_the_two_are_one(pair):
    found, apart, _, asked = pair
    assert apart == [0.0, 0.0]
    assert len(found["stopped"][2]) < STOPPING.max_epochs
    assert asked == [True, False]


def test_a_failure_of_one_is_told_to_the_other(pair):
    assert pair[2] == [
        "DataError: the rows of 0 are bad.",
        "OtherProcessError: process 1 of 2 failed: DataError: the rows of 1 are bad.",
    ]


FAILING = """
import sys
sys.path.insert(0, {root!r})
from lacova.training.step import Step
from tests.training.test_distributed import MODELS, table

usual = Step.__call__

def broken(self, training_batch, number, weight):
    if self.team.rank == 1 and number == 2:
        raise ValueError("the second process has had enough.")
    return usual(self, training_batch, number, weight)

Step.__call__ = broken
if __name__ == "__main__":
    MODELS["cvae"]().fit(table(), devices=2, device="cpu", batch_size=5)
"""


def environment():
    return os.environ | {"PYTHONPATH": str(Path(lacova.__file__).parents[1]), "OMP_NUM_THREADS": "1"}


def test_an_exception_in_one_process_ends_all(tmp_path):
    pytest.importorskip("lightning_fabric")
    script = tmp_path / "failing.py"
    script.write_text(FAILING.format(root=str(Path(__file__).parents[2])))
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=120, env=environment()
    )
    assert done.returncode == 1
    assert "\nValueError: the second process has had enough.\n" in done.stderr


def test_lacova_fit_with_two_processes_writes_one_model(tmp_path, monkeypatch, capsys):
    pytest.importorskip("lightning_fabric")
    monkeypatch.chdir(tmp_path)
    table(30).to_csv("visits.csv", index=False)
    SCHEMA.to_toml("schema.toml")
    command = ["fit", "visits.csv", "--schema", "schema.toml", "--epochs", "2", "--batch-size", "6", "--device", "cpu"]
    assert main([*command, "--out", "one"]) == 0
    done = subprocess.run(
        [sys.executable, "-m", "lacova", *command, "--out", "two", "--devices", "2", "--json"],
        capture_output=True, text=True, check=False, timeout=120, env=environment(),
    )  # fmt: skip
    assert (done.returncode, done.stderr.count("\n")) == (0, 1), done.stderr
    assert sorted(p.name for p in Path().iterdir()) == ["one", "schema.toml", "two", "visits.csv"]
    one, two = (pd.read_csv(f"{run}/training.csv") for run in ("one", "two"))
    pd.testing.assert_frame_equal(two, one, rtol=1e-4, atol=1e-5)
    assert len(lacova.load("two/model.lacova").impute(table(30))) == len(table(30))
