"""DM: who takes part, in which arm, and when the first dose was."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from lacova.data.errors import DataError, meant
from lacova.datasets.sdtm.dates import first_day, is_whole
from lacova.datasets.sdtm.domains import Say, read_domain, unsaid

NOT_ENROLLED = ("SCRNFAIL", "NOTASSGN")  # codes of an arm that is none


def read_people(folder: Path) -> pd.DataFrame:
    """DM as `enrolled` takes it."""
    text = ("USUBJID", "RFSTDTC", "SEX", "ARMCD", "ACTARMCD", "AGEU")
    return read_domain(folder, "DM", text, ["AGE"], optional=["ACTARMCD", "AGEU"])


def enrolled(
    dm: pd.DataFrame, arms: Sequence[str] | None = None, planned_arm: bool = False, say: Say = unsaid
) -> pd.DataFrame:
    """Age, sex, arm and the day of the first dose, by patient; who has no arm or had no dose is left out.

    Args:
        dm: the domain.
        arms: codes of the arms to keep; None for all.
        planned_arm: the arm is ARMCD, what the patient was to take, not ACTARMCD, what was taken.
        say: takes remarks.
    """
    twice = dm["USUBJID"][dm["USUBJID"].duplicated() | dm["USUBJID"].isna()]
    if len(twice):
        raise DataError(f"DM has more or less than one row for the patient {twice.iloc[0]!r}; expected one for each.")
    units = dm["AGEU"].dropna().unique().tolist()
    if any(unit.upper() != "YEARS" for unit in units):
        raise DataError(f"AGE of DM is in {', '.join(units)}; expected YEARS for all: convert it.")
    actual = dm["ACTARMCD"] if dm["ACTARMCD"].notna().any() else dm["ARMCD"]
    arm = dm["ARMCD"] if planned_arm else actual
    failed = arm.isna() | arm.str.upper().isin(NOT_ENROLLED)
    undosed = ~failed & dm["RFSTDTC"].isna()
    say(f"DM: {len(dm):,} patients, of whom {failed.sum()} screen failures are left out.")
    if undosed.any():
        say(f"DM: {undosed.sum()} patients without a first dose (RFSTDTC) are left out.")
    kept = ~failed & ~undosed
    differ = (kept & (dm["ARMCD"] != actual)).sum()
    if differ:
        used = "ARM, what was planned" if planned_arm else "ACTARM, what was taken"
        say(f"DM: ARM and ACTARM differ for {differ} patients; the arm is {used}.")
    if arms is not None:
        found = sorted(arm[kept].unique())
        strange = [name for name in arms if name not in found]
        if strange:
            raise DataError(
                f"there is no arm {strange[0]!r} in DM; the arms are {', '.join(found)}.{meant(strange, found)}"
            )
        kept &= arm.isin(arms)
        say(f"DM: {kept.sum()} patients are in the arms asked for: {', '.join(arms)}.")
    if not kept.any():
        raise DataError("no patient of DM has an arm and a first dose (RFSTDTC); expected some.")
    start = dm["RFSTDTC"][kept]
    if not is_whole(start, "RFSTDTC of DM").all():
        partial = start[~is_whole(start, "RFSTDTC of DM").to_numpy()].iloc[0]
        raise DataError(f"RFSTDTC of DM is {partial!r} for a patient; days need the whole date of the first dose.")
    people = pd.DataFrame({"patient": dm["USUBJID"], "age": dm["AGE"], "sex": dm["SEX"], "arm": arm})[kept]
    return people.assign(first_dose=first_day(start, "RFSTDTC of DM")).set_index("patient")
