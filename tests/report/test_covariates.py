"""Gaps in covariates."""

from lacova.report.covariates import MAX_GAPS
from tests.report.cases import HOSTILE, facts_of


def test_gaps_of_a_covariate_are_told_apart(page, table):
    shown = {c["name"]: [g["who"] for g in c["gaps"]] for c in facts_of(page)["covariates"]}
    assert len(shown["arm"]) == len(set(shown["arm"])) == min(MAX_GAPS, table["arm"].isna().sum())
    row = table.index[table["arm"].isna()][0]
    assert shown["arm"][0] == f"{table['id'][row]}, visit {row % 4 + 1}"
    assert shown["age"] == [f"patient-3{HOSTILE[3]}"]  # the same at all visits
