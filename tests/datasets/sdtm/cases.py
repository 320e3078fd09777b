"""A small trial as SDTM domains, and helpers to prepare it."""

import math
import struct

import numpy as np
import pandas as pd

from lacova.cli import main
from lacova.datasets import sdtm

DAYS = {1.0: -7, 3.0: 1, 4.0: 15, 5.0: 30, 6.0: 45}  # study day by visit number; day 1 is the first dose


def domains():
    """Return four patients with five visits, one who failed the screening, and one who was never dosed."""
    people = ["001", "002", "003", "004", "fail", "none"]
    dm = pd.DataFrame({
        "USUBJID": people, "RFSTDTC": ["2014-01-02"] * 3 + ["2014-01-02T09:30", None, None], "AGE": range(60, 66),
        "AGEU": "YEARS", "SEX": ["F", "M"] * 3, "ARMCD": ["A", "A", "B", "B", "Scrnfail", "A"],
        "ACTARMCD": ["A", "A", "B", "A", "Scrnfail", "A"],
    })  # fmt: skip
    lb, vs = [], []
    for k, patient in enumerate(people):
        for visit, day in DAYS.items():
            common = {"USUBJID": patient, "VISITNUM": visit}
            for test, value, text, unit in (
                ("ALT", 10.0 * k + day, None, "U/L"), ("AST", 20.0 + day * day, None, "U/L"), ("PH", 0.0, None, None),
                ("COLOR", None, "YELLOW", None),
            ):  # fmt: skip
                lb.append({
                    **common, "LBTESTCD": test, "LBSTRESN": value, "LBSTRESC": text or f"{value:g}", "LBSTRESU": unit,
                    "LBDTC": "2014-01-01", "LBDY": day,
                })  # fmt: skip
            for position, value in (("SUPINE", 120.0), ("STANDING", 111.0), ("STANDING", 114.0)):
                vs.append({
                    **common, "VSTESTCD": "SYSBP", "VSSTRESN": value + k, "VSSTRESC": f"{value + k:g}",
                    "VSSTRESU": "mmHg", "VSPOS": position, "VSDY": day,
                })  # fmt: skip
    ae = [
        ("001", "RASH", "2014-01-10", "2014-01-20"), ("001", "RASH", "2014-01-10", "2014-01-20"),
        ("002", "RASH", "2014-02", None), ("003", "COUGH", None, "2014-01"), ("fail", "FALL", None, None),
    ]  # fmt: skip
    cm = [
        ("001", "MULTIVITAMIN", "2003", None), ("001", "MULTIVITAMIN", "2003", None),
        ("002", "Multivitamins", "2014", None), ("003", "ASPIRIN", "2013-12-20", "2014-01-02"),
    ]  # fmt: skip
    return {
        "DM": dm, "LB": pd.DataFrame(lb), "VS": pd.DataFrame(vs),
        "AE": pd.DataFrame(ae, columns=["USUBJID", "AEDECOD", "AESTDTC", "AEENDTC"]),
        "CM": pd.DataFrame(cm, columns=["USUBJID", "CMTRT", "CMSTDTC", "CMENDTC"]),
    }  # fmt: skip


def write(folder, tables, suffix=".csv"):
    """Write domains as files, and return the folder."""
    folder.mkdir(exist_ok=True)
    for name, table in tables.items():
        path = folder / f"{name.lower()}{suffix}"
        if suffix == ".parquet":
            table.to_parquet(path)
        elif suffix == ".xpt":
            write_xpt(path, name, table)
        else:
            table.to_csv(path, index=False)
    return folder


def write_xpt(path, name, table):
    """Write the SAS transport format, version 5, by its specification: records of 80 bytes, IBM floats."""
    stamp, zeros = "01JAN20:00:00:00", "0" * 30
    text = {
        c: table[c].fillna("").map(lambda v: str(v).encode("latin-1")) for c in table if table[c].dtype.kind not in "if"
    }
    widths = {c: max(1, text[c].map(len).max()) if c in text else 8 for c in table}
    fields, position = b"", 0
    for number, column in enumerate(table, 1):
        fields += struct.pack(
            ">hhhh8s40s8shhh2s8shhl52s", 2 if column in text else 1, 0, widths[column], number, f"{column:8}".encode(),
            b" " * 40, b" " * 8, 0, 0, 0, b"", b" " * 8, 0, 0, position, b"",
        )  # fmt: skip
        position += widths[column]
    rows = b"".join(
        text[c][i].ljust(widths[c]) if c in text else ibm(table[c][i]) for i in table.index for c in table
    )  # fmt: skip
    heads = [
        f"HEADER RECORD*******LIBRARY HEADER RECORD!!!!!!!{zeros}",
        f"{'SAS     SAS     SASLIB  9.4     Linux':64}{stamp}", stamp,
        f"HEADER RECORD*******MEMBER  HEADER RECORD!!!!!!!{'0' * 17}1600000000140",
        f"HEADER RECORD*******DSCRPTR HEADER RECORD!!!!!!!{zeros}",
        f"{f'SAS     {name:8}SASDATA 9.4     Linux':64}{stamp}", stamp,
        f"HEADER RECORD*******NAMESTR HEADER RECORD!!!!!!!000000{len(widths):04}{'0' * 20}",
    ]  # fmt: skip
    observations = f"HEADER RECORD*******OBS     HEADER RECORD!!!!!!!{zeros}"
    parts = ["".join(f"{head:80}" for head in heads).encode(), fields, f"{observations:80}".encode(), rows]
    path.write_bytes(b"".join(part + b" " * (-len(part) % 80) for part in parts))


def ibm(value):
    """Return a number as an IBM float."""
    if math.isnan(value):
        return b"." + bytes(7)
    if value == 0.0:
        return bytes(8)
    fraction, exponent = math.frexp(abs(value))
    power = -(-exponent // 4)
    digits = int(fraction * 2.0 ** (exponent - 4 * power + 56))
    return bytes([(128 if value < 0 else 0) + power + 64]) + digits.to_bytes(7, "big")


def prepared(tmp_path, tables=None, **options):
    """Return the study of the domains."""
    return sdtm.study(write(tmp_path / "sdtm", tables or domains()), **options)


def has_note(study, words):
    """Return whether a note of the study contains the words."""
    return any(words in note for note in study.notes)


def many(patients=20):
    """Return the first patient so many times, with other values."""
    tables, rng = domains(), np.random.default_rng(0)
    for name, table in tables.items():
        one = table[table["USUBJID"] == "001"]
        tables[name] = pd.concat([one.assign(USUBJID=f"p{k:02}") for k in range(patients)], ignore_index=True)
    tables["LB"]["LBSTRESN"] += rng.normal(size=len(tables["LB"]))
    return tables


def shell(*words):
    """Run a command of lacova, and return its exit code."""
    return main([str(word) for word in words])
