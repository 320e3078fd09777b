"""What all models share: settings, `fit`, `save`, and how a model describes itself."""

from __future__ import annotations

import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, ClassVar, Literal, Self, get_args

import pandas as pd
import torch
from torch import Tensor

from lacova.covariates.prior import CovariatePrior
from lacova.covariates.single_imputation import Fill
from lacova.data.errors import FitWarning
from lacova.data.holdout import HeldOut
from lacova.data.io.archive import StorageError, write
from lacova.data.kinds import BUILT_IN
from lacova.data.labels import Fingerprints
from lacova.data.levels import Unseen
from lacova.data.registry import configured, factory, name_of, registered
from lacova.data.schema import Schema
from lacova.data.statistics import Scaling, check_scaling
from lacova.data.table import Table
from lacova.data.table_encoder import TableEncoder
from lacova.inference.vae import ConditionalVAE
from lacova.likelihoods.base import NOISE_FLOOR
from lacova.likelihoods.missingness import Missingness
from lacova.models.builder import infers_covariates
from lacova.models.checks import whole_number
from lacova.models.findings import Findings
from lacova.models.fitting import fit_process
from lacova.models.inference import Inference
from lacova.models.requirements import require_noise
from lacova.models.snapshot import take_apart
from lacova.nn.networks import Networks, has_linear_path, resolve
from lacova.priors.base import LatentPrior
from lacova.training.distributed import SINGLE, launch
from lacova.training.interrupt import InterruptedWarning
from lacova.training.options import FitOptions

DEFAULT_LATENT_DIM = 8
Covariates = Literal["joint", "factorised", "paper", "mean", "knn", "iterative", "zero", "oracle"]


class Model(Inference, ABC):
    """What all models share. See `CVAE` and `GPPriorVAE`.

    Args:
        schema: the roles of the columns.
        latent_dim: L, dimensions of z. None: 8, but with a Gaussian-process prior one more than there are measurements
            if these are fewer.
        networks: `Dense(...)`, `Conv(...)`, other `lacova.nn.Networks`, or a preset's name.
        scaling: of the measurements: "standard", "minmax", "none", or "normal" for normal scores, which make any
            continuous distribution normal. "auto" gives normal scores to Gaussian columns with heavy tails, and
            standardises the others; or all, where networks have no linear path, as those of images, or with
            `noise="row"`. See docs/observation.md. Continuous covariates are standardised.
        covariates: how to treat gaps in X. "joint" (default): a joint model of the covariates, with memory along a
            patient's visits, as prior, and q(x_u | y_o, x_o) as posterior. "factorised": independent columns as prior,
            the same posterior. "paper": independent columns, and q(x_u | x_o). Or fill X once before training: "mean",
            "knn", "iterative", "zero"; "oracle" demands complete X. Or a registered `CovariatePrior` of your own,
            as a class, or as `functools.partial` of it with its configuration.
        joint_posterior: True: q(z) sees the covariates, drawn where they are missing, so that draws of X and Y belong
            together; with covariates "joint", what a patient lacks at several visits is drawn as a path. False: q(z)
            sees what is observed of them, as in the paper; whatever is missing is then drawn independently, given what
            is observed. None: True where the model allows it, but False with covariates "paper".
        covariate_prior: domain knowledge that replaces the observed moments or frequencies of some covariates:
            `{"height": (170, 10), "sex": {"f": 0.5, "m": 0.5}}`; for "factorised" and "paper".
        noise_floor: least noise variance of a (scaled) measurement.
        noise: of Gaussian and log-normal measurements. "column": each has a variance of its own, the same in all rows.
            "row": it is multiplied by a function of z and x, which is learnt; see docs/observation.md. This leaves out
            random effects.
        unseen: what becomes of entries with levels that training does not know, in categorical columns of a table that
            the model is asked about, or of validation rows. They are treated as missing with a warning,
            `lacova.UnseenLevelWarning`, if "warn", and without one if "missing"; "error" refuses the table. An imputed
            table keeps them. The attribute `unseen` may be changed at any time; see docs/schema.md.

    Attributes:
        training: a pandas DataFrame with a line per epoch, None before `fit`; see below.
        interrupted: whether Ctrl-C ended training.
        options: the `FitOptions` of the last `fit`.
        vae: the trained torch module, `lacova.inference.vae.ConditionalVAE`; None before `fit`.
        members: further modules of the same kind, over which draws are spread, where `fit` has `members` above 1.
        encoder: how tables become tensors, `lacova.data.table_encoder.TableEncoder`; None before `fit`.
        fill: what fills gaps in X before the model sees them; None where the model infers them.
        training_instances: the labels of the training instances, or their fingerprints.
        held_out: the validation rows or patients, as fingerprints, and how many they are; see `was_held_out`.
        findings: how many latent dimensions are used, and what is doubtful about the fit: `findings.concerns` has the
            sentences that `fit` warned with, as `lacova.FitWarning`.

    Columns of `training`, in nats per row, means over the steps of the epoch:

    - `epoch`, from 1;
    - `reconstruction`, `kl_latent`, `kl_inducing`, `kl_covariates` and `elbo`, the terms of the bound on training rows;
      docs/explain/model.md says what each is;
    - `masked_log_prob`: log q of observed covariates that were masked; only where `fit` has a `masked_loss` above 0;
    - `validation`: the bound on the validation rows, and `validation_masked_log_prob`; only with such rows. The epoch
      with the highest sum of both, the second by its weight, gives the weights.
    """

    part_kind: ClassVar[str] = "model"

    def __init__(
        self, schema: Schema, *, latent_dim: int | None = None, networks: str | Networks = "clinical",
        scaling: Scaling = "auto",
        covariates: Covariates | type[CovariatePrior] | partial[CovariatePrior] = "joint",
        covariate_prior: Mapping[str, object] | None = None, noise_floor: float = NOISE_FLOOR,
        joint_posterior: bool | None = None, noise: Literal["column", "row"] = "column", unseen: Unseen = "warn",
    ) -> None:  # fmt: skip
        latent_dim = self._default_latent_dim(schema) if latent_dim is None else whole_number(latent_dim, "latent_dim")
        if covariates not in get_args(Covariates):
            covariates = _registered_prior(covariates)
        if covariate_prior and covariates not in ("factorised", "paper"):
            raise ValueError(
                f"covariate_prior states independent columns, but covariates is {covariates!r}; "
                'use covariates="factorised".'
            )
        if joint_posterior not in (True, False, None):
            raise ValueError(f"joint_posterior is {joint_posterior!r}; expected True, False or None.")
        check_scaling(scaling)
        if not noise_floor > 0:
            raise ValueError(f"noise_floor must be positive, got {noise_floor!r}.")
        require_noise(schema, noise)
        self.schema = schema
        self._families = _families_of_others(schema)  # pickled by reference: other processes then import their modules
        self.latent_dim = latent_dim
        self.networks = resolve(networks)
        self.scaling: Scaling = scaling
        self.covariates: Any = covariates
        self.covariate_prior = dict(covariate_prior or {})
        self.noise_floor = noise_floor
        self.noise: str = noise
        self.joint_posterior = joint_posterior
        self.unseen = unseen
        self.encoder: TableEncoder | None = None
        self.fill: Fill | None = None
        self.vae: ConditionalVAE | None = None
        self.members: tuple[ConditionalVAE, ...] = ()
        self.training_instances: frozenset[Any] | Fingerprints = frozenset()
        self.held_out = HeldOut()
        self.findings = Findings()
        self.options = FitOptions()
        self.training: pd.DataFrame | None = None
        self.interrupted = False
        self._written_by: str | None = None  # the version of lacova that wrote the file it was loaded from

    # The part in which models differ.

    decoder_sees_x: bool = False
    settled: ClassVar[tuple[str, ...]] = ()  # arguments of its bases that a model decides itself
    importance: int = 1  # draws that are weighted, unless a fit says otherwise

    @staticmethod
    def _default_latent_dim(schema: Schema) -> int:
        return DEFAULT_LATENT_DIM

    @property
    def column_scaling(self) -> Scaling:
        """The scaling that `fit` asks of the encoder. Noise that depends on the row explains heavy tails itself."""
        straight = not has_linear_path(self.networks) or self.noise == "row"
        return "standard" if self.scaling == "auto" and straight else self.scaling

    @property
    def latent_weight(self) -> float:
        """The initial weight of the latent KL, unless a fit says otherwise."""
        return 1.0

    @property
    def _joint(self) -> bool:
        """Whether missing covariates are drawn as paths, and q(z) sees those drawn, if prior and encoder allow it."""
        return self.covariates != "paper" if self.joint_posterior is None else self.joint_posterior

    @property
    def _updates_prior(self) -> bool:
        """Whether the covariate prior is updated in training, unless a fit says otherwise."""
        return infers_covariates(self.covariates) and not self.covariate_prior

    @property
    def _has_random_effects(self) -> bool:
        return False

    @property
    def _effects_drift(self) -> bool:
        return False

    @property
    def _patient_slopes(self) -> bool:
        """Whether factors of patients, and effects of visit-constant covariates on them, change with time."""
        return False

    def _factors_of(self, measurements: int) -> int:
        """Return how many factors of patients so many measurements share."""
        return 0

    def _fixed_effects_on(self, encoder: TableEncoder) -> list[str]:
        """Return the covariates that enter the fixed part of random effects."""
        return []

    @abstractmethod
    def _latent_prior(self, encoder: TableEncoder, inputs: Callable[[int], Tensor]) -> LatentPrior:
        """Build p(z | x); `inputs(M)` gives M inducing inputs, or as many as there are different rows."""

    def _networks(self, encoder: TableEncoder) -> Networks:
        """Return what builds the encoder and the decoder."""
        return self.networks

    def _missingness(self, encoder: TableEncoder, table: Table | None) -> Missingness | None:
        """Build p(mask | y), started from a table if there is one; None where gaps in y are missing at random."""
        return None

    def fit(
        self, train: Any, validation: Any = None, *, max_epochs: int | None = None,
        seed: int = 0, device: str = "auto", checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_every: int = 1000, checkpoint_keep: bool = False, devices: int = 1, nodes: int = 1, **options: Any,
    ) -> Self:  # fmt: skip
        """Learn from a table with gaps in Y and X.

        Ctrl-C ends training after the current step: the model then has the best weights so far, and `interrupted` is
        True. See docs/interruption.md.

        Args:
            train: the training rows: a pandas or polars DataFrame, a pyarrow Table, or, for what does not fit memory,
                the path of a Parquet file or of a folder of them, or a pyarrow Dataset; see docs/scaling.md.
            validation: rows to choose the best weights by, or the share of the rows or patients to hold out for that.
                None holds out a tenth of at least 500 rows or 200 patients, and none of smaller tables; see
                docs/training.md. False: none; all epochs are run, and the last weights are kept.
            max_epochs: most passes over the rows; None for a number of steps that grows slowly with the table.
            seed: the same seed gives the same model on the same CPU, bit for bit.
            device: "auto", "cpu", "cuda", or any torch device.
            checkpoint: a file to write now and then. If training is killed, the same call continues from it, to the
                same weights bit for bit on the same CPU. It is removed when training has ended.
            checkpoint_every: steps from one checkpoint to the next.
            checkpoint_keep: do not remove it; the same call then takes no further step.
            devices: processes that share each batch, with a GPU each where there are any; needs Lightning Fabric
                (`lacova[distributed]`) and, in a script, `if __name__ == "__main__":`.
            nodes: machines, on each of which torchrun or SLURM has started so many processes; see docs/scaling.md.
            **options: the other fields of `lacova.FitOptions` (batch_size, learning_rate, patience, ...).
        """
        defaults = {
            "latent_weight": self.latent_weight,
            "masked_loss": float(infers_covariates(self.covariates)),
            "importance": self.importance,
        }
        if options.get("prior_every") is None and not self._updates_prior:
            options["prior_every"] = 0
        settings = FitOptions(**{**defaults, **options}, max_epochs=max_epochs, seed=seed)
        if self.covariate_prior and settings.prior_every:
            raise ValueError("covariate_prior states what prior_every would unlearn; leave one of them out.")
        file = None if checkpoint is None else (checkpoint, checkpoint_every, checkpoint_keep)
        job = partial(fit_process, self, train, validation, settings, file)
        if (devices, nodes) == (1, 1):
            fitted, outcome = job(SINGLE, resolve_device(device))
        else:
            fitted, outcome = launch(job, devices, nodes, device)
            for vae in (fitted.vae, *fitted.members):
                vae.to(resolve_device(device))
        self.encoder, self.fill, self.training_instances, self.held_out, self.findings, self.vae, self.members = fitted
        self.options = settings
        self.training = pd.DataFrame(outcome.records, columns=None if outcome.records else ["epoch"])
        self.interrupted, self._written_by = outcome.interrupted is not None, None
        if outcome.interrupted is not None:
            warnings.warn(outcome.interrupted, InterruptedWarning, stacklevel=2)
        for concern in self.findings.concerns.values():
            warnings.warn(concern, FitWarning, stacklevel=2)
        return self

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one file, whole or not at all; `lacova.load` reads it.

        The file holds tensors and JSON, nothing that is executed. It does hold labels of the training instances, and
        with covariates "knn" and "iterative" also the training covariates. See docs/storage.md.

        Args:
            path: where to; an older file there is replaced once the new one is complete.

        Examples:
            >>> import tempfile
            >>> import numpy as np, pandas as pd, lacova
            >>> table = pd.DataFrame({"age": np.linspace(30, 60, 40), "chol": np.linspace(4, 6, 40)})
            >>> schema = lacova.Schema(["chol"], {"age": "continuous"})
            >>> model = lacova.CVAE(schema, latent_dim=1).fit(table, max_epochs=2)
            >>> path = tempfile.mkdtemp() + "/cholesterol.lacova"
            >>> model.save(path)
            >>> lacova.load(path).predict(table).equals(model.predict(table))
            True
        """
        self.fitted()
        if name_of("model", type(self)) is None:
            name = type(self).__name__
            raise StorageError(
                f"a {name} cannot be saved, because its class has no name to be loaded by: "
                f"put @lacova.register({name!r}) above it."
            )
        write(path, *take_apart(self))

    def describe(self) -> str:
        """Return what the model is, in lines for a person to read: columns, prior, networks, sizes, and training."""
        facts = self.facts()
        width = max(map(len, facts))
        return "\n".join(f"{name:<{width}}  {value}" for name, value in facts.items())

    def facts(self) -> dict[str, str]:
        """Return the lines of `describe`, by name.

        All models have "model", "networks", "measurements", "latent dimensions" and "trained"; those with covariates
        "covariates" and "gaps in covariates"; "instance", "time" and "static" are there where the schema has them.
        A fitted model has "parameters", their number, and "device", "held out" where rows were, and what `fit` warned
        of, such as "warning, small table". Models add facts of their own, such as "prior of z".
        """
        lines = {"model": type(self).__name__, **self._described(), "networks": str(self.networks)}
        kinds = self.schema.kinds
        shown = [f"{name} ({kinds[name]})" if name in kinds else name for name in self.schema.measurements]
        lines["measurements"] = f"{len(shown)}: {_shortened(shown)}"
        if shown := [f"{name} ({kind})" for name, kind in self.schema.covariates.items()]:
            lines["covariates"] = f"{len(shown)}: {_shortened(shown)}"
            lines["gaps in covariates"] = _prior_name(self.covariates)
        if self.noise == "row":
            lines["noise"] = "depends on the row"
        for role in ("instance", "time", "static"):
            if value := getattr(self.schema, role):
                lines[role] = value if isinstance(value, str) else ", ".join(value)
        lines["latent dimensions"] = str(self.latent_dim)
        if self.vae is None or self.training is None:
            lines["trained"] = "no; call fit(train)"
        else:
            if self.findings.used is not None:
                lines["latent dimensions"] += f", {self.findings.used} of them used"
            lines["parameters"] = f"{sum(p.numel() for p in self.vae.parameters()):,}"
            lines["device"] = str(self.vae.device)
            if self.members:
                lines["members"] = f"{len(self.members)}, each on a bootstrap sample"
            lines["trained"] = f"less than an epoch, seed {self.options.seed}"
            kind, name = ("validation bound", "validation") if "validation" in self.training else ("bound", "elbo")
            if self.held_out.count:
                units = "rows" if self.schema.instance is None else f"different {self.schema.instance}"
                origin = "given as validation" if self.held_out.given else "chosen by fit"
                lines["held out"] = f"{self.held_out.count:,} {units}, {origin}"
            for last in self.training.get(name, pd.Series(dtype=float)).dropna().tail(1):
                lines["trained"] = (
                    f"{len(self.training)} epochs, last {kind} {last:.4g} per row, seed {self.options.seed}"
                )
            lines |= {f"warning, {kind}": sentence for kind, sentence in self.findings.concerns.items()}
        return lines

    def _described(self) -> dict[str, str]:
        """Return facts that only some models have."""
        return {}


def _registered_prior(covariates: Any) -> Any:
    """Return a covariate prior of one's own, as a class or partial; refuse anything else."""
    known = configured("covariate prior", covariates)
    if known is None:
        raise ValueError(
            f"covariates is {covariates!r}; expected one of {', '.join(get_args(Covariates))}, or a "
            "lacova.covariates.CovariatePrior with @lacova.register(...) above it, its configuration by keyword."
        )
    return factory("covariate prior", *known)


def _families_of_others(schema: Schema) -> list[Any]:
    families = registered("family")
    return [
        families[kind] for kind in dict.fromkeys(schema.kinds.values()) if kind not in BUILT_IN and kind in families
    ]


def _prior_name(covariates: Any) -> str:
    known = None if isinstance(covariates, str) else configured("covariate prior", covariates)
    return str(covariates) if known is None else known[0]


def _shortened(names: Iterable[str], most: int = 8) -> str:
    names = list(names)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def resolve_device(name: str) -> torch.device:
    """Return the device behind a name; "auto" is the GPU where there is one."""
    if name == "auto":
        name = _best_device()
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).split("\n")[0].split(":")[0].rstrip(".")
        raise ValueError(f"device is {name!r}, which cannot be used here ({reason}); try 'auto' or 'cpu'.") from None
    return device


def _best_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"
