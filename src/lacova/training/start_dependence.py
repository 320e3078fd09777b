"""How numbers that are missing together depend on each other given the measurements, by a linear model.

y = B x + W z + ε is fitted to the rows, and so is the covariance of x where the covariate prior does not state one. The
posterior of missing numbers has the correlations of that model (`covariates/dependence.py`); its means and variances
are learnt. Of patients there are two such models: visits less what the patient's other visits say, and patients'
averages.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lacova.covariates.dependence import (
    PRIOR_VISITS,
    Group,
    NumberDependence,
    PosteriorDependence,
    groups_of,
)
from lacova.covariates.linear_model import fit_linear_model
from lacova.covariates.longitudinal import LongitudinalPrior
from lacova.covariates.prior import JointPrior
from lacova.data.batches import Batches
from lacova.data.table import Table
from lacova.inference.vae import ConditionalVAE
from lacova.nn.networks import Decoder
from lacova.training.start import identifiable_factors

MAX_ROWS = 2000  # rows that are used, of whole patients
MIN_ROWS = 20  # rows, or patients, with two numbers or more, for a group to have a model
MOST_FACTORS = 5


def start_dependence(vae: ConditionalVAE, table: Table, seed: int) -> None:
    """Give q(x_u | ·) the correlations of numbers that are missing together.

    It leaves a model alone whose numbers are independent given what is observed, by choice or because the prior is
    another, and one whose decoder has no linear path.

    Args:
        vae: the model on the host, as built.
        table: the training rows, or a sample of them.
        seed: of the random numbers.
    """
    prior, posterior = vae.covariate_prior, vae.covariate_posterior
    own: NumberDependence | None = None
    if isinstance(prior, LongitudinalPrior):
        own = prior.dependence
        possible, time = own is not None, prior.time
    else:
        possible, time = isinstance(prior, JointPrior) and vae.joint, None
    linear = isinstance(vae.decoder, Decoder) and vae.decoder.linear is not None
    groups = groups_of(vae.space, time)
    if not (possible and linear and posterior.sees_y and groups):
        return
    generator = torch.Generator().manual_seed(seed)
    chosen = _sample(table, generator)
    gaussian = vae.measurements.columns("gaussian")
    factors = min(identifiable_factors(len(gaussian)), MOST_FACTORS)
    dependence = PosteriorDependence(vae.space, len(gaussian), factors, by_scale=own is not None)
    if own is not None:
        dependence.precision.copy_(own.precision)
    for group in groups:
        x, y = _rows(vae, prior, chosen, group)
        several = x.isfinite().sum(1) > 1
        if int(several.sum()) >= MIN_ROWS:
            used = several | (x.isfinite().any(1) & y.isfinite().any(1))
            dependence.set(group, fit_linear_model(x[used], y[used], factors, generator))
    posterior.dependence = dependence


def _sample(table: Table, generator: torch.Generator) -> Table:
    """Return the rows of some units in random order, as many as are used."""
    batches = Batches(table)
    units = torch.randperm(batches.units, generator=generator)
    rows, unit = batches.rows(units)
    kept = unit < unit[min(MAX_ROWS, len(rows)) - 1] + 1
    rows, unit = rows[kept], unit[kept]
    patient = None if table.patient is None else unit
    labels = table.labels if table.patient is None else tuple(range(int(unit[-1]) + 1))
    return Table(table.y[rows], table.y_mask[rows], table.x[rows], table.x_mask[rows], patient, labels)


def _rows(vae: ConditionalVAE, prior: object, table: Table, group: Group) -> tuple[Tensor, Tensor]:
    """Return numbers of a group and Gaussian measurements with gaps as NaN, one line for each row or patient, less what
    categories say of them, and centred."""
    columns, gaussian = torch.tensor(group.columns), vae.measurements.columns("gaussian")
    x = torch.where(table.x_mask, table.x.double(), torch.nan)
    y = torch.where(table.y_mask, table.y.double(), torch.nan)[:, gaussian]
    hot = _levels(vae, table)
    if isinstance(prior, LongitudinalPrior):
        assert table.patient is not None
        patient, patients = table.patient, len(table.labels)
        if group.static:
            hot = torch.zeros(patients, hot.shape[1], dtype=hot.dtype).index_add(0, patient, hot)
            hot = hot / torch.bincount(patient, minlength=patients)[:, None]
            total, count = _sums(y, patient, patients)
            y = torch.where(count > 0, total / (count + PRIOR_VISITS), torch.nan)
            total, count = _sums(x[:, columns], patient, patients)
            x = total / count
        else:
            places = torch.tensor([vae.space.continuous.index(q) for q in group.columns])
            x = prior.residuals(table)[:, places] * prior.marginal.var[columns].double().sqrt()
            total, count = _sums(y, patient, patients)
            others = (total[patient] - torch.nan_to_num(y)) / (count[patient] - 1.0 + PRIOR_VISITS)
            y = y - others
    else:
        x = x[:, columns]
    return _less(x, hot), _less(y, hot)


def _levels(vae: ConditionalVAE, table: Table) -> Tensor:
    """Return one-hot features of the categories, at their average where they are missing (N×levels)."""
    at = vae.space.on(table.x.device)
    hot = vae.space.values(table.x)[:, len(vae.space.continuous) :].double()
    known = table.x_mask[:, at.owner[len(vae.space.continuous) :]].double()
    average = (hot * known).sum(0) / known.sum(0).clamp_min(1.0)
    return hot * known + average * (1.0 - known)


def _sums(values: Tensor, patient: Tensor, patients: int) -> tuple[Tensor, Tensor]:
    """Return sums and numbers of the observed values of each patient."""
    zeros = values.new_zeros(patients, values.shape[1])
    known = values.isfinite().to(values.dtype)
    return zeros.index_add(0, patient, torch.nan_to_num(values)), zeros.index_add(0, patient, known)


def _less(values: Tensor, hot: Tensor) -> Tensor:
    """Return values with gaps (n×m) less a ridge regression on features, and centred."""
    known = values.isfinite().to(values.dtype)
    filled = torch.nan_to_num(values)
    design = torch.cat([torch.ones(len(hot), 1, dtype=hot.dtype), hot], 1)
    outer = (design[:, :, None] * design[:, None]).flatten(1)
    size = design.shape[1]
    gram = (known.mT @ outer).unflatten(1, (size, size)) + 1e-3 * torch.eye(size, dtype=hot.dtype)
    coefficients = torch.linalg.solve(gram, filled.mT @ design)
    left: Tensor = values - design @ coefficients.mT
    return left
