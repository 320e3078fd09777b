"""AE and CM: spans of events and medications, and the commonest of them."""

import pandas as pd

from tests.datasets.sdtm.cases import domains, has_note, prepared


def flags(study, name):
    return study.table[name].eq("yes").to_numpy().reshape(4, 5).astype(int).tolist()


def test_events_and_drugs_are_active_between_their_dates(plain):
    none = [0] * 5  # days -7, 0, 14, 29 (January 31), 44
    assert flags(plain, "AE rash") == [[0, 0, 1, 0, 0], [0, 0, 0, 0, 1], none, none]  # without an end, it goes on
    assert flags(plain, "AE cough") == [none, none, [1, 1, 1, 1, 0], none]  # until the end of January
    assert flags(plain, "CM aspirin") == [none, none, [1, 1, 0, 0, 0], none]  # the last day counts
    assert flags(plain, "CM multivitamin") == [[1] * 5, [0, 1, 1, 1, 1], none, none]  # 2014 begins on January 1
    assert has_note(plain, "AE: 4 records of enrolled patients, 3 distinct: repeats count once.")
    assert has_note(
        plain, "AE: 1 records without an end go on, 1 without a start have always been; 2 with a partial date"
    )
    assert has_note(plain, "CM: the same thing by two names: MULTIVITAMINS is MULTIVITAMIN.")
    assert "CM multivitamins" not in plain.table


def test_only_known_dates_as_in_the_paper(tmp_path):
    study = prepared(tmp_path, known_dates=True)
    assert [name for name in study.table if name[:3] in ("AE ", "CM ")] == ["AE rash", "CM aspirin"]
    assert has_note(study, "AE: 1 records have a whole start and end date; the others are left out.")
    assert has_note(study, "AE: only 1 names are active at a visit; 10 were asked for.")


def test_the_commonest_names_are_those_that_most_patients_show_at_a_visit(tmp_path):
    tables = domains()
    # Neither many records of one patient nor records without a visit make a name common.
    often = [("004", "GOUT", f"2014-01-{day:02}", "2014-01-16") for day in range(1, 10)]
    never = [(patient, "FALL", "2015-01-01", None) for patient in ("001", "002", "003")]
    tables["AE"] = pd.concat([tables["AE"], pd.DataFrame([*often, *never], columns=list(tables["AE"]))])
    study = prepared(tmp_path, tables, events=2, medications=0)
    assert list(study.schema.covariates) == ["age", "sex", "arm", "AE rash", "AE cough", "day"]
    assert not any(note.startswith("CM") for note in study.notes)
    terms = {**tables, "CM": tables["CM"].assign(CMDECOD="UNCODED"), "AE": tables["AE"].assign(AETERM="OUCH")}
    study = prepared(tmp_path, terms, event_term="AETERM", medication_term="CMDECOD")
    assert [name for name in study.table if name[:3] in ("AE ", "CM ")] == ["AE ouch", "CM uncoded"]


def test_a_span_that_ends_before_it_starts_is_remarked_upon(tmp_path):
    tables = domains()
    tables["AE"].loc[0, "AEENDTC"] = "2014-01-05"
    assert has_note(prepared(tmp_path, tables), "AE: 1 records end before they start")
