"""What one process does of a fit: read the rows, build the model, train it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from lacova.covariates.masked_loss import masking_rate
from lacova.covariates.single_imputation import FILLS, Fill
from lacova.data.holdout import HeldOut, hold_out
from lacova.data.io.dataframes import to_pandas
from lacova.data.io.parquet import Layout, Source
from lacova.data.labels import Fingerprints
from lacova.data.levels import Unseen, one_warning
from lacova.data.schema import Schema
from lacova.data.statistics import ColumnStatistics
from lacova.data.survey import Survey, add_levels, lay_out, survey
from lacova.data.table import Table
from lacova.data.table_encoder import TableEncoder
from lacova.inference.vae import ConditionalVAE
from lacova.models.builder import build
from lacova.models.findings import Findings, examine
from lacova.models.settings import Storable, identity
from lacova.models.snapshot import packed_instances, packed_levels
from lacova.models.streams import opened
from lacova.nn.networks import has_linear_path
from lacova.nn.threads import suitable_threads
from lacova.training.checkpoint import Checkpoint, member_file
from lacova.training.distributed import Team
from lacova.training.loader import Loader, TableLoader
from lacova.training.members import train_member
from lacova.training.options import FitOptions
from lacova.training.progress import say
from lacova.training.start import start_from_factors, start_posterior
from lacova.training.start_dependence import start_dependence
from lacova.training.stream import StreamLoader
from lacova.training.trainer import Outcome, Trainer


class FittedParts(NamedTuple):
    """What training makes of a model: `trained` are the labels of the training instances."""

    encoder: TableEncoder
    fill: Fill | None
    trained: frozenset[Any] | Fingerprints
    held_out: HeldOut
    findings: Findings
    vae: ConditionalVAE
    members: tuple[ConditionalVAE, ...] = ()


class TrainingData(NamedTuple):
    """What a model is built from and trained on, with resolved options; `table` has all training rows, or a sample of
    a stream."""

    encoder: TableEncoder
    fill: Fill | None
    table: Table
    train: Loader
    validation: Loader | None
    trained: frozenset[Any] | Fingerprints
    held_out: HeldOut
    options: FitOptions


def fit_process(
    model: Storable, train: Any, validation: Any, options: FitOptions,
    checkpoint: tuple[str | os.PathLike[str], int, bool] | None, team: Team, device: torch.device,
) -> tuple[FittedParts, Outcome]:  # fmt: skip
    """Fit in this process; the model itself stays as it was."""
    with suitable_threads(model.networks.parallel):
        data = read_training_data(model, train, validation, options, device, team)
        if team.main and data.held_out.count and not data.held_out.given:
            say(_choice(data.held_out, model.schema), options.progress)
        if checkpoint is not None:  # the model is to be kept: not after hours does a file refuse its labels
            packed_levels(data.encoder)
            if not isinstance(data.trained, Fingerprints):
                packed_instances(model.schema, data.trained)
        files = _checkpoints(model, checkpoint if team.main else None, data.options)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(options.seed)
            vae = build(model, data.encoder, data.table, options.seed)
            if options.start == "factors":
                time = None if model.schema.time is None else data.encoder.space.names.index(model.schema.time)
                start_posterior(vae, data.table, time, options.seed)
                start_dependence(vae, data.table, options.seed)
                start_from_factors(vae, data.table, options.seed)
        vae.to(device)
        only_guard = not data.held_out.given
        outcome = Trainer(vae, data.train, data.validation, data.options, files[0], only_guard=only_guard).run()
        rows = (batch.gather().batch for batch in data.train.in_order(vae, masked=False))
        findings = examine(vae, data.encoder, data.table, rows, model.noise_floor)
        members, outcome = _members(vae, data.train, data.options, files, outcome)
        for each in (vae, *members):
            each.covariate_posterior.end_of_training()
    return FittedParts(data.encoder, data.fill, data.trained, data.held_out, findings, vae, members), outcome


def _choice(held_out: HeldOut, schema: Schema) -> str:
    units = "rows" if schema.instance is None else f"different {schema.instance!r}"
    return f"{held_out.count:,} {units} are held out to choose the best weights; validation=False trains on all."


def _members(
    vae: ConditionalVAE, train: Loader, options: FitOptions, files: Sequence[Checkpoint | None], outcome: Outcome
) -> tuple[tuple[ConditionalVAE, ...], Outcome]:
    """Return the members of an ensemble, if there are to be any; those that are complete where Ctrl-C ends training."""
    members: list[ConditionalVAE] = []
    count = options.ensemble
    if count == 1 or outcome.interrupted is not None:
        return (), outcome
    assert isinstance(train, TableLoader)
    try:
        for number in range(1, count + 1):
            member, own = train_member(vae, train, options, number, files[number])
            if own.interrupted is not None:
                raise KeyboardInterrupt
            members.append(member)
    except KeyboardInterrupt:
        done = f"training was interrupted after {len(members)} of {count} members, which the model has."
        return tuple(members), Outcome(outcome.records, done)
    for file in files:
        if file is not None:
            file.end(all_done=True)
    return tuple(members), outcome


def _checkpoints(
    model: Storable, checkpoint: tuple[str | os.PathLike[str], int, bool] | None, options: FitOptions
) -> list[Checkpoint | None]:
    """Return the file of the fit and, where there are to be members, a file for each of them beside it."""
    count = options.ensemble
    if checkpoint is None:
        return [None] * (count + 1)
    path, every, keep = checkpoint
    several = count > 1
    paths = [path, *(member_file(path, k + 1) for k in range(count if several else 0))]
    return [Checkpoint(one, every, keep, identity(model), part_of_several=several) for one in paths]


def read_training_data(
    model: Storable, train: Any, validation: Any, options: FitOptions, device: torch.device, team: Team
) -> TrainingData:
    """Read the rows, once if they do not fit memory, and learn from them what comes before the networks."""
    schema = model.schema
    data = opened(train, schema.instance, schema.columns)
    if isinstance(data, Source):
        if options.members not in (None, 1):
            raise ValueError(
                f"members={options.members} resamples rows in memory, but the training rows are a file or a dataset: "
                "leave members out, or fit to a DataFrame."
            )
        options = replace(options, members=1)
    validation = opened(validation, schema.instance, schema.columns)
    data, validation, given, asked = hold_out(data, schema, validation, options.seed)
    first_pass: Survey | None = None
    if isinstance(data, Source):
        first_pass = survey(data, schema, options.seed)
        frame, statistics = first_pass.sample, first_pass.statistics
        if isinstance(validation, Source) and not given:
            add_levels(validation, schema, statistics)
    else:
        frame, _ = to_pandas(data, schema.columns)
        statistics = _statistics(model, frame)
    encoder = TableEncoder.from_statistics(statistics, model.column_scaling, frame)
    table = encoder.encode(frame)
    fill = Fill.learn(model.covariates, encoder, table) if model.covariates in FILLS else None
    table = table if fill is None else fill(table)
    rate = masking_rate(table)
    options = _resolved(model, options, table, None if first_pass is None else first_pass.layout)

    def encode(part: Any, unseen: Unseen = "error") -> Table:
        rows = encoder.encode(to_pandas(part, schema.columns)[0], unseen=unseen)
        return rows if fill is None else fill(rows)

    varies = torch.as_tensor(~statistics.constant())

    def encode_validation(data: Any, unseen: Unseen = "missing") -> Table:
        """Mask constant measurements: their noise is close to zero, and one other value would decide everything."""
        rows = encode(data, unseen)
        return replace(rows, y=rows.y * varies, y_mask=rows.y_mask & varies)

    def stream(source: Source, layout: Layout, read: Callable[[Any], Table]) -> Loader:
        return StreamLoader(source, layout, schema.columns, read, table, rate, options, device, team)

    held_out, loader = HeldOut(asked=asked), None
    unseen: Unseen = model.unseen if team.main or model.unseen == "error" else "missing"  # one process warns
    if isinstance(validation, Source):
        with one_warning():
            layout = lay_out(validation, schema.columns, partial(encode_validation, unseen=unseen))
        loader = stream(validation, layout, encode_validation)
        held_out = HeldOut(np.sort(layout.prints), int(layout.units.sum()), given, asked)
    elif validation is not None:
        frame, _ = to_pandas(validation, schema.columns)
        loader = TableLoader(encode_validation(frame, unseen), rate, options, device, team)
        held_out = HeldOut.of(frame, encoder, given, asked)
    if first_pass is None:
        rows = TableLoader(table, rate, options, device, team)
        return TrainingData(encoder, fill, table, rows, loader, frozenset(table.labels), held_out, options)
    trained, rows_of_stream = Fingerprints(first_pass.layout.prints), stream(data, first_pass.layout, encode)
    return TrainingData(encoder, fill, table, rows_of_stream, loader, trained, held_out, options)


def _resolved(model: Storable, options: FitOptions, table: Table, layout: Layout | None) -> FitOptions:
    """Set what the options leave to the size of the training table: in memory, or as the first pass found it."""
    by_row = table.patient is None
    units, rows = len(table) if by_row else len(table.labels), len(table)
    if layout is not None:
        units, rows = int(layout.units.sum()), int(layout.rows.sum())
    return options.resolved(units, by_row, rows, starts_near=has_linear_path(model.networks))


def _statistics(model: Storable, frame: pd.DataFrame) -> ColumnStatistics:
    statistics = ColumnStatistics(model.schema)
    statistics.add(frame)
    return statistics
