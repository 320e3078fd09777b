"""What is doubtful about a fitted model: sentences for `fit`, `describe` and the report.

Each check looks at the fitted parts and at some of the training rows. It asks for what a sound fit never has, not for
what is merely unusual: with eight latent dimensions and three measurements most dimensions are unused, and rightly so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from lacova.data.batches import Batch
from lacova.data.errors import listed
from lacova.data.table import Table
from lacova.data.table_encoder import TableEncoder
from lacova.inference.vae import ConditionalVAE

ROWS = 2000  # training rows that are looked at, about
USED = 0.01  # share of the variance of z_l that its posterior mean has, from which dimension l is used
FULLY_USED = 0.05  # for the same share in any dimension, z as a whole is used
REMAINING = 0.3  # correlation of what z leaves of two measurements, and
CHANCE = 5.0  # how many standard errors it must be above 0
AT_FLOOR = 10.0  # noise variance as a multiple of its floor; 77 or more in sound fits
EXPLAINED = 0.95  # share of a measurement's variance, from which its noise is small
PATIENT_SHARE = 0.99
SEEN_TWICE = 10  # patients with a covariate at two visits or more, from which it is noticed that it never changes
# Observations of a measurement, or patients with one, per coefficient: docs/training.md has the figures.
PER_COEFFICIENT, PER_COEFFICIENT_OF_GP = 7, 50


class Findings(NamedTuple):
    """What a look at a fitted model found.

    Attributes:
        used: how many latent dimensions are used; None of a model of an earlier version.
        concerns: what is doubtful, as sentences by kind.
    """

    used: int | None = None
    concerns: Mapping[str, str] = {}


class Fit(NamedTuple):
    """What the checks look at, of some training rows; D counts Gaussian measurements.

    Attributes:
        share: share of the variance of each latent dimension that its posterior mean has (L,).
        residual: measurements less the decoder's mean and the random effects' (n×D), NaN at gaps.
        noise: variance of the noise (D,).
        variance: variance of the observed values (D,).
        patients: share of the random effects in the variance (D,); None without random effects.
    """

    share: Tensor
    residual: Tensor
    noise: Tensor
    variance: Tensor
    patients: Tensor | None


def examine(
    vae: ConditionalVAE, encoder: TableEncoder, table: Table, batches: Iterable[Batch], noise_floor: float
) -> Findings:
    """Examine a fit.

    Args:
        vae: the trained model.
        encoder: names the measurements.
        table: the training rows, or a sample of them.
        batches: the same rows, conditioned, on the device of the model.
        noise_floor: least variance of the noise.
    """
    of_gp = vae.prior.inducing_count > 0 and table.patient is None
    names = [encoder.schema.measurements[d] for d in encoder.measurements.columns("gaussian")]
    fit = _look(vae, batches, len(names))
    found = {
        "small table": small_table(encoder, table, of_gp),
        "unused z": unused(fit, names),
        "undeclared": undeclared(encoder, table),
        "noise at its floor": at_floor(fit, names, noise_floor),
        "patient share": patients_only(fit, names),
    }
    used = int((fit.share >= USED).sum())
    return Findings(used, {kind: sentence for kind, sentence in found.items() if sentence})


def small_table(encoder: TableEncoder, table: Table, of_gp: bool = False) -> str:
    """Warn of measurements with few observations per coefficient of a regression on the covariates.

    The coefficients are an intercept, one per number and one per further level of a category. Those of visit-constant
    covariates are counted once more, against patients.
    """
    space, least = encoder.space, PER_COEFFICIENT_OF_GP if of_gp else PER_COEFFICIENT
    own = [max(levels - 1, 1) for levels in space.levels]
    found = _few(encoder, table.y_mask, least, 1 + sum(own), "rows") if own else ""
    if table.patient is not None and any(space.static):
        seen = torch.zeros(len(table.labels), table.y_mask.shape[1])
        seen = seen.index_add_(0, table.patient, table.y_mask.to(seen)) > 0
        lasting = 1 + sum(count for count, static in zip(own, space.static, strict=True) if static)
        found = _few(encoder, seen, least, lasting, "patients") or found
    return found


def undeclared(encoder: TableEncoder, table: Table) -> str:
    """Warn of covariates that never change within a patient but are not declared so."""
    space = encoder.space
    if table.patient is None:
        return ""
    patient = table.patient[:, None].expand_as(table.x)
    count, low, high = (
        torch.full((len(table.labels), table.x.shape[1]), start, dtype=table.x.dtype)
        for start in (0.0, torch.inf, -torch.inf)
    )
    count.scatter_add_(0, patient, table.x_mask.to(table.x))
    low.scatter_reduce_(0, patient, torch.where(table.x_mask, table.x, torch.inf), "amin")
    high.scatter_reduce_(0, patient, torch.where(table.x_mask, table.x, -torch.inf), "amax")
    several, known = count > 1.0, count > 0.0
    constant = ((low == high) | ~several).all(0) & (several.sum(0) >= SEEN_TWICE)
    differs = torch.where(known, low, torch.inf).amin(0) < torch.where(known, high, -torch.inf).amax(0)
    names = [
        name for q, name in enumerate(space.names)
        if constant[q] and differs[q] and not space.static[q] and name != encoder.schema.time
    ]  # fmt: skip
    if not names:
        return ""
    return (
        f"{listed(names)} never changed within a patient, but {'is' if len(names) == 1 else 'are'} not declared "
        "visit-constant: an effect of it is taken for patients' own differences. Declare it in the schema, static="
        f"{names!r}, if it cannot change."
    )


def _few(encoder: TableEncoder, seen: Tensor, least: int, coefficients: int, units: str) -> str:
    observed = seen.sum(0).tolist()
    names = [n for n, count in zip(encoder.schema.measurements, observed, strict=True) if count < least * coefficients]
    if not names:
        return ""
    return (
        f"The table is small: {listed(names)} has or have values in as few as {min(observed)} {units}, for "
        f"{coefficients} coefficients of covariates. About {least} {units} for each, {least * coefficients} in all, "
        "are needed; with fewer, predictions and intervals are rough. Leave out covariates, or merge levels."
    )


def unused(fit: Fit, names: list[str]) -> str:
    """Warn if z is unused, although measurements go together in a way that nothing else explains."""
    if fit.share.max() >= FULLY_USED or len(names) < 2:
        return ""
    pair = _strongest_pair(fit.residual)
    if pair is None:
        return ""
    i, j, correlation = pair
    return (
        f"All {len(fit.share)} latent dimensions are unused, but {names[i]!r} and {names[j]!r} go together beyond what "
        f"covariates explain (correlation {correlation:.2f}): imputed values will not. Fit longer (max_epochs=), or "
        "with latent_weight=1 if that is larger."
    )


def at_floor(fit: Fit, names: list[str], noise_floor: float) -> str:
    """Warn of measurements whose noise went to its floor, though they vary much more than that."""
    low = (fit.noise <= AT_FLOOR * noise_floor) & (fit.noise < (1.0 - EXPLAINED) * fit.variance)
    if not low.any():
        return ""
    return (
        f"The noise of {listed(_chosen(names, low))} went to its floor: the model takes their values for exactly "
        "determined by the others, and its intervals are too narrow unless they are. Take out copies of a column, or "
        "give fewer latent dimensions, or a larger noise_floor."
    )


def patients_only(fit: Fit, names: list[str]) -> str:
    """Warn of measurements whose variance is nearly all between patients."""
    if fit.patients is None:
        return ""
    all_of_it = (fit.patients >= PATIENT_SHARE) & (fit.variance > 0.0)
    if not all_of_it.any():
        return ""
    return (
        f"Patients' own effects have {PATIENT_SHARE:.0%} or more of the variance of "
        f"{listed(_chosen(names, all_of_it))}: covariates and time explain next to nothing there, and effects on them "
        "are not to be relied on. Fit longer, or leave patients' effects out (patient_effects=False) and compare."
    )


def _chosen(names: list[str], chosen: Tensor) -> list[str]:
    return [name for name, is_chosen in zip(names, chosen.tolist(), strict=True) if is_chosen]


@torch.no_grad()
def _look(vae: ConditionalVAE, batches: Iterable[Batch], gaussian: int) -> Fit:
    """Compare training rows with what the model makes of them; of so many Gaussian measurements."""
    z, z_var, y, location, residual, patients = (list[Tensor]() for _ in range(6))
    for batch in batches:
        mean, var = vae.encode(batch)
        z.append(mean)
        z_var.append(var)
        if gaussian:
            x = vae.draw_covariates(batch, 1, torch.Generator(batch.x.device).manual_seed(0))[0]
            mean, part, noise = vae.likelihood.gaussian_part(vae.decode(mean, x), batch)
            left = part.y - mean
            if vae.random_effects is not None:
                fixed = vae.fixed_part_at(x, batch)
                left = left - vae.random_effects.expect(mean, part, noise, None if fixed is None else fixed.mean)
                patients.append(vae.random_effects.variance(part))
            location.append(mean)
            y.append(torch.where(part.y_mask, part.y, torch.nan))
            residual.append(torch.where(part.y_mask, left, torch.nan))
        if sum(map(len, z)) >= ROWS:
            break
    between, within = torch.cat(z).double().var(0, correction=0), torch.cat(z_var).double().mean(0)
    share = (between / (between + within)).cpu()
    if not gaussian:
        none = torch.zeros(0, dtype=torch.float64)
        return Fit(share, none[None], none, none, None)
    noise = vae.likelihood.noise_variance.double()
    of_patients = None
    if patients:
        own = torch.cat(patients).double().mean(0)
        of_patients = (own / (own + noise + torch.cat(location).double().var(0, correction=0))).cpu()
    variance = _variance(torch.cat(y).double().cpu())
    return Fit(share, torch.cat(residual).double().cpu(), noise.cpu(), variance, of_patients)


def _variance(values: Tensor) -> Tensor:
    """Return the variance of each column, over what is not NaN."""
    return (values - values.nanmean(0)).square().nanmean(0)


def _strongest_pair(residual: Tensor) -> tuple[int, int, float] | None:
    """Return the two columns that are most correlated, and their correlation, if it is large and no chance."""
    seen = ~residual.isnan()
    scaled = torch.where(seen, (residual - residual.nanmean(0)) / _variance(residual).sqrt(), 0.0)
    together = seen.double().T @ seen.double()
    correlation = (scaled.T @ scaled / together.clamp_min(1.0)).triu(1)
    strong = (correlation.abs() > REMAINING) & (correlation.abs() * together.sqrt() > CHANCE)
    if not strong.any():
        return None
    i, j = divmod(int(torch.where(strong, correlation.abs(), 0.0).argmax()), len(correlation))
    return i, j, float(correlation[i, j])
