"""DM: the enrolled patients, their arms and first doses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from lacova.data.errors import DataError, hint
from lacova.datasets.sdtm.dates import first_day, is_whole
from lacova.datasets.sdtm.domains import Remark, ignore, read_domain

NOT_ENROLLED = ("SCRNFAIL", "NOTASSGN")  # codes for no arm


def read_people(folder: Path) -> pd.DataFrame:
    """Read DM as `enrolled` takes it."""
    text = ("USUBJID", "RFSTDTC", "SEX", "ARMCD", "ACTARMCD", "AGEU")
    return read_domain(folder, "DM", text, ["AGE"], optional=["ACTARMCD", "AGEU"])


def enrolled(
    dm: pd.DataFrame, arms: Sequence[str] | None = None, planned_arm: bool = False, remark: Remark = ignore
) -> pd.DataFrame:
    """Return age, sex, arm and the date of the first dose by patient, without patients who have no arm or no dose.

    Args:
        dm: the domain.
        arms: codes of the arms to keep; None for all.
        planned_arm: use ARMCD, the planned arm, instead of ACTARMCD, the actual one.
        remark: receives remarks on the data.
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
    remark(f"DM: {len(dm):,} patients, of whom {failed.sum()} screen failures are left out.")
    if undosed.any():
        remark(f"DM: {undosed.sum()} patients without a first dose (RFSTDTC) are left out.")
    chosen = ~failed & ~undosed
    differ = (chosen & (dm["ARMCD"] != actual)).sum()
    if differ:
        used = "ARM, what was planned" if planned_arm else "ACTARM, what was taken"
        remark(f"DM: ARM and ACTARM differ for {differ} patients; the arm is {used}.")
    if arms is not None:
        present = sorted(arm[chosen].unique())
        unknown = [name for name in arms if name not in present]
        if unknown:
            raise DataError(
                f"there is no arm {unknown[0]!r} in DM; the arms are {', '.join(present)}.{hint(unknown, present)}"
            )
        chosen &= arm.isin(arms)
        remark(f"DM: {chosen.sum()} patients are in the arms asked for: {', '.join(arms)}.")
    if not chosen.any():
        raise DataError("no patient of DM has an arm and a first dose (RFSTDTC); expected some.")
    start = dm["RFSTDTC"][chosen]
    if not is_whole(start, "RFSTDTC of DM").all():
        partial = start[~is_whole(start, "RFSTDTC of DM").to_numpy()].iloc[0]
        raise DataError(f"RFSTDTC of DM is {partial!r} for a patient; days need the whole date of the first dose.")
    people = pd.DataFrame({"patient": dm["USUBJID"], "age": dm["AGE"], "sex": dm["SEX"], "arm": arm})[chosen]
    return people.assign(first_dose=first_day(start, "RFSTDTC of DM")).set_index("patient")
