"""What a linear model of x and y says of missing numbers, where q(x_u | ·) starts.

y = B x + W z + ε is fitted to the rows. Of independent rows it gives the posterior of the gaps
(`covariates/linear_posterior.py`). Of patients, it gives the correlations of numbers that are missing together
(`covariates/dependence.py`), and there are two models: of visits less what the patient's other visits say, and of
patients' averages.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lacova.covariates.dependence import PRIOR_VISITS, Group, PosteriorDependence, groups_of
from lacova.covariates.linear_model import fit_linear_model, most_factors, of_patients, regress, with_intercept
from lacova.covariates.linear_posterior import LinearPosterior
from lacova.covariates.longitudinal import LongitudinalPrior
from lacova.covariates.prior import JointPrior
from lacova.data.batches import Batches
from lacova.data.table import Table
from lacova.inference.vae import ConditionalVAE
from lacova.nn.networks import Decoder

MAX_ROWS = 2000  # rows that are used, of whole patients
MIN_ROWS = 20  # rows with a number and a measurement, or with two numbers of a group of patients' numbers, for a model


def start_dependence(vae: ConditionalVAE, table: Table, seed: int) -> None:
    """Give q(x_u | ·) the linear model of independent rows, or patients' correlations of numbers missing together.

    It leaves a model alone whose numbers are independent given what is observed, by choice or because the prior is
    another, and one whose decoder has no linear path.

    Args:
        vae: the model on the host, as built.
        table: the training rows, or a sample of them.
        seed: of the random numbers.
    """
    prior, posterior = vae.covariate_prior, vae.covariate_posterior
    linear = isinstance(vae.decoder, Decoder) and vae.decoder.linear is not None
    if not (linear and posterior.sees_y and vae.space.continuous):
        return
    generator = torch.Generator().manual_seed(seed)
    gaussian = vae.measurements.columns("gaussian")
    if isinstance(prior, LongitudinalPrior):
        if posterior.dependence is not None:
            _start_patients(vae, prior, posterior.dependence, table, generator)
    elif isinstance(prior, JointPrior) and vae.joint and table.patient is None and gaussian:
        rows = torch.randperm(len(table), generator=generator)[:MAX_ROWS]
        informative = table.x_mask[rows][:, vae.space.continuous].any(1) & table.y_mask[rows][:, gaussian].any(1)
        if int(informative.sum()) >= MIN_ROWS:
            model = LinearPosterior(vae.space, gaussian, most_factors(len(gaussian)))
            model.learn(table, rows, seed)
            posterior.start_from_model(model)


def _start_patients(
    vae: ConditionalVAE, prior: LongitudinalPrior, dependence: PosteriorDependence, table: Table,
    generator: torch.Generator,
) -> None:  # fmt: skip
    """Tell q how measurements change the correlations of numbers that patients lack together."""
    groups = groups_of(vae.space, prior.time)
    chosen = _sample(table, generator) if groups else table
    for group in groups:
        x, y = _rows(vae, prior, chosen, group)
        several = x.isfinite().sum(1) > 1
        if int(several.sum()) >= MIN_ROWS:
            used = several | (x.isfinite().any(1) & y.isfinite().any(1))
            dependence.set_loadings(group, fit_linear_model(x[used], y[used], dependence.factors, generator))


def _sample(table: Table, generator: torch.Generator) -> Table:
    """Return the rows of some patients in random order, as many as are used."""
    batches = Batches(table)
    units = torch.randperm(batches.units, generator=generator)
    rows, unit = batches.rows(units)
    kept = unit < unit[min(MAX_ROWS, len(rows)) - 1] + 1
    rows, unit = rows[kept], unit[kept]
    labels = tuple(range(int(unit[-1]) + 1))
    return Table(table.y[rows], table.y_mask[rows], table.x[rows], table.x_mask[rows], unit, labels)


def _rows(vae: ConditionalVAE, prior: LongitudinalPrior, table: Table, group: Group) -> tuple[Tensor, Tensor]:
    """Return numbers of a group and Gaussian measurements with gaps as NaN, one line for each visit or patient, less
    what categories say of them."""
    assert table.patient is not None
    patient, patients = table.patient, len(table.labels)
    columns, gaussian = torch.tensor(group.columns), vae.measurements.columns("gaussian")
    y = torch.where(table.y_mask, table.y.double(), torch.nan)[:, gaussian]
    features = with_intercept(*vae.space.levels_of(table.x, table.x_mask))
    total, count = _sums(y, patient, patients)
    if group.static:
        features = of_patients(features, patient)[patient.diff(prepend=patient.new_full((1,), -1)) > 0]
        y = torch.where(count > 0, total / (count + PRIOR_VISITS), torch.nan)
        total, count = _sums(torch.where(table.x_mask, table.x.double(), torch.nan)[:, columns], patient, patients)
        x = total / count
    else:
        places = torch.tensor([vae.space.continuous.index(q) for q in group.columns])
        x = prior.residuals(table).left[:, places] * prior.marginal.var[columns].double().sqrt()
        others = (total[patient] - torch.nan_to_num(y)) / (count[patient] - 1.0 + PRIOR_VISITS)
        y = y - others
    return x - features @ regress(x, features), y - features @ regress(y, features)


def _sums(values: Tensor, patient: Tensor, patients: int) -> tuple[Tensor, Tensor]:
    """Return sums and numbers of the observed values of each patient."""
    zeros = values.new_zeros(patients, values.shape[1])
    known = values.isfinite().to(values.dtype)
    return zeros.index_add(0, patient, torch.nan_to_num(values)), zeros.index_add(0, patient, known)
