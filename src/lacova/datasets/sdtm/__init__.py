"""From the raw SDTM domains of a clinical trial (DM, LB, VS, AE, CM) to a table of visits, in named steps."""

from lacova.datasets.sdtm.domains import read_domain
from lacova.datasets.sdtm.measurements import (
    check_units,
    drop_columns,
    drop_patients,
    drop_rows,
    read_results,
    results,
    visit_days,
    wide,
)
from lacova.datasets.sdtm.parts import scale, scales, split_patients
from lacova.datasets.sdtm.people import enrolled, read_people
from lacova.datasets.sdtm.prepare import Study, study
from lacova.datasets.sdtm.records import active, frequent, read_records, spans

__all__ = [
    "Study", "active", "check_units", "drop_columns", "drop_patients", "drop_rows", "enrolled", "frequent",
    "read_domain", "read_people", "read_records", "read_results", "results", "scale", "scales", "spans",
    "split_patients", "study", "visit_days", "wide",
]  # fmt: skip
