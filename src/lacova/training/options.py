"""Options of training, and the error of training that fails."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple


class TrainingError(RuntimeError):
    """Training cannot continue."""


# Defaults of constant rates: this many epochs, or more if a small table has fewer steps than this in them.
DEFAULT_EPOCHS, MIN_STEPS = 200, 3000
DEFAULT_PATIENCE, MIN_PATIENCE_STEPS = 30, 400
# Defaults of a cycle: this many steps for 200 patients, growing with the square root of their number, and the same for
# rows if there are many. Where patients have more visits than this on average, these count as further patients.
CYCLE_STEPS, CYCLE_GROWTH, CYCLE_UNITS, CYCLE_VISITS = 600, 0.5, 200, 10
# The same for patients whose model starts near the end. The start leaves least to learn where patients are few.
STARTED_STEPS, STARTED_GROWTH = 300, 0.6
FEW_ROWS = 1500  # below this, steps grow with the number of rows itself: more of them fit the noise
CYCLE_VALIDATIONS = 30  # about how often validation rows are looked at
CYCLE_PRIOR_UPDATES = 20  # about how often the covariate prior is updated
DEFAULT_MEMBERS = 5
STEPS_WORTH_COMPILING = 20_000  # compilation takes 75 s and saves about 4 ms per step on an H200


# A cycle of rates: share of the steps in which they rise, and the factors at both ends.
RISE_SHARE, START_FACTOR, END_FACTOR = 0.15, 0.04, 0.01


class Rates(NamedTuple):
    """Step sizes: of Adam for the networks, of Adam for what is on the log scale, and of natural gradients."""

    learning_rate: float
    fast_learning_rate: float
    natural_rate: float


CONSTANT_ROWS, CONSTANT_PATIENTS = Rates(1e-3, 1e-2, 0.1), Rates(3e-3, 1e-2, 0.1)
CYCLE_ROWS, CYCLE_PATIENTS = Rates(4e-3, 4e-2, 0.3), Rates(0.016, 0.06, 0.5)
ROWS_PER_STEP, PATIENTS_PER_STEP, BATCH_ROWS = 100, (10, 25), 400
RATE_PATIENTS = 250  # rates of a cycle fall with the root of the number of patients above this: it has more steps


def default_rates(schedule: str, units: int, by_row: bool) -> Rates:
    """Return rates that suit a table of so many rows or patients; a cycle has larger ones, since it lets them fall."""
    if schedule == "constant":
        return CONSTANT_ROWS if by_row else CONSTANT_PATIENTS
    if by_row:
        return CYCLE_ROWS
    share = min(1.0, (RATE_PATIENTS / units) ** 0.5)
    return Rates(*(share * rate for rate in CYCLE_PATIENTS))


def default_batch_size(schedule: str, units: int, by_row: bool, rows: int) -> int:
    """Return how many rows or patients a step takes: in a cycle, patients with about `BATCH_ROWS` visits in all."""
    if by_row:
        return ROWS_PER_STEP
    fewest, most = PATIENTS_PER_STEP
    if schedule == "constant":
        return fewest
    size = max(fewest, min(most, round(BATCH_ROWS * units / rows)))
    return -(-units // max(1, round(units / size)))  # the last batch of an epoch is about as large as the others


def share_of_few_rows(rows: int) -> float:
    """Return the share of the steps of a cycle that so many rows are given."""
    return math.sqrt(min(1.0, rows / FEW_ROWS))


@dataclass(frozen=True)
class FitOptions:
    """How to train.

    Args:
        max_epochs: most passes over the training rows. None: as many as have about 300 steps for 200 patients, or 1,600
            for 1,500 rows; 600 for 200 patients, if the model has no start near the end. Steps grow with about the
            square root of these numbers; below 1,500, with the number of rows itself. For constant rates 200, or more
            if these have fewer than 3,000 steps.
        batch_size: rows per step, or patients per step if the schema has an instance column. None for 100 rows or 25
            patients; for 10 patients if they have many visits each or rates are constant.
        learning_rate: learning rate of Adam for the networks; None for one that suits the schedule and the table.
        fast_learning_rate: learning rate of Adam for kernel parameters, inducing inputs and noise variances, which are
            on the log scale; None in the same way.
        natural_rate: step size of the natural gradient of q(v), above 0 and at most 1; None in the same way.
        schedule: "cycle": all rates rise over the first 15% of the planned steps and fall along a cosine to 1% at the
            end, so that few steps suffice; or "constant" rates.
        start: "factors": decoder, encoder and noise start from a linear factor model of the Gaussian measurements, if
            the decoder has a linear path. "random": from random weights.
        patience: epochs without improvement on the validation rows before training stops. None for no such end of a
            cycle, whose high rates may hide what it gains in the end; for constant rates 30, or more if these have
            fewer than 400 steps.
        validate_every: epochs from one look at the validation rows to the next; the last epoch always has one. None
            for 1 if a patience is given or rates are constant, else for about 30 looks in all.
        latent_weight: initial weight of the latent KL, which falls geometrically to 1. With a large weight, a decoder
            with input x first learns what x explains, before z can replace it; `CVAE` therefore starts at 100.
        latent_epochs: epochs until the weight of the latent KL is 1; None for a third of `max_epochs`. No earlier epoch
            counts as the best on the validation rows.
        masked_loss: weight of the masked-covariate loss. It masks some observed covariates and adds their log
            probability under q(x_u | ·) to the objective. 0 leaves it out; models whose q depends on y use 1.
        encoder_dropout: largest share of a row's observed measurements that is hidden from the encoder. In every step,
            each row draws its share between 0 and this number, and keeps at least one measurement; the bound is still
            that of all of them. The encoder learns to cope with gaps that the training rows lack. docs/models.md shows
            when that helps.
        prior_every: number of epochs from one update of the covariate prior to the next. An update is a step towards
            the training covariates as q completes them, so that the prior is right where gaps in X depend on Y. 0
            leaves the prior as it was fitted to the observed entries. None for about 20 updates in a cycle; for none
            with constant rates, and where X is complete or its prior is stated or the paper's.
        samples: draws of continuous x_u and of z per row and step, which are averaged.
        importance: K, draws of x_u and z per row and step, which are weighted: the importance-weighted bound, which
            rises with K towards log p(y_o | x_o). 1 is the evidence lower bound; `MIWAE` has 20. See docs/models.md.
        cap: largest joint table of missing categories that is summed exactly; larger ones are sampled. None for 64
            states of a row, or 4 of a patient if the prior couples its rows.
        buffer_rows: rows to hold in memory and shuffle at a time when training from Parquet; see docs/scaling.md.
        members: K of at least 2 adds an ensemble of K members, each continued from the fit on a bootstrap sample of
            the rows or patients, for 15% of its steps. Draws of every answer are then spread over the members, so that
            they vary in the parameters, too. 1 for one model alone. None for 5, but for 1 where `max_epochs` is given
            or the rows are not in memory. See docs/training.md.
        seed: seed of all random numbers; the same seed gives the same model on the same CPU.
        capture: record a training step as a CUDA graph and replay it; None does so on a GPU.
        compile: compile the loss with torch on a GPU, which takes a minute or more. None does so if steps are captured
            and training may take at least 20,000 of them.
        progress: show a progress bar on stderr; None shows it in a terminal only.
    """

    max_epochs: int | None = None
    batch_size: int | None = None
    learning_rate: float | None = None
    fast_learning_rate: float | None = None
    natural_rate: float | None = None
    schedule: Literal["constant", "cycle"] = "cycle"
    start: Literal["factors", "random"] = "factors"
    patience: int | None = None
    validate_every: int | None = None
    latent_weight: float = 1.0
    latent_epochs: int | None = None
    masked_loss: float = 0.0
    encoder_dropout: float = 0.0
    prior_every: int | None = None
    samples: int = 1
    importance: int = 1
    cap: int | None = None
    buffer_rows: int = 50_000
    members: int | None = None
    seed: int = 0
    capture: bool | None = None
    compile: bool | None = None
    progress: bool | None = None

    def __post_init__(self) -> None:
        optional = {
            name: getattr(self, name)
            for name in (
                "max_epochs",
                "batch_size",
                "patience",
                "validate_every",
                "latent_epochs",
                "cap",
                "members",
            )
            if getattr(self, name) is not None
        }
        needed = {name: getattr(self, name) for name in ("samples", "importance", "buffer_rows")}
        for name, value in (needed | optional).items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}.")
        every = self.prior_every
        if every is not None and (isinstance(every, bool) or not isinstance(every, int) or every < 0):
            raise ValueError(f"prior_every must be a whole number of at least 0, got {every!r}.")
        if self.importance > 1 and self.samples > 1:
            raise ValueError(
                f"samples={self.samples} averages draws, importance={self.importance} weighs them: one must be 1."
            )
        if self.schedule not in ("constant", "cycle"):
            raise ValueError(f"schedule is {self.schedule!r}; expected 'constant' or 'cycle'.")
        if self.start not in ("factors", "random"):
            raise ValueError(f"start is {self.start!r}; expected 'factors' or 'random'.")
        for name in ("learning_rate", "fast_learning_rate", "latent_weight"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be positive, got {value!r}.")
        if not self.masked_loss >= 0:
            raise ValueError(f"masked_loss must not be negative, got {self.masked_loss!r}.")
        if not 0 <= self.encoder_dropout <= 1:
            raise ValueError(f"encoder_dropout must lie in [0, 1], got {self.encoder_dropout!r}.")
        if self.natural_rate is not None and not 0 < self.natural_rate <= 1:
            raise ValueError(f"natural_rate must lie in (0, 1], got {self.natural_rate!r}.")

    def resolved(
        self, units: int, by_row: bool = True, rows: int | None = None, starts_near: bool = False
    ) -> FitOptions:  # fmt: skip
        """Return the options with rates, batches, epochs, patience and validation set: where they are None, by the
        number of rows or patients and, where there are patients, of their visits, and by whether the model has a start
        near the end."""
        rows = rows or units
        batch_size = self.batch_size or default_batch_size(self.schedule, units, by_row, rows)
        steps, cycle = -(-units // min(units, batch_size)), self.schedule == "cycle"
        if cycle:
            size = units if by_row else max(units, rows / CYCLE_VISITS)
            most, growth = float(CYCLE_STEPS), CYCLE_GROWTH
            if by_row:
                most *= share_of_few_rows(units)
            elif starts_near and self.start == "factors":
                most, growth = STARTED_STEPS, STARTED_GROWTH
            epochs = max(1, round(most * (size / CYCLE_UNITS) ** growth / steps))
        else:
            epochs = max(DEFAULT_EPOCHS, -(-MIN_STEPS // steps))
        epochs = self.max_epochs or epochs
        patience = epochs if cycle else max(DEFAULT_PATIENCE, -(-MIN_PATIENCE_STEPS // steps))
        every = max(1, epochs // CYCLE_VALIDATIONS) if cycle and self.patience is None else 1
        rates = default_rates(self.schedule, units, by_row)
        updates = -(-epochs // CYCLE_PRIOR_UPDATES) if cycle else 0
        return replace(
            self, max_epochs=epochs, batch_size=batch_size,
            prior_every=updates if self.prior_every is None else self.prior_every, members=self.ensemble,
            patience=self.patience or patience, validate_every=self.validate_every or every,
            learning_rate=self.learning_rate or rates.learning_rate,
            fast_learning_rate=self.fast_learning_rate or rates.fast_learning_rate,
            natural_rate=self.natural_rate or rates.natural_rate,
        )  # fmt: skip

    @property
    def rates(self) -> Rates:
        """The rates of resolved options; those of constant rates for rows where they are None."""
        given = (self.learning_rate, self.fast_learning_rate, self.natural_rate)
        return Rates(*(rate or default for rate, default in zip(given, CONSTANT_ROWS, strict=True)))

    @property
    def ensemble(self) -> int:
        """K, the number of members."""
        return self.members or (DEFAULT_MEMBERS if self.max_epochs is None else 1)

    @property
    def batch(self) -> int:
        """Rows or patients per step, of resolved options."""
        return ROWS_PER_STEP if self.batch_size is None else self.batch_size

    @property
    def draws(self) -> int:
        """Draws of x_u and z per row and step, whether averaged or weighted."""
        return max(self.samples, self.importance)

    @property
    def epochs(self) -> int:
        """Most passes over the rows, of resolved options."""
        return DEFAULT_EPOCHS if self.max_epochs is None else self.max_epochs

    @property
    def patience_epochs(self) -> int:
        """Epochs without improvement before training stops, of resolved options."""
        return DEFAULT_PATIENCE if self.patience is None else self.patience

    def validates_after(self, epoch: int) -> bool:
        """Return whether to look at the validation rows after an epoch, numbered from 0; of resolved options."""
        return (epoch + 1) % (self.validate_every or 1) == 0 or epoch + 1 == self.epochs

    def rate_factor(self, share: float) -> float:
        """Return the factor of all rates after this share of the planned steps, from 0 to 1."""
        if self.schedule == "constant":
            return 1.0
        if share < RISE_SHARE:
            return START_FACTOR + (1.0 - START_FACTOR) * share / RISE_SHARE
        fallen = 0.5 * (1.0 + math.cos(math.pi * (share - RISE_SHARE) / (1.0 - RISE_SHARE)))
        return END_FACTOR + (1.0 - END_FACTOR) * fallen

    def latent_weight_at(self, epoch: int) -> float:
        """Return the weight of the latent KL in an epoch, numbered from 0."""
        return float(self.latent_weight ** max(0.0, 1.0 - epoch / max(1, self.warm_up)))

    def worth_compiling(self, steps: int) -> bool:
        """Return whether training with `steps` steps per epoch repays the time that compilation takes."""
        return self.epochs * steps >= STEPS_WORTH_COMPILING if self.compile is None else self.compile

    @property
    def warm_up(self) -> int:
        """Epochs until the weight of the latent KL is 1."""
        if self.latent_weight == 1.0:
            return 0
        return max(1, self.epochs // 3) if self.latent_epochs is None else self.latent_epochs
