"""Files that are written whole or not at all."""

import os
from pathlib import Path

import pytest

from lacova.data.io.atomic import replacing, sweep


def test_an_interruption_leaves_nothing(tmp_path):
    def interrupted(path: Path) -> None:
        with replacing(path) as temporary:
            temporary.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted(tmp_path / "a.csv")
    assert os.listdir(tmp_path) == []


def test_a_sweep_removes_the_temporary_files_of_one_name_alone(tmp_path):
    for name in ("a.csv", ".lacova-a.csv-abcd1234", ".lacova-b.csv-abcd1234", ".lacova-a.csv-abc"):
        (tmp_path / name).touch()
    sweep(tmp_path / "a.csv")
    assert sorted(os.listdir(tmp_path)) == [".lacova-a.csv-abc", ".lacova-b.csv-abcd1234", "a.csv"]
