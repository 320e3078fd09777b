"""The program of the inference study: figures over repetitions, verdicts, how a run continues, pages, and lacova."""

import json
import re
import shlex

import numpy as np
import pytest
from reproduction.inference.__main__ import METHODS, RESULTS, cells, main, parser
from reproduction.inference.beside import RIGHT, differences
from reproduction.inference.page import OURS, PAGE, appendix, findings
from reproduction.inference.parts import PARTS, comparison, run_without
from reproduction.inference.run import compute
from reproduction.inference.summary import KEY, plain, summary
from reproduction.inference.world import Ours
from reproduction.inference.worlds import WORLDS
from reproduction.markdown import appendix_of

from reproduction import results
from reproduction.inference import answers, multiple
from reproduction.inference import run as running

QUICK = ["--worlds", "pairs", "--methods", "complete data", "complete cases"]


def made_up(values, world="pairs", method="CVAE", size=300, figure="slope"):
    """Return lines with one figure; None is a failure."""
    return [
        dict(zip(KEY, (world, size, method, number), strict=True))
        | ({"error": "ValueError: no"} if value is None else {"figures": {figure: value}, "seconds": 2.0})
        for number, value in enumerate(values)
    ]


def test_figures_over_repetitions():
    (line,) = summary(made_up([[1.0, 0.9, 1.1], [1.2, 1.1, 1.4], None, [0.8, 0.6, 1.05]]))
    assert (line.count, line.failed, line.seconds) == (3, 1, 2.0)
    assert line.mean == pytest.approx(1.0)
    assert line.bias == pytest.approx(0.0)
    assert line.sd == pytest.approx(0.2)
    assert line.error == pytest.approx(0.2 / 3**0.5)
    assert line.width == pytest.approx((0.2 + 0.3 + 0.45) / 3)
    assert line.coverage == pytest.approx(2 / 3)
    assert line.coverage_error == pytest.approx((0.6 * 0.4 / 3) ** 0.5)


def test_a_failure_that_was_tried_again_counts_no_more():
    (line,) = summary([*made_up([None]), *made_up([[1.0, 0.9, 1.1]])])
    assert (line.count, line.failed) == (1, 0)


@pytest.mark.parametrize(
    ("bias", "held", "verdict"),
    [
        (0.0, 95, "yes"),
        (0.028, 95, "yes"),
        (-0.032, 95, "unclear"),  # the error of the mean is .002
        (-0.04, 95, "no"),
        (0.0, 100, "unclear"),  # a probability of 4.8% where 97% are held
        (0.0, 90, "unclear"),  # 16% where 93% are held
        (0.0, 87, "no"),  # 2.2%
    ],
)
def test_a_figure_is_wrong_if_chance_would_not_take_it_so_far_outside(bias, held, verdict):
    values = [1.0 + bias + 0.02 * (-1) ** k for k in range(100)]
    ends = [(0.0, 2.0) if k < held else (3.0, 4.0) for k in range(100)]
    (line,) = summary(made_up([[value, *end] for value, end in zip(values, ends, strict=True)]))
    assert line.verdict == verdict


def test_a_figure_without_any_answer_is_wrong_and_one_repetition_decides_nothing():
    assert [line.verdict for line in summary(made_up([None]))] == ["no"] * 3
    assert [line.verdict for line in summary(made_up([[0.5, 0.0, 2.0]]))] == ["unclear"]
    assert [line.verdict for line in summary(made_up([[0.5, 0.0, 2.0], [0.7, 0.0, 2.0]]))] == ["unclear"]


@pytest.fixture
def in_this_process(monkeypatch):
    def work(function, tasks, *_):
        for place, task in enumerate(tasks):
            try:
                yield place, function(*task), None
            except Exception as error:
                yield place, None, f"Traceback\n{type(error).__name__}: {error}\n"

    monkeypatch.setattr(running, "work", work)


def test_a_second_run_does_nothing_and_a_longer_one_goes_on(in_this_process, tmp_path, capsys):
    file = tmp_path / "results.jsonl"
    words = ["run", *QUICK, "--results", str(file), "--repetitions"]
    assert main([*words, "1"]) == 0
    first = file.read_text()
    assert main([*words, "1"]) == 0
    assert "0 to do, 2 done" in capsys.readouterr().err
    assert file.read_text() == first
    assert main([*words, "2"]) == 0
    assert file.read_text().startswith(first)
    lines = results.read(file, KEY)
    assert [(line["method"], line["repetition"]) for line in lines] == [
        (method, number) for number in (0, 1) for method in ("complete data", "complete cases")
    ]
    study = WORLDS["pairs"].study(300, 1)
    slope = np.polyfit(study.complete["x"], study.complete["y2"], 1)[0]
    assert lines[2]["figures"]["slope"][0] == pytest.approx(slope, abs=1e-5)


def test_a_failure_is_written_down_and_tried_again(in_this_process, tmp_path, monkeypatch):
    file, methods = tmp_path / "results.jsonl", WORLDS["pairs"].methods
    words = ["run", *QUICK[:3], "complete data", "--results", str(file), "--repetitions", "2"]
    with monkeypatch.context() as patch:
        patch.setitem(methods, "complete data", lambda study, seed, ours: {"slope": [1 / seed]})
        assert main(words) == 1
    assert ["error" in line for line in results.read(file, KEY)] == [True, False]
    assert "ZeroDivisionError" in results.read(file, KEY)[0]["error"]
    assert main(words) == 0
    assert [line["repetition"] for line in results.read(file, KEY)] == [0, 1, 0]
    assert {line.failed for line in summary(results.read(file, KEY))} == {0}


def test_figures_that_are_not_finite_are_failures(monkeypatch):
    monkeypatch.setitem(WORLDS["pairs"].methods, "complete data", lambda study, seed, ours: {"slope": [np.nan]})
    with pytest.raises(ValueError, match="slope of the answer are not finite"):
        compute("pairs", 300, "complete data", 0, Ours({}, {}, "cpu"))


@pytest.mark.parametrize("option", ["--fit", "--settings"])
def test_other_options_need_a_file_of_their_own(option):
    with pytest.raises(SystemExit, match="name another file"):
        main(["run", option, '{"members": 2}'])


def test_what_is_asked_for():
    asked = cells(parser().parse_args(["run", "--worlds", "A", "K", "--sizes", "30", "100", "--repetitions", "2"]))
    assert {cell[:2] for cell in asked} == {("small-tables", 30), ("partners", 100)}
    assert [cell[3] for cell in asked] == sorted(cell[3] for cell in asked)
    assert {cell[2] for cell in asked} <= set(METHODS)


def test_every_method_of_every_world_that_is_not_lacova_answers_with_known_figures(monkeypatch):
    for module in (answers, multiple):
        monkeypatch.setattr(module, "TABLES", 3)
    for world in WORLDS.values():
        for method in set(world.methods) - set(OURS):
            figures = compute(world.name, world.sizes[0], method, 0, Ours({}, {}, "cpu"))["figures"]
            assert figures
            assert set(figures) <= set(world.aims)
            intervals = {name for name, values in figures.items() if len(values) == 3}
            assert intervals == {name for name in figures if world.aims[name].coverage is not None}


@pytest.mark.parametrize(
    ("world", "method", "settings"),
    [
        ("small-tables", "CVAE", {"latent_dim": 1}),
        ("pairs", "CVAE", {}),
        ("arm-of-rows", "CVAE", {}),
        ("arm", "GPPriorVAE", {"inducing": 5}),
        ("dropout", "GPPriorVAE", {"inducing": 5}),
    ],
)
def test_lacova_answers_through_its_public_interface(world, method, settings):
    size = WORLDS[world].sizes[0]
    line = compute(world, size, method, 0, Ours(settings, {"max_epochs": 1}, "cpu"))
    assert set(line["figures"]) == set(WORLDS[world].aims)
    assert line["fit"] == {"max_epochs": 1}
    assert line.get("settings", {}) == settings
    for name, values in line["figures"].items():
        if WORLDS[world].aims[name].coverage is not None:
            estimate, lower, upper = values
            assert lower < estimate < upper


def test_pages_have_cells_that_were_not_run_and_mark_what_is_wrong(tmp_path):
    lines = [
        *made_up([[0.7, 0.69, 0.71], [0.702, 0.6, 0.8], None]),
        *made_up([[1.0, 0.9, 1.1]] * 2, method="complete data"),
        *made_up([[0.0, -1.0, 1.0]] * 4, world="no-arm", method="mixed model", size=60, figure="effect"),
    ]
    file, page = tmp_path / "results.jsonl", tmp_path / "page.md"
    results.append(file, lines)
    assert main(["report", "--results", str(file), "--out", str(page)]) == 0
    text, tables = page.read_text(encoding="utf-8"), appendix_of(page).read_text(encoding="utf-8")
    assert "Repetitions of each world: 2 with lacova, 2 to 4 with the other methods." in text
    assert "`CVAE`: of 1 figures, 0 are right, 0 unclear, and 1 wrong." in text
    row = "| B. Pairs that are missing together | 300 rows | CVAE | slope | 1 | 0.701 ± 0.001 | 0.0% ± 30.6 | **no** |"
    assert row in text
    assert "](appendix/page.md)" in text
    assert "| CVAE | 2 | 1 | 0.701 | −0.299 ± 0.001 | 0.001 | 0.110 | 0.0% ± 30.6 | 2.0 | **no** |" in tables
    assert "| method | repetitions | mean | bias | sd | width | coverage | rejected | seconds | right |" in tables
    assert "| mixed model | 4 | 0.000 | +0.000 ± 0.000 | 0.000 | 2.000 | 100.0% ± 18.6 | 0.0% | 2.0 |" in tables
    assert "A. Intervals" not in tables
    assert "(1 failed)" in plain(summary(lines))
    assert main(["report", "--results", str(tmp_path / "none.jsonl"), "--out", str(page)]) == 0


def test_the_pages_of_the_repository_are_those_of_its_results():
    whole = results.read(RESULTS, KEY)
    lines = summary(whole)
    assert PAGE.read_text(encoding="utf-8") == findings(lines, differences(whole), comparison(whole))
    assert appendix_of(PAGE).read_text(encoding="utf-8") == appendix(lines)


def test_the_commands_of_the_page_are_understood():
    (block,) = re.findall(r"```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.S)
    commands = [shlex.split(line, comments=True) for line in block.splitlines()]
    assert [words[:3] for words in commands] == [["python", "-m", "reproduction.inference"]] * 5
    for words in commands:
        parser().parse_args(words[3:])
    assert json.loads(commands[3][commands[3].index("--fit") + 1]) == {"members": 5}


def test_differences_are_those_of_the_same_repetitions():
    lines = [
        *made_up([[1.0, 0.9, 1.1], [1.3, 1.2, 1.4], [5.0, 4.0, 6.0]]),
        *made_up([[0.9, 0.8, 1.0], [1.1, 0.8, 1.2]], method="chained equations"),
        *made_up([None], method="GPPriorVAE"),
    ]
    row = "| B, `pairs`, CVAE | slope | +0.150 ± 0.050 | chained equations | 50% | 100% | 2 |"
    assert differences(lines).splitlines()[2:] == [row]
    assert all(right in WORLDS[world].methods for world, right in RIGHT.items())


def test_models_without_a_part_are_compared_in_the_same_repetitions(in_this_process, tmp_path, monkeypatch):
    part = next(part for part in PARTS if part.name == "members")
    fitted = []

    def answer(study, seed, ours):
        fitted.append((len(study.gappy), dict(ours.fit)))
        return {"effect": [0.5, 0.4, 0.6]}

    for world, _ in part.worlds:
        for method in {"CVAE", "GPPriorVAE"} & set(WORLDS[world].methods):
            monkeypatch.setitem(WORLDS[world].methods, method, answer)
    assert run_without(part, 2, 1, "cpu", False, folder=tmp_path) == 0
    assert fitted == [(50, {"members": 1})] * 8  # two models of one world, and one of two
    whole = [
        *made_up([[1.0, 0.9, 1.1], [1.2, 0.9, 1.3], [9.0, 8.0, 9.9]], "arm-of-rows", size=50, figure="effect"),
    ]
    text = comparison(whole, folder=tmp_path)
    row = "| members | F, `arm-of-rows`, CVAE | effect | 1 | 1.100, 100% hold it | 0.500, 0% hold it | 2 |"
    assert text.splitlines()[2:] == [row]


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_parts_are_taken_away_where_worlds_have_them(part):
    for world, size in part.worlds:
        assert size in WORLDS[world].sizes
    settings = part.settings | {"latent_dim": 1}
    world, size = part.worlds[0]
    methods = [method for method in ("CVAE", "GPPriorVAE") if method in WORLDS[world].methods]
    Ours(settings, part.fit | {"max_epochs": 1}, "cpu").model(methods[-1], WORLDS[world].study(size, 0), 0)
