"""Members: further models, each continued from the fit on a bootstrap sample of its rows or patients.

They vary as the parameters would if the study were repeated. A member begins where the fit ended and takes a share of
its steps: the optimum of a resampled table lies near that of the table.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import Tensor

from lacova.data.batches import Batches
from lacova.data.table import Table
from lacova.inference.vae import ConditionalVAE
from lacova.training.checkpoint import Checkpoint
from lacova.training.loader import TableLoader
from lacova.training.options import FitOptions, share_of_few_rows
from lacova.training.trainer import Outcome, Trainer

# Steps and rates of a member, as shares of those of the fit. The rates of patients are high: at more than this share,
# members lose accuracy on unseen patients. Those of rows are low: at less, members do not reach their own optimum.
MEMBER_SHARE, RATE_OF_ROWS, RATE_OF_PATIENTS = 0.15, 1.0, 0.25


def train_member(
    vae: ConditionalVAE, train: TableLoader, options: FitOptions, number: int, checkpoint: Checkpoint | None = None
) -> tuple[ConditionalVAE, Outcome]:
    """Train a member, and return it.

    Its networks, kernels and variances of patients are those of the bootstrap sample. Its noise, and the shape of
    measurements that are not Gaussian, are those of the fit: a bootstrap sample has some rows several times, and the
    residuals of few rows are smaller than their noise. What is integrated over keeps the posterior of all rows, whose
    doubt would otherwise count twice: v of a GP prior is solved for them in the end, and the coefficients w of fixed
    effects stay as the fit left them.

    Args:
        vae: the fitted model, which stays as it is.
        train: its training rows.
        options: those of the fit.
        number: of the member, from 1.
        checkpoint: a file to write now and then.
    """
    member = copy.deepcopy(vae)
    effects = member.random_effects
    for part in (member.likelihood, member.row_noise, None if effects is None else effects.fixed_effects):
        if part is not None:
            part.requires_grad_(False)
    own = member_options(options, train, number)
    units = draw_units(train.host, own.seed)
    posterior, count = member.covariate_posterior, torch.bincount(units, minlength=train.units)
    if posterior.visit_regression is not None:
        posterior.visit_regression.follow(copy.deepcopy(member.covariate_prior).cpu(), count)
    if posterior.linear_posterior is not None:
        posterior.linear_posterior.fit(count)
    rows = TableLoader(resample(train.host, units), train.masking_rate, own, train.device, train.team)
    outcome = Trainer(member, rows, None, own, checkpoint, posterior_rows=train).run()
    return member, outcome


def member_options(options: FitOptions, train: TableLoader, number: int) -> FitOptions:
    """Return the options of a member: its own seed, and shares of the epochs and rates of the fit."""
    whole = options.resolved(train.units, train.by_row, train.length)
    rates = RATE_OF_ROWS if train.by_row else RATE_OF_PATIENTS
    networks, fast, natural = (rates * rate for rate in whole.rates)
    # A fit to few rows stops short of its optimum; a member must not stop short of its own by as much again.
    share = MEMBER_SHARE / (share_of_few_rows(train.units) if train.by_row else 1.0)
    return replace(
        whole, seed=options.seed + 7919 * number, max_epochs=max(1, round(share * whole.epochs)),
        learning_rate=networks, fast_learning_rate=fast, natural_rate=natural, latent_weight=1.0,
    )  # fmt: skip


def draw_units(table: Table, seed: int) -> Tensor:
    """Draw as many rows as a table has, or as many patients, with replacement."""
    count = Batches(table).units
    return torch.randint(count, (count,), generator=torch.Generator().manual_seed(seed))


def resample(table: Table, units: Tensor) -> Table:
    """Return a table of these rows or patients; a patient that comes twice is two."""
    batches = Batches(table)
    rows, unit = batches.rows(units)
    drawn = {name: getattr(table, name)[rows] for name in ("y", "y_mask", "x", "x_mask")}
    patient = None if table.patient is None else unit
    labels = table.labels if table.patient is None else tuple(range(len(units)))
    return replace(table, **drawn, patient=patient, labels=labels, conditional_prior=None)
