"""The tables of the study: one TOML file each defines what is fitted, the same for every method."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).with_name("tables")
NAMES = ("cvae", "lvae", "discrete", "trial", "health", "cdisc")
METHODS = ("zero", "mean", "knn", "iterative", "paper", "joint", "oracle")
FIRST = (0.2, 0.4)  # shares of missing entries that are run before the others
QUICK = {"missing": FIRST, "seeds": (0,), "networks": ("dense",)}
WITH_LIMIT = (1, 2, 3, "3-discrete", "trial")  # data sets whose true p(x_u | x_o) is known
PARTS = ("rows", "networks", "settings", "fit", "score")


@dataclass(frozen=True)
class Job:
    """One fit. Its data depend on dataset, rows, missing and seed alone, so that methods are paired.

    Attributes:
        table, dataset, model, networks, covariates, missing, seed: the key of a line in the results file.
        rows: rows (or patients) to train on, to stop early on and to test on.
        preset: the networks' architecture.
        settings, fit: settings of the model, and options of its training.
        draws: number of draws that scores are computed from.
    """

    table: str
    dataset: int | str
    model: str
    networks: str
    covariates: str
    missing: float
    seed: int
    rows: dict[str, int]
    preset: str
    settings: dict[str, Any]
    fit: dict[str, Any]
    draws: int

    @property
    def scored_as(self) -> tuple[str, ...]:
        """The methods that this fit is scored as: the oracle's is also the limit, when tested with gaps in X."""
        both = self.covariates == "oracle" and self.dataset in WITH_LIMIT
        return ("oracle", "limit") if both else (self.covariates,)

    def base(self, covariates: str | None = None) -> dict[str, Any]:
        """Return the key of a line in the results file."""
        return {
            "table": self.table, "dataset": self.dataset, "model": self.model, "networks": self.networks,
            "covariates": covariates or self.covariates, "missing": self.missing, "seed": self.seed,
        }  # fmt: skip

    def varied(self, settings: dict[str, Any], fit: dict[str, Any]) -> Job:
        """Return the same fit with some settings and options replaced."""
        return replace(self, settings={**self.settings, **settings}, fit={**self.fit, **fit})

    @property
    def name(self) -> str:
        return (
            f"{self.table}, set {self.dataset}, {self.networks}, {self.covariates}, {self.missing:.0%}, "
            f"seed {self.seed}"
        )

    def digest(self, data: str = "") -> str:
        """Return a hash of all that a result depends on besides its key; `data` is a hash of the data's files."""
        parts = {k: v for k, v in asdict(self).items() if k not in self.base()}
        return hashlib.sha256(json.dumps([parts, data], sort_keys=True).encode()).hexdigest()[:8]


@dataclass(frozen=True)
class Choice:
    """The cells to fit; None means all that a table has."""

    seeds: Collection[int] = (0, 1, 2)
    missing: Collection[float] | None = None
    methods: Collection[str] | None = None
    networks: Collection[str] | None = None
    datasets: Collection[str] | None = None


def read(name: str, quick: bool = False, folder: Path = FOLDER) -> dict[str, Any]:
    """Return the contents of a table's file; with `quick`, of its smaller variant."""
    file = folder / f"{name}.toml"
    if not file.exists():
        there = sorted(path.stem for path in folder.glob("*.toml"))
        raise ValueError(f"there is no table {name!r}; expected one of {', '.join(there)}.")
    config = tomllib.loads(file.read_text(encoding="utf-8"))
    small = config.pop("quick", {})
    strange = (set(config) | set(small)) - {"title", "model", "datasets", "missing", "methods", *PARTS}
    if strange:
        raise ValueError(f"{file.name} has {', '.join(sorted(strange))}, which mean nothing here.")
    for part, values in small.items() if quick else ():
        config[part] = {**config[part], **values}
    return config


def jobs(names: Iterable[str], choice: Choice | None = None, quick: bool = False, folder: Path = FOLDER) -> list[Job]:
    """Return all fits of some tables, the most informative first: by seed, 20 and 40% first, dense networks first."""
    choice = choice or Choice()
    wanted = {"oracle" if method == "limit" else method for method in choice.methods or METHODS}
    if strange := wanted - set(METHODS):
        raise ValueError(f"methods are {', '.join(METHODS)} and limit; got {', '.join(sorted(strange))}.")
    selected: list[Job] = []
    for name in names:
        config = read(name, quick, folder)
        for kind, network in config["networks"].items():
            shares = network.get("missing", config["missing"])
            selected += [
                Job(
                    name, dataset, config["model"], kind, method, share, seed, config["rows"], network["preset"],
                    config["settings"], config["fit"], config["score"]["draws"],
                )
                for dataset in config["datasets"]
                if choice.datasets is None or str(dataset) in choice.datasets
                for method in config["methods"]
                if method in wanted
                for share in shares
                if choice.missing is None or share in choice.missing
                for seed in choice.seeds
                if choice.networks is None or kind in choice.networks
            ]  # fmt: skip
    return sorted(selected, key=_rank)


def _rank(job: Job) -> tuple[Any, ...]:
    late = FIRST.index(job.missing) if job.missing in FIRST else len(FIRST) + job.missing
    return job.seed, late, job.networks != "dense"
