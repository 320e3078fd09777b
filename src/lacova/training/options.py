"""How to train, and what can go wrong."""

from __future__ import annotations

from dataclasses import dataclass, replace


class TrainingError(RuntimeError):
    """Training cannot go on."""


# How long to train unless told otherwise: so many epochs, or more if a small table has fewer steps in them.
EPOCHS, STEPS = 200, 3000
PATIENCE, PATIENT_STEPS = 30, 400
LONG = 20_000  # steps that repay compilation: it takes 75 s, and saves some 4 ms a step on an H200


@dataclass(frozen=True)
class FitOptions:
    """How to train.

    Args:
        max_epochs: passes over the training rows; None for 200, or more where they would be fewer than 3,000 steps.
        batch_size: rows per step, or patients per step where there is an instance column.
        learning_rate: of Adam for the networks.
        fast_learning_rate: of Adam for kernel parameters, inducing inputs and noise variances, on the log scale.
        natural_rate: step of the natural gradient of q(v), between 0 and 1.
        patience: epochs without improvement on the validation rows before training stops; None for 30, or more where
            they would be fewer than 400 steps.
        latent_weight: the latent KL counts so many times at first and falls, geometrically, to once. This makes a
            decoder that sees x learn what x explains before z can take its place; `CVAE` therefore starts at 100.
        latent_epochs: epochs until it counts once; None for a third of `max_epochs`.
        masked_loss: weight of the term that hides observed covariates from q(x_u | ·) and asks for them; 0 leaves it out.
            Models whose q sees y have 1.
        encoder_dropout: in every step, each row hides a share of its observed measurements from the encoder, anything
            between none and this, but never all it has; the bound asks for all of them. The encoder learns to cope with
            gaps that training rows lack. See docs/models.md for when that helps.
        prior_every: after so many epochs each time, the covariate prior takes a step towards the training covariates as
            q completes them; None leaves it as it was fitted to the observed entries.
        samples: draws of continuous x_u and of z per row and step.
        importance: K draws of x_u and z per row that are weighted against each other: the importance-weighted bound,
            which rises with K towards log p(y_o | x_o). 1 is the evidence lower bound; `MIWAE` has 20. See
            docs/models.md.
        cap: largest joint table of missing categories that is summed exactly; None for 64 states of a row, or 4 of a
            patient where the prior couples its rows. What does not fit is sampled.
        buffer_rows: rows that are held and shuffled at a time when training from Parquet; see docs/scaling.md.
        seed: of every random number; the same seed gives the same model on the same CPU.
        capture: record training steps as a CUDA graph and replay it; None does so on a GPU.
        compile: let torch compile the loss, on a GPU; it takes a minute or more. None does so where steps are captured
            and there are at least 20,000 of them to come.
        progress: show a progress bar on stderr; None shows it in a terminal only.
    """

    max_epochs: int | None = None
    batch_size: int = 100
    learning_rate: float = 1e-3
    fast_learning_rate: float = 1e-2
    natural_rate: float = 0.1
    patience: int | None = None
    latent_weight: float = 1.0
    latent_epochs: int | None = None
    masked_loss: float = 0.0
    encoder_dropout: float = 0.0
    prior_every: int | None = None
    samples: int = 1
    importance: int = 1
    cap: int | None = None
    buffer_rows: int = 50_000
    seed: int = 0
    capture: bool | None = None
    compile: bool | None = None
    progress: bool | None = None

    def __post_init__(self) -> None:
        optional = {
            name: getattr(self, name)
            for name in ("max_epochs", "patience", "latent_epochs", "cap", "prior_every")
            if getattr(self, name) is not None
        }
        needed = {name: getattr(self, name) for name in ("batch_size", "samples", "importance", "buffer_rows")}
        for name, value in (needed | optional).items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}.")
        if self.importance > 1 and self.samples > 1:
            raise ValueError(
                f"samples={self.samples} averages draws, importance={self.importance} weighs them: one must be 1."
            )
        for name in ("learning_rate", "fast_learning_rate", "latent_weight"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)!r}.")
        if not self.masked_loss >= 0:
            raise ValueError(f"masked_loss must not be negative, got {self.masked_loss!r}.")
        if not 0 <= self.encoder_dropout <= 1:
            raise ValueError(f"encoder_dropout must lie in [0, 1], got {self.encoder_dropout!r}.")
        if not 0 < self.natural_rate <= 1:
            raise ValueError(f"natural_rate must lie in (0, 1], got {self.natural_rate!r}.")

    def resolved(self, units: int) -> FitOptions:
        """Return the options with epochs and patience that suit so many rows or patients, where they were left open."""
        steps = -(-units // min(units, self.batch_size))
        epochs = max(EPOCHS, -(-STEPS // steps)) if self.max_epochs is None else self.max_epochs
        patience = max(PATIENCE, -(-PATIENT_STEPS // steps)) if self.patience is None else self.patience
        return replace(self, max_epochs=epochs, patience=patience)

    @property
    def draws(self) -> int:
        """Of x_u and z per row and step, whether averaged or weighted."""
        return max(self.samples, self.importance)

    @property
    def epochs(self) -> int:
        """Most passes over the rows, once that is settled."""
        return EPOCHS if self.max_epochs is None else self.max_epochs

    @property
    def patience_epochs(self) -> int:
        """Epochs without improvement before training stops, once that is settled."""
        return PATIENCE if self.patience is None else self.patience

    def latent_weight_at(self, epoch: int) -> float:
        """How often the latent KL counts in an epoch, numbered from 0."""
        return float(self.latent_weight ** max(0.0, 1.0 - epoch / max(1, self.warm_up)))

    def worth_compiling(self, steps: int) -> bool:
        """Whether so many steps per epoch repay the time that compilation takes."""
        return self.epochs * steps >= LONG if self.compile is None else self.compile

    @property
    def warm_up(self) -> int:
        """Epochs until the latent KL counts once."""
        if self.latent_weight == 1.0:
            return 0
        return max(1, self.epochs // 3) if self.latent_epochs is None else self.latent_epochs
