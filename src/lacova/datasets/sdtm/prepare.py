"""The preparation of a study: all steps in order, with the size of the table after each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import pandas as pd

from lacova.data.io.files import kind, write_together
from lacova.data.schema import Kind, Schema
from lacova.datasets.sdtm import measurements as measured
from lacova.datasets.sdtm.domains import Remark, ignore
from lacova.datasets.sdtm.parts import Scaling, scale, scales, split_patients
from lacova.datasets.sdtm.people import enrolled, read_people
from lacova.datasets.sdtm.records import active, frequent, read_records, spans

Kinds = Literal["infer", "gaussian"]


@dataclass(frozen=True)
class Study:
    """A trial as a table.

    Args:
        table: a row per visit, sorted by patient and day.
        schema: the roles of its columns.
        steps: patients, rows, tests and the observed share of entries after each step.
        notes: remarks on how irregular data were treated, a sentence each.
        parts: the table split into "train", "validation" and "test", if requested.
        scales: centre and width of each measurement, if scaled.
    """

    table: pd.DataFrame
    schema: Schema
    steps: pd.DataFrame
    notes: tuple[str, ...]
    parts: Mapping[str, pd.DataFrame]
    scales: pd.DataFrame | None

    def describe(self) -> str:
        """Return the steps and notes as text."""
        shown = self.steps.assign(
            **{name: self.steps[name].map("{:,}".format) for name in ("patients", "rows", "tests")},
            observed=self.steps["observed"].map("{:.1%}".format),
        )
        return "\n".join([shown.rename_axis(columns="step").to_string(), "", *(f"- {note}" for note in self.notes)])

    def save(self, out: str | PathLike[str], schema: str | PathLike[str]) -> list[Path]:
        """Write the table, CSV or Parquet by suffix, and the schema as TOML, all files or none; return their paths.

        Each part of a split table has its own file: `study.train.parquet` and so on. Scales go to `study.scales.csv`.
        """
        path = Path(out)
        suffix = kind(path)
        stem = path.name[: -len(suffix)]
        tables = {path.with_name(f"{stem}.{part}{suffix}"): rows for part, rows in self.parts.items()} or {
            path: self.table
        }
        if self.scales is not None:
            tables[path.with_name(f"{stem}.scales.csv")] = self.scales.reset_index()
        write_together(tables, {Path(schema): self.schema.to_toml()})
        return [*tables, Path(schema)]


def study(
    folder: str | PathLike[str], *, min_column: float = 0.1, min_row: float = 0.5, min_visits: int = 5,
    events: int = 10, medications: int = 10, event_term: str = "AEDECOD", medication_term: str = "CMTRT",
    known_dates: bool = False, arms: Sequence[str] | None = None, planned_arm: bool = False, by_position: bool = False,
    exclude: Iterable[str] = (), scaling: Literal["none"] | Scaling = "none", kinds: Kinds = "infer",
    validation_share: float = 0.0, test_share: float = 0.0, seed: int = 0,
) -> Study:  # fmt: skip
    """Prepare the table of visits of a trial from its SDTM domains, as in the paper.

    Measurements are the tests of LB and VS; covariates are the day since the first dose, age, sex, arm, and whether
    the commonest adverse events and medications (of the training patients) were active at the visit, "yes" or "no".

    Args:
        folder: holds DM, LB, VS, AE and CM, one file each: CSV, gzipped CSV, Parquet, SAS XPT or sas7bdat.
        min_column: share of the visits at which a test must be observed.
        min_row: share of the remaining tests that must be observed at a visit.
        min_visits: number of the remaining visits that a patient must have.
        events: number of adverse events that become covariates; with 0, AE is not read.
        medications: number of medications that become covariates; with 0, CM is not read.
        event_term: the column of AE that names the event.
        medication_term: the column of CM that names the drug.
        known_dates: use only events and medications with whole dates of start and end, as in the paper; by default,
            those without an end continue.
        arms: codes of the arms to keep; None for all.
        planned_arm: use the planned arm instead of the actual one.
        by_position: treat readings of a vital sign in several positions as separate tests; by default, average them.
        exclude: tests to leave out.
        scaling: scaling of measurements, from the training patients: "minmax", "standard", or "none", as models scale
            by themselves.
        kinds: kinds of measurements: "infer" for those that `Schema.infer` proposes on all rows, such as log-normal
            for skewed enzymes; "gaussian" for all. Scaled measurements are Gaussian.
        validation_share: share of the patients in the validation part.
        test_share: share of the patients in the test part.
        seed: seed of the split.
    """
    _check(min_column, min_row, min_visits, events, medications, scaling, kinds)
    folder, notes, steps = Path(folder), list[str](), dict[str, dict[str, float]]()
    people = enrolled(read_people(folder), arms, planned_arm, notes.append)
    results = measured.results(
        [measured.read_results(folder, domain) for domain in ("LB", "VS")], people, by_position, exclude, notes.append
    )
    measured.check_units(results, notes.append)
    day = measured.visit_days(results, notes.append)
    wide = measured.wide(results, notes.append)
    wide = _record_step(wide[wide.index.isin(day.index)], "raw", steps)
    wide = _record_step(measured.drop_columns(wide, min_column), f"columns observed ≥ {100 * min_column:g}%", steps)
    wide = _record_step(measured.drop_rows(wide, min_row), f"rows observed ≥ {100 * min_row:g}%", steps)
    wide = _record_step(measured.drop_patients(wide, min_visits), f"patients with ≥ {min_visits} rows", steps)
    measured.remark_on_constant(wide, notes.append)
    table = by_day(wide, day, notes.append)
    parts = split_patients(table, validation_share, test_share, seed) if validation_share or test_share else {}
    training = parts.get("train", table).index
    covariates: dict[str, Kind] = {"age": "continuous", "sex": "categorical", "arm": "categorical"}
    for name in covariates:
        table[name] = table["patient"].map(people[name])
    for domain, term, count in (("AE", event_term, events), ("CM", medication_term, medications)):
        if count:
            active_spans = spans(read_records(folder, domain, term), people, known_dates, domain, notes.append)
            flags = states(table, active_spans, training, count, domain, notes.append)
            table = table.join(flags)
            covariates |= {str(name): "categorical" for name in flags}
    schema = Schema(list(wide.columns), covariates, instance="patient", time="day", static=["age", "sex", "arm"])
    nullable = {name: float if role == "continuous" else object for name, role in schema.covariates.items()}
    table = table[list(schema.columns)].astype(nullable)
    widths = None
    if scaling != "none":
        widths = scales(table.loc[training], schema.measurements, scaling)
        table = scale(table, widths)
    elif kinds == "infer":
        schema = with_kinds(schema, table, notes.append)
    parts = {part: table.loc[rows.index] for part, rows in parts.items()}
    return Study(table, schema, pd.DataFrame.from_dict(steps, orient="index"), tuple(notes), parts, widths)


def by_day(wide: pd.DataFrame, day: pd.Series, remark: Remark = ignore) -> pd.DataFrame:
    """Return the visits with their days since the first dose, sorted by patient and day."""
    table = wide.rename_axis(columns=None).assign(day=day.reindex(wide.index)).reset_index()
    falls = (day.sort_index().groupby("patient").diff() < 0).sum()
    remark(
        "day: counted from the first dose, which is day 0 here and day 1 in SDTM, where there is no day 0; "
        f"{(table['day'] < 0).sum():,} rows lie before it, with negative days."
    )
    if falls:
        remark(f"day: falls {falls:,} times as VISITNUM rises, over all visits; rows are sorted by day.")
    return table.sort_values(["patient", "day"], ignore_index=True)


def with_kinds(schema: Schema, table: pd.DataFrame, remark: Remark = ignore) -> Schema:
    """Return the schema with the kinds of measurements that `Schema.infer` proposes on these rows."""
    inferred = Schema.infer(
        table, instance=schema.instance, time=schema.time, measurements=schema.measurements,
        covariates=dict(schema.covariates),
    )  # fmt: skip
    groups = [
        f"{', '.join(name for name, own in inferred.kinds.items() if own == kind)} {kind}"
        for kind in dict.fromkeys(inferred.kinds.values())
    ]
    rest = len(schema.measurements) - len(inferred.kinds)
    remark(f"kinds of measurements, as their values suggest: {'; '.join([*groups, f'{rest} gaussian'])}.")
    return replace(schema, kinds=inferred.kinds)


def states(
    table: pd.DataFrame, spans: pd.DataFrame, training: pd.Index, count: int, domain: str, remark: Remark = ignore
) -> pd.DataFrame:
    """Return columns such as "AE rash" for the commonest names in training: "yes" if active at the visit, or "no"."""
    visits = active(table, spans)
    names = frequent(visits[visits["row"].isin(training)], count)
    if len(names) < count:
        remark(f"{domain}: only {len(names)} names are active at a visit; {count} were asked for.")
    rows = {name: visits.loc[visits["label"] == name, "row"] for name in names}
    flags = {f"{domain} {name.lower()}": np.where(table.index.isin(rows[name]), "yes", "no") for name in names}
    return pd.DataFrame(flags, index=table.index)


def _record_step(wide: pd.DataFrame, step: str, steps: dict[str, dict[str, float]]) -> pd.DataFrame:
    """Record the size of the table after a step, and return the table."""
    steps[step] = {
        "patients": wide.index.unique("patient").size, "rows": len(wide), "tests": wide.shape[1],
        "observed": float(wide.notna().to_numpy().mean()),
    }  # fmt: skip
    return wide


def _check(
    min_column: float, min_row: float, min_visits: int, events: int, medications: int, scaling: str, kinds: str
) -> None:
    for name, share in (("min_column", min_column), ("min_row", min_row)):
        if not 0.0 <= share <= 1.0:
            raise ValueError(f"{name} is {share}; expected a share between 0 and 1.")
    for name, count, least in (("min_visits", min_visits, 1), ("events", events, 0), ("medications", medications, 0)):
        if count < least:
            raise ValueError(f"{name} is {count}; expected at least {least}.")
    if scaling not in ("none", *get_args(Scaling)):
        raise ValueError(f"scaling is {scaling!r}; expected none, {' or '.join(get_args(Scaling))}.")
    if kinds not in get_args(Kinds):
        raise ValueError(f"kinds is {kinds!r}; expected {' or '.join(get_args(Kinds))}.")
