"""All steps in their order, and what each of them kept."""

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
from lacova.datasets.sdtm.domains import Say, unsaid
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
        steps: patients, rows, tests and the observed share of entries, after each step.
        notes: how the data were treated where they are not plain, a sentence each.
        parts: the table dealt to "train", "validation" and "test", if that was asked for.
        scales: centre and width of each measurement, if they were scaled.
    """

    table: pd.DataFrame
    schema: Schema
    steps: pd.DataFrame
    notes: tuple[str, ...]
    parts: Mapping[str, pd.DataFrame]
    scales: pd.DataFrame | None

    def describe(self) -> str:
        """Steps and notes, for people."""
        shown = self.steps.assign(
            **{name: self.steps[name].map("{:,}".format) for name in ("patients", "rows", "tests")},
            observed=self.steps["observed"].map("{:.1%}".format),
        )
        return "\n".join([shown.rename_axis(columns="step").to_string(), "", *(f"- {note}" for note in self.notes)])

    def save(self, out: str | PathLike[str], schema: str | PathLike[str]) -> list[Path]:
        """Write the table, CSV or Parquet by suffix, and the schema as TOML: all files or none. Returns their paths.

        Of a table in parts, each part gets a file: `study.train.parquet` and so on. Scales go to `study.scales.csv`.
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
    """The table of visits of a trial, from its SDTM domains, prepared as in the paper.

    Measurements are the tests of LB and VS; covariates are the day since the first dose, age, sex, arm, and whether
    the commonest adverse events and medications (of the training patients) were active at the visit, "yes" or "no".

    Args:
        folder: has DM, LB, VS, AE and CM, one file each: CSV, gzipped CSV, Parquet, SAS XPT or sas7bdat.
        min_column: share of the visits at which a test must be observed.
        min_row: share of these tests that must be observed at a visit.
        min_visits: of a patient, after that.
        events: how many adverse events become covariates; without any AE is not read.
        medications: how many medications do; without any CM is not read.
        event_term: the column of AE that names the event.
        medication_term: the column of CM that names the drug.
        known_dates: only events and medications with whole dates of start and end count, as in the paper; else those
            without an end go on.
        arms: codes of the arms to keep; None for all.
        planned_arm: the arm is the planned one, not the actual one.
        by_position: vital signs in several positions are tests of their own; else their mean is taken.
        exclude: tests to leave out.
        scaling: of measurements, from the training patients: "minmax", "standard", or "none", as models scale by
            themselves.
        kinds: of measurements: "infer" for what `Schema.infer` proposes on all rows, such as log-normal for skewed
            enzymes; "gaussian" for all. Scaled ones are Gaussian.
        validation_share: of the patients, for a part of their own; so `test_share`.
        seed: of the split.
    """
    _check(min_column, min_row, min_visits, events, medications, scaling, kinds)
    folder, notes, steps = Path(folder), list[str](), dict[str, dict[str, float]]()
    people = enrolled(read_people(folder), arms, planned_arm, notes.append)
    found = measured.results(
        [measured.read_results(folder, domain) for domain in ("LB", "VS")], people, by_position, exclude, notes.append
    )
    measured.check_units(found, notes.append)
    day = measured.visit_days(found, notes.append)
    wide = measured.wide(found, notes.append)
    wide = kept(wide[wide.index.isin(day.index)], "raw", steps)
    wide = kept(measured.drop_columns(wide, min_column), f"columns observed ≥ {100 * min_column:g}%", steps)
    wide = kept(measured.drop_rows(wide, min_row), f"rows observed ≥ {100 * min_row:g}%", steps)
    wide = kept(measured.drop_patients(wide, min_visits), f"patients with ≥ {min_visits} rows", steps)
    measured.say_sparse(wide, notes.append)
    table = by_day(wide, day, notes.append)
    parts = split_patients(table, validation_share, test_share, seed) if validation_share or test_share else {}
    training = parts.get("train", table).index
    covariates: dict[str, Kind] = {"age": "continuous", "sex": "categorical", "arm": "categorical"}
    for name in covariates:
        table[name] = table["patient"].map(people[name])
    for domain, term, count in (("AE", event_term, events), ("CM", medication_term, medications)):
        if count:
            when = spans(read_records(folder, domain, term), people, known_dates, domain, notes.append)
            flags = states(table, when, training, count, domain, notes.append)
            table = table.join(flags)
            covariates |= {str(name): "categorical" for name in flags}
    schema = Schema(list(wide.columns), covariates, instance="patient", time="day", static=["age", "sex", "arm"])
    # Types that can hold gaps.
    held = {name: float if role == "continuous" else object for name, role in schema.covariates.items()}
    table = table[list(schema.columns)].astype(held)
    widths = None
    if scaling != "none":
        widths = scales(table.loc[training], schema.measurements, scaling)
        table = scale(table, widths)
    elif kinds == "infer":
        schema = with_kinds(schema, table, notes.append)
    parts = {part: table.loc[rows.index] for part, rows in parts.items()}
    return Study(table, schema, pd.DataFrame.from_dict(steps, orient="index"), tuple(notes), parts, widths)


def by_day(wide: pd.DataFrame, day: pd.Series, say: Say = unsaid) -> pd.DataFrame:
    """Visits with their days since the first dose, sorted by patient and day."""
    table = wide.rename_axis(columns=None).assign(day=day.reindex(wide.index)).reset_index()
    falls = (day.sort_index().groupby("patient").diff() < 0).sum()
    say(
        "day: counted from the first dose, which is day 0 here and day 1 in SDTM, where there is no day 0; "
        f"{(table['day'] < 0).sum():,} rows lie before it, with negative days."
    )
    if falls:
        say(f"day: falls {falls:,} times as VISITNUM rises, over all visits; rows are sorted by day.")
    return table.sort_values(["patient", "day"], ignore_index=True)


def with_kinds(schema: Schema, table: pd.DataFrame, say: Say = unsaid) -> Schema:
    """The schema with the kinds of measurements that `Schema.infer` proposes on these rows."""
    found = Schema.infer(
        table, instance=schema.instance, time=schema.time, measurements=schema.measurements,
        covariates=dict(schema.covariates),
    )  # fmt: skip
    named = [
        f"{', '.join(name for name, each in found.kinds.items() if each == kind)} {kind}"
        for kind in dict.fromkeys(found.kinds.values())
    ]
    rest = len(schema.measurements) - len(found.kinds)
    say(f"kinds of measurements, as their values suggest: {'; '.join([*named, f'{rest} gaussian'])}.")
    return replace(schema, kinds=found.kinds)


def states(
    table: pd.DataFrame, spans: pd.DataFrame, training: pd.Index, count: int, domain: str, say: Say = unsaid
) -> pd.DataFrame:
    """Columns such as "AE rash", of the names commonest in training: "yes" if active at the visit, else "no"."""
    every = active(table, spans)
    names = frequent(every[every["row"].isin(training)], count)
    if len(names) < count:
        say(f"{domain}: only {len(names)} names are active at a visit; {count} were asked for.")
    rows = {name: every.loc[every["label"] == name, "row"] for name in names}
    flags = {f"{domain} {name.lower()}": np.where(table.index.isin(rows[name]), "yes", "no") for name in names}
    return pd.DataFrame(flags, index=table.index)


def kept(wide: pd.DataFrame, step: str, steps: dict[str, dict[str, float]]) -> pd.DataFrame:
    """Note what a step has kept."""
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
