"""Prediction never forms an N×N matrix: measured, at N = 20,000."""

import subprocess
import sys

PROGRAM = """
import resource, sys, torch
from lacova.data.batches import Batch
from lacova.covariates.scenarios import Scenarios
from lacova.data.covariate_space import CovariateSpace
from lacova.priors.gp.formula import Component
from lacova.priors.gp.inducing import InducingPoints
from lacova.priors.gp.kernels import AdditiveKernel
from lacova.priors.base import Encoded
from lacova.priors.gp.prior import GPPrior
torch.set_num_threads(1)
n, latent, g = 20_000, 2, torch.Generator().manual_seed(0)
space = CovariateSpace(("t", "age"), (0, 0), (False, False))
instance = sys.argv[1] == "patients"
terms = [Component(("t",)), Component(("age",))] + ([Component(("t",), instance=True)] if instance else [])
x = torch.randn(n, 2, generator=g)
prior = GPPrior(AdditiveKernel(terms, space, latent), InducingPoints(x[:60], space, latent), space)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

def parts():
    for rows in torch.arange(n).split(500):
        patient = torch.arange(500) // 10
        empty = torch.zeros(500, 1)
        batch = Batch(empty, empty > 0, x[rows], torch.ones(500, 2, dtype=torch.bool), patient)
        line = torch.arange(500)
        group, units = (patient, 50) if instance else (line, 500)
        yield Encoded(Scenarios(x[rows], line, group, line * 0, torch.ones(units),
                    torch.arange(units), torch.zeros(units, dtype=torch.long), units, 1), batch,
                      torch.randn(500, latent, generator=g), torch.rand(500, latent, generator=g))

with torch.no_grad():
    prior.cache_posterior(parts())
    mean, var = prior.predict(x[:1000], torch.arange(1000))
assert torch.isfinite(mean).all() and (var > 0).all()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


def peak_mebibytes(kind):
    done = subprocess.run([sys.executable, "-c", PROGRAM, kind], capture_output=True, text=True, check=True)
    return float(done.stdout)


def test_no_matrix_of_rows_by_rows():
    # One 20,000 × 20,000 matrix of float64 is 3,052 MiB.
    for kind in ("rows", "patients"):
        used = peak_mebibytes(kind)
        assert used < 150, f"{kind}: {used:.0f} MiB"
