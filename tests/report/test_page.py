"""The page: its sections, and nothing from the data as markup."""

import html
import json
import re
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest

import lacova
from lacova import report
from lacova.cli import main
from lacova.data.errors import DataError
from lacova.report.page import embedded
from tests.report.cases import HOSTILE, LAB, facts_of

SECTIONS = [
    "warnings",
    "data",
    "model",
    "training",
    "quality",
    "joint",
    "patients",
    "covariates",
    "effects",
    "latent",
    "reproduce",
]


class Tags(HTMLParser):
    """The elements of a page, as a browser parses them."""

    def __init__(self, text):
        super().__init__()
        self.elements = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))


def test_all_sections_are_there_with_headings(page):
    tags = Tags(page).elements
    assert [a["id"] for t, a in tags if t == "section"] == SECTIONS
    assert [t for t, _ in tags].count("h1") == 1
    assert [t for t, _ in tags].count("h2") == len(SECTIONS)
    assert all("aria-labelledby" in a for t, a in tags if t == "section")
    charts = [a["data-chart"] for t, a in tags if a.get("data-chart")]
    assert charts == ["gaps", "training", "calibration", "patients", "covariates", "effects", "latent"]
    assert set(charts) == set(facts_of(page))
    assert "seed of training" in page
    assert f"lacova {lacova.__version__}" in page


def test_how_the_model_was_trained_and_by_which_versions(model, path, page, tmp_path):
    def reproduction(text):
        pairs = re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", text[text.index('<section id="reproduce"') :])
        return {name: html.unescape(value) for name, value in pairs}

    shown = reproduction(page)
    assert shown["training"].startswith("GPPriorVAE(schema, prior='gp(day) + cat(arm) + cat(id)'")
    assert "latent_dim=3" in shown["training"]
    assert ".fit(train, max_epochs=6, schedule='cycle'," in shown["training"]
    assert "model file written by" not in shown
    model.save(tmp_path / "m.lacova")
    loaded = lacova.load(tmp_path / "m.lacova")
    again = reproduction(report.write(loaded, out=tmp_path / "r.html").read_text(encoding="utf-8"))
    assert again["model file written by"].startswith(f"lacova {lacova.__version__};")
    assert again["training"] == shown["training"]


@pytest.mark.parametrize(
    ("validation", "rows"),
    [
        (None, "train"),
        (False, "train, validation=False"),
        (0.3, "train, validation=0.3"),
        ("rows", "train, validation"),
    ],
)
def test_the_call_says_which_rows_were_to_be_held_out(validation, rows, table, tmp_path):
    validation = table.head(20) if validation == "rows" else validation
    schema = lacova.Schema([LAB, "ast"], {"arm": "categorical"})
    fitted = lacova.CVAE(schema, latent_dim=1).fit(table, validation, max_epochs=1)
    fitted.save(tmp_path / "m.lacova")
    for one in (fitted, lacova.load(tmp_path / "m.lacova")):
        assert f".fit({rows}, max_epochs=1," in report.contents(one)["reproduce"]["training"]


def test_nothing_from_the_data_becomes_markup(page):
    tags = Tags(page).elements
    scripts = [a for t, a in tags if t == "script"]
    assert scripts == [{"type": "application/json", "id": "facts"}, {}]
    assert not any(t in ("img", "b", "iframe") for t, _ in tags)
    assert not any(key.startswith("on") for _, a in tags for key in a)
    assert page.count("<script") == 2
    assert "&lt;script&gt;window.hacked" in page
    people = facts_of(page)["patients"]
    assert {p["id"] for p in people["people"]} == {
        f"patient-{k}{HOSTILE[k % 4]}" for k in range(24)
    }  # they are shown, as text
    assert LAB + " (<b>U</b>)" in people["measurements"]


def test_embedded_json_cannot_end_its_element():
    text = embedded({"<!--<script>": "</script>\u2028&"})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"<!--<script>": "</script>\u2028&"}


def test_the_page_needs_no_network_and_allows_none(page):
    urls = {
        url for url in re.findall(r"\b(?:https?:)?//[\w.-]+\.\w+[^\"' ]*", page) if "www.w3.org/2000/svg" not in url
    }
    assert urls == set()
    tags = Tags(page).elements
    assert [a["href"] for t, a in tags if "href" in a and not a["href"].startswith("#")] == ["data:,"]
    assert not any("src" in a and not a["src"].startswith("data:") for _, a in tags)
    policy = next(a["content"] for t, a in tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy


def test_the_size(path):
    assert path.stat().st_size < 8e6


def test_the_model_alone_and_a_model_of_rows(model, tmp_path):
    alone = report.write(model, out=tmp_path / "a.html").read_text(encoding="utf-8")
    assert set(facts_of(alone)) == {"training"}
    assert "No data were given" in alone
    rows = pd.DataFrame({"age": np.linspace(30, 60, 60), "chol": np.linspace(4, 6, 60) ** 2}).mask(np.eye(60, 2) > 0)
    cvae = lacova.CVAE(lacova.Schema(["chol"], {"age": "continuous"}), latent_dim=1).fit(rows, max_epochs=2)
    text = report.write(cvae, rows, tmp_path / "b.html", held_out=rows.tail(30), draws=10).read_text(encoding="utf-8")
    assert "held out of training" in text
    assert "no column that names the patient" in text
    assert "patients" not in facts_of(text)


def test_of_many_columns_those_that_vary_most_have_a_line(tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(200, 104)), columns=[f"c{k}" for k in range(104)])
    table[["c0", "c1", "c2", "c3"]] *= 0.01
    model = lacova.VAE(lacova.Schema(list(table), {}), latent_dim=1).fit(table, max_epochs=1, device="cpu")
    text = report.write(model, table, tmp_path / "r.html", draws=10).read_text(encoding="utf-8")
    quality = text[text.index("The 100 of 104 columns that vary most") :]
    quality = quality[: quality.index("</table>")]
    listed = re.findall(r'<th scope="row">(\w+)</th>', quality)
    assert listed == [f"c{k}" for k in range(4, 104)]


def test_images_are_shown(tmp_path, capsys):
    rng = np.random.default_rng(0)
    true = pd.DataFrame(rng.random((40, 9))).rename(columns=lambda k: f"p{k}").assign(x=rng.random(40))
    data = true.mask(rng.random(true.shape) < 0.2)
    model = lacova.CVAE(lacova.Schema([f"p{k}" for k in range(9)], {"x": "continuous"}), latent_dim=1).fit(
        data, max_epochs=2
    )
    text = report.write(model, data, tmp_path / "r.html", draws=10, images=(3, 3), truth=true).read_text(
        encoding="utf-8"
    )
    pictures = [a for t, a in Tags(text).elements if t == "img"]
    assert len(pictures) == 1
    assert pictures[0]["src"].startswith("data:image/png;base64,")
    assert pictures[0]["alt"]
    with pytest.raises(DataError, match=r"truth has 3 row\(s\), data 40; expected the same rows"):
        report.write(model, data, tmp_path / "r.html", draws=10, images=(3, 3), truth=true.head(3))
    model.save(tmp_path / "model.lacova")
    data.to_csv(tmp_path / "data.csv", index=False)
    true.to_csv(tmp_path / "true.csv", index=False)
    words = ["report", str(tmp_path), "--data", str(tmp_path / "data.csv"), "--draws", "10", "--out"]
    words += [str(tmp_path / "r.html"), "--truth", str(tmp_path / "true.csv")]
    assert main([*words, "--images", "3x3"]) == 0
    again = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert [a["src"] for t, a in Tags(again).elements if t == "img"] == [pictures[0]["src"]]
    assert "true.csv --draws" in again
    assert main(words) == 1
    assert "add --data and --images" in capsys.readouterr().err


def test_bad_input_is_refused(model, table, tmp_path):
    with pytest.raises(DataError, match=r"data has no column 'age', which the model needs"):
        report.write(model, table.drop(columns="age"), tmp_path / "r.html")
    with pytest.raises(DataError, match=r"cannot be written"):
        report.write(model, out=tmp_path / "none" / "r.html")
    with pytest.raises(lacova.NotFittedError):
        report.write(lacova.CVAE(lacova.Schema(["a"], {"b": "continuous"})), out=tmp_path / "r.html")


def test_the_command(model, table, tmp_path, capsys):
    model.save(tmp_path / "model.lacova")
    table.to_csv(tmp_path / "data.csv", index=False)
    words = ["report", str(tmp_path), "--data", str(tmp_path / "data.csv"), "--without-patients", "--draws", "10"]
    assert main([*words, "--out", str(tmp_path / "r.html")]) == 0
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "lacova report" in text
    assert "--without-patients" in text
    assert "patient-" not in text
    assert main([*words, "--out", str(tmp_path / "r.csv")]) == 1
    assert "ends in .html" in capsys.readouterr().err
    assert main([*words, "--images", "28", "--out", str(tmp_path / "r.html")]) == 1
    assert "HEIGHTxWIDTH" in capsys.readouterr().err
