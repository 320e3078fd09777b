"""`lacova schema`."""

import lacova
from lacova.data.io.files import write_table
from tests.cli.cases import shell, visits


def test_the_schema_is_proposed_and_printed(home, capsys):
    schema = lacova.Schema.from_toml(home / "s.toml")
    assert schema.measurements == ("alt", "ast")
    assert dict(schema.covariates) == {"sex": "categorical", "day": "continuous"}
    assert (schema.instance, schema.time, schema.static) == ("id", "day", ("sex",))
    assert shell("schema", home / "data.csv", "--instance", "id", "--time", "day") == 0
    text = capsys.readouterr()
    assert text.err == ""
    assert lacova.Schema.from_toml(text.out).instance == "id"


def test_a_remark_points_out_a_forgotten_instance(home, tmp_path, capsys):
    words = ("schema", home / "data.csv", "--time", "day")
    assert shell(*words) == 0
    remark = "rows count as independent; if 'id' names the patient, add --instance id."
    assert remark in capsys.readouterr().err
    assert shell(*words, "--exclude", "id") == 0
    assert shell(*words, "--quiet") == 0
    assert shell(*words, "--instance", "id") == 0
    write_table(visits().drop_duplicates("id"), tmp_path / "once.csv")
    assert shell("schema", tmp_path / "once.csv") == 0
    assert capsys.readouterr().err == ""
