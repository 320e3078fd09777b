"""Files that are written whole or not at all."""

import os
from pathlib import Path

import pytest

from lacova.data.io.atomic import PRIVATE, replacing, replacing_together, sweep


@pytest.fixture(params=[0o022, 0o077, 0o002], ids=oct)
def umask(request):
    old = os.umask(request.param)
    yield request.param
    os.umask(old)


def mode(path):
    return path.stat().st_mode & 0o7777


def overwrite(path, text="new", **options):
    with replacing(path, **options) as temporary:
        temporary.write_text(text)


def test_an_interruption_leaves_nothing(tmp_path):
    def interrupted(path: Path) -> None:
        with replacing(path) as temporary:
            temporary.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted(tmp_path / "a.csv")
    assert os.listdir(tmp_path) == []


def test_new_files_honour_the_umask_and_replaced_ones_keep_their_mode(tmp_path, umask):
    overwrite(tmp_path / "a")
    assert mode(tmp_path / "a") == 0o666 & ~umask
    overwrite(tmp_path / "b", mode=PRIVATE)
    assert mode(tmp_path / "b") == 0o600
    for kept in (0o600, 0o640, 0o666, 0o400):
        (tmp_path / "a").chmod(kept)
        overwrite(tmp_path / "a", f"{kept}")
        assert ((tmp_path / "a").read_text(), mode(tmp_path / "a")) == (f"{kept}", kept)
    assert os.umask(umask) == umask


def test_what_will_be_private_is_private_while_it_is_written(tmp_path, umask):
    (tmp_path / "a").touch(0o600)
    with replacing(tmp_path / "a") as temporary:
        assert mode(temporary) == 0o600
    with replacing(tmp_path / "b", mode=PRIVATE) as temporary:
        assert mode(temporary) == 0o600


def test_links_are_followed(tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "a").write_text("old")
    (tmp_path / "link").symlink_to(Path("far") / "a")
    (tmp_path / "dangling").symlink_to(tmp_path / "far" / "b")
    for link, target in (("link", "a"), ("dangling", "b")):
        with replacing(tmp_path / link) as temporary:
            temporary.write_text("new")
            assert temporary.parent == tmp_path / "far"  # the disk of the file, not that of the link
        assert (tmp_path / link).is_symlink()
        assert (tmp_path / "far" / target).read_text() == "new"
    assert sorted(os.listdir(tmp_path / "far")) == ["a", "b"]


@pytest.mark.parametrize("step", ["open", "fsync", "replace", "chmod"])
def test_an_interrupt_at_any_call_leaves_each_file_whole(tmp_path, monkeypatch, step):
    paths = [tmp_path / name for name in "abc"]
    for path in paths[:2]:
        path.write_text("old")
    real, done, number = getattr(os, step), False, 0
    while not done:
        number, calls = number + 1, []

        def interrupted(*words, number=number, calls=calls, **options):
            calls.append(1)
            if len(calls) == number:
                raise KeyboardInterrupt
            return real(*words, **options)

        before = [path.read_text() if path.exists() else None for path in paths]
        with monkeypatch.context() as patch:
            patch.setattr(os, step, interrupted)
            try:
                with replacing_together(paths) as temporaries:
                    for temporary in temporaries:
                        temporary.write_text(f"{number}")
                done = True
            except KeyboardInterrupt:
                pass
        for path, old in zip(paths, before, strict=True):
            assert (path.read_text() if path.exists() else None) in (old, f"{number}")
        assert set(os.listdir(tmp_path)) <= {"a", "b", "c"}
    assert number > {"open": 3, "fsync": 3, "replace": 3, "chmod": 1}[step]
    assert [path.read_text() for path in paths] == [f"{number}"] * 3


def test_nothing_is_renamed_before_all_is_on_the_disk(tmp_path, monkeypatch):
    calls = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, real=real, name=name: (calls.append(name), real(*a)))
    with replacing_together([tmp_path / "a", tmp_path / "b"]):
        pass
    assert calls == ["fsync", "fsync", "replace", "replace", "fsync"]  # the last one is the folder


def test_a_sweep_removes_the_temporary_files_of_one_name_alone(tmp_path):
    mine = (".lacova-a.csv-abcd1234", ".lacova-.lacova-a.csv-abcd1234-1234abcd")
    others = (".lacova-a.csv-abc", ".lacova-b.csv-abcd1234", "a.csv")
    for name in (*mine, *others):
        (tmp_path / name).touch()
    sweep(tmp_path / "a.csv")
    assert sorted(os.listdir(tmp_path)) == list(others)


def test_what_a_killed_process_leaves_is_swept(tmp_path):
    with replacing(tmp_path / "a.csv") as temporary, replacing(temporary):
        names = os.listdir(tmp_path)
    (tmp_path / "a.csv").unlink()
    for name in names:
        (tmp_path / name).touch()
    assert len(names) == 2
    sweep(tmp_path / "a.csv")
    assert os.listdir(tmp_path) == []
