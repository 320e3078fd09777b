"""The report: what is in it, what is not, and how it behaves in a browser."""

import html
import json
import re
import shutil
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest

import lacova
from lacova import report
from lacova.cli import main
from lacova.data.errors import DataError
from lacova.report import facts
from lacova.report.page import embedded
from lacova.report.warnings import nearly_empty, no_better_than_the_mean, not_converged, poor_calibration, warnings

HOSTILE = [
    "</script><script>window.hacked=1</script>",
    '"><img src=x onerror="window.hacked=1">',
    "<!--<script>",
    "&lt;b&gt;",
]
LAB = "<script>window.hacked=1</script>"
SECTIONS = [
    "warnings",
    "data",
    "model",
    "training",
    "quality",
    "patients",
    "covariates",
    "effects",
    "latent",
    "reproduce",
]


def visits(patients=24, count=4, seed=0):
    """Names, labels and levels that try to become markup; the values of LAB are recognisable."""
    rng = np.random.default_rng(seed)
    n, p = patients * count, np.repeat(np.arange(patients), count)
    table = pd.DataFrame({
        "id": [f"patient-{k}{HOSTILE[k % 4]}" for k in p], "day": np.tile(np.arange(count) * 30.0, patients),
        "arm": np.array(HOSTILE)[p % 4], "age": 50 + rng.normal(0, 9, patients)[p],
        LAB: 30.123 + (p % 2) + rng.normal(0, 2, n), "ast": rng.normal(25, 4, n),
    })  # fmt: skip
    for name in ("arm", LAB, "ast"):
        table.loc[rng.random(n) < 0.2, name] = None
    table.loc[p == 3, "age"] = None
    table.loc[5, LAB] = 98765.4321
    return table


@pytest.fixture(scope="module")
def table():
    return visits()


@pytest.fixture(scope="module")
def model(table):
    covariates = {"arm": "categorical", "age": "continuous"}
    schema = lacova.Schema([LAB, "ast"], covariates, instance="id", time="day", static=["age"], units={LAB: "<b>U</b>"})
    return lacova.GPPriorVAE(schema, prior="gp(day) + cat(arm) + cat(id)", latent_dim=3, inducing=6).fit(
        table, max_epochs=6
    )


@pytest.fixture(scope="module")
def path(model, table, tmp_path_factory):
    return report.write(model, table, tmp_path_factory.mktemp("report") / "r.html", draws=20)


@pytest.fixture(scope="module")
def page(path):
    return path.read_text(encoding="utf-8")


class Tags(HTMLParser):
    """The elements of a page, as a browser would find them."""

    def __init__(self, text):
        super().__init__()
        self.found, self.ids = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


def facts_of(page):
    return json.loads(re.search(r'id="facts">(.*?)</script>', page, flags=re.S)[1])


def test_all_sections_are_there_with_headings(page):
    tags = Tags(page).found
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
    def told(text):
        pairs = re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", text[text.index('<section id="reproduce"') :])
        return {name: html.unescape(value) for name, value in pairs}

    shown = told(page)
    assert shown["training"].startswith("GPPriorVAE(schema, prior='gp(day) + cat(arm) + cat(id)'")
    assert "latent_dim=3" in shown["training"]
    assert ".fit(train, max_epochs=6, batch_size=10," in shown["training"]
    assert "model file written by" not in shown
    model.save(tmp_path / "m.lacova")
    loaded = lacova.load(tmp_path / "m.lacova")
    again = told(report.write(loaded, out=tmp_path / "r.html").read_text(encoding="utf-8"))
    assert again["model file written by"].startswith(f"lacova {lacova.__version__};")
    assert again["training"] == shown["training"]


def test_nothing_from_the_data_becomes_markup(page):
    tags = Tags(page).found
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
    tags = Tags(page).found
    assert [a["href"] for t, a in tags if "href" in a and not a["href"].startswith("#")] == ["data:,"]
    assert not any("src" in a and not a["src"].startswith("data:") for _, a in tags)
    policy = next(a["content"] for t, a in tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy


def test_the_size(path):
    assert path.stat().st_size < 8e6


def numbers_of(page):
    text = page.split('id="facts">')[1].split("</script>")[0]
    return {float(number) for number in re.findall(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?", text)}


def test_without_patients_no_label_and_no_single_value_is_left(model, table, page, tmp_path):
    bare = report.write(model, table, tmp_path / "r.html", patients=False, draws=20).read_text(encoding="utf-8")
    assert "patient-" in page
    assert "patient-" not in bare
    values = {float(f"{value:.4g}") for value in table[LAB].dropna()}
    assert values <= numbers_of(page)
    assert not values & numbers_of(bare)
    assert "98,765" in page  # the largest value, in the summary
    assert "98,765" not in bare
    assert set(facts_of(bare)) == {"gaps", "training", "calibration", "effects"}
    assert not any("scatter" in c for c in facts_of(bare)["calibration"]["columns"])
    assert "cat(id)" not in facts_of(bare)["effects"]["lines"]
    assert all(row.startswith("visit ") for row in facts_of(bare)["gaps"]["rows"])
    assert "Left out, as asked" in bare


def test_without_patients_rare_levels_and_few_values_are_not_told(model):
    frame = visits(30, 2).assign(arm=["rare"] * 9 + ["usual"] * 51)
    frame.loc[12:, "ast"] = None
    told = {c["name"]: c["summary"] for c in facts.columns(frame, model.schema, facts.Wish(10, 0, False))}
    assert told["arm"] == "usual 85%, ..."
    assert told["ast"] == "few values"
    assert "from" not in told[LAB]
    rare = facts.columns(frame.assign(arm=frame["id"]), model.schema, facts.Wish(10, 0, False))
    assert next(c["summary"] for c in rare if c["name"] == "arm") == "rare levels alone"


def lines_of(page, caption):
    """The first cells of a table, and all its text."""
    part = page[page.index(f"<caption>{caption}") :]
    part = part[: part.index("</table>")]
    return re.findall(r'<tr><th scope="row">(.*?)</th>', part), part


def test_without_patients_every_figure_rests_on_ten(model, table, tmp_path):
    """Enough values, but of five patients: no error of theirs, no place among draws, no width of a law."""
    few = table.assign(ast=table["ast"].where(table["id"].isin(table["id"].unique()[:5])))
    few = pd.concat([few.assign(day=few["day"] + 3 * k) for k in range(5)], ignore_index=True)
    pages = [
        report.write(model, few, tmp_path / "r.html", patients=shown, draws=10, share=0.5).read_text(encoding="utf-8")
        for shown in (True, False)
    ]
    caption = "Imputed against true values"
    names = [lines_of(page, caption)[0] for page in pages]
    assert "ast" in names[0]
    assert "ast" not in names[1]
    assert len(names[1]) == len(names[0]) - 1
    assert "fewer than 10 patients are left out: 1 of" in pages[1]
    assert [c["name"] for c in facts_of(pages[0])["calibration"]["columns"]].count("ast") == 1
    assert "ast" not in [c["name"] for c in facts_of(pages[1])["calibration"]["columns"]]
    gains = [lines_of(page, "Gaps in covariates")[1] for page in pages]
    assert "as wide as the prior" in gains[0]
    assert "as wide as the prior" not in gains[1]  # age is missing of a single patient
    assert "not told of fewer than 10 patients" in gains[1]
    with pytest.raises(DataError, match=r"have 9 patient\(s\).* every figure rests on 10 at least"):
        report.write(model, table[table["id"].isin(table["id"].unique()[:9])], tmp_path / "r.html", patients=False)


def test_without_patients_a_point_of_an_effect_rests_on_ten(model):
    """One patient with most of the rows cannot have points of its own."""
    rows = pd.concat([visits(30, 2), visits(1, 60).assign(day=1000.0 + np.arange(60))], ignore_index=True)
    found = model.effects(rows, draws=2)
    shown = facts._lines(model, rows, found, "gp(day)", [LAB], facts.Wish(10, 0, False))["measurements"][0][0]
    assert max(shown["at"]) < 900
    own = facts._lines(model, rows, found, "gp(day)", [LAB], facts.Wish(10, 0, True))["measurements"][0][0]
    assert len(own["at"]) > len(shown["at"])


def test_warnings_rest_on_so_many_patients(model, table):
    from lacova.analysis.recovery import Recovery

    numbers = pd.DataFrame({"row": np.arange(40) % 8, "column": "ast", "truth": 1.0, "mean": 0.0, "pit": 0.999})
    found = Recovery(model.schema, 0.1, 0, table, numbers, numbers.head(0))
    assert "ast" in poor_calibration(found)[0]
    assert poor_calibration(found, 10) == []  # rows 0 to 7 are of two patients
    assert no_better_than_the_mean(found, 10) == []


def test_figures_are_those_of_the_model(model, table, page):
    shown = facts_of(page)
    person = next(p for p in shown["patients"]["people"] if p["id"].startswith("patient-1" + HOSTILE[1]))
    rows = table[table["id"].str.startswith("patient-1" + HOSTILE[1][:3])].reset_index(drop=True)
    values = person["values"][0]
    assert values["gap"] == np.flatnonzero(rows[LAB].isna()).tolist()
    seen = [k for k in range(len(rows)) if k not in values["gap"]]
    np.testing.assert_allclose([values["mean"][k] for k in seen], rows[LAB][seen], rtol=1e-3)
    assert len(values["lower"]) == len(values["gap"])
    assert min(person["fan"]["at"]) > max(person["at"])
    shares = np.array(shown["effects"]["shares"], float)
    np.testing.assert_allclose(shares.sum(0), 1.0, atol=0.01)
    age = next(c for c in shown["covariates"] if c["name"] == "age")
    assert {g["who"] for g in age["gaps"]} == {f"patient-3{HOSTILE[3]}"}
    gaps = shown["gaps"]
    np.testing.assert_allclose(np.mean(gaps["share"], 0), table[gaps["columns"]].isna().mean(), atol=0.01)


def test_patients_with_missing_times_are_in_order(model, table):
    data = table.copy()
    data.loc[[0, 5, 10], "day"] = None
    shown = facts.patients(model, data, [LAB], facts.Wish(10, 0, True))["people"]
    assert all(person["at"] == sorted(person["at"]) for person in shown)
    first = shown[[p["id"] for p in shown].index(table["id"][0])]
    rows = data[:4].assign(at=model.impute(data[:4], seed=0)["day"]).sort_values("at", kind="stable")
    assert first["values"][0]["gap"] == np.flatnonzero(rows[LAB].isna()).tolist()


def test_gaps_of_a_covariate_are_told_apart(page, table):
    shown = {c["name"]: [g["who"] for g in c["gaps"]] for c in facts_of(page)["covariates"]}
    assert len(shown["arm"]) == len(set(shown["arm"])) == min(facts.GAPS, table["arm"].isna().sum())
    row = table.index[table["arm"].isna()][0]
    assert shown["arm"][0] == f"{table['id'][row]}, visit {row % 4 + 1}"
    assert shown["age"] == [f"patient-3{HOSTILE[3]}"]  # the same at all visits


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


def test_large_data_are_sampled_and_the_report_says_so(model, table):
    many = pd.concat([table.assign(id=table["id"] + str(k)) for k in range(4)], ignore_index=True)
    some = facts.sample_units(many, model.schema, facts.PATIENTS, 0)
    assert some["id"].nunique() == 60
    assert len(some) == 240
    assert facts.sample_units(many, model.schema, 1000, 0) is many


def test_of_many_visits_fewer_patients_can_be_picked_and_the_page_stays_small(tmp_path):
    rng = np.random.default_rng(0)
    patients, count, names = 24, 400, [f"lab{k}" for k in range(40)]
    table = pd.DataFrame(rng.normal(0, 1e-3, (patients * count, 40)), columns=names).mask(
        rng.random((patients * count, 40)) < 0.5
    )
    table = table.assign(id=np.repeat(np.arange(patients), count), day=np.tile(np.arange(count) / 7, patients))
    model = lacova.CVAE(lacova.Schema(names, {}, instance="id", time="day"), latent_dim=1)
    path = report.write(model.fit(table, max_epochs=1, device="cpu"), table, tmp_path / "r.html", draws=10)
    assert path.stat().st_size < 8e6
    text = path.read_text(encoding="utf-8")
    shown = facts_of(text)["patients"]["people"]
    assert 0 < len(shown) < patients
    assert f"A random {len(shown)} of 24 patients, as many as a page has room for, to pick from" in text
    one = table.assign(id=0)
    assert facts.patients(model, one, names, facts.Wish(10, 0, True)) is None  # thousands of visits of one patient


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


@pytest.fixture(scope="module")
def arms():
    """A table with twelve arms, of which the last by name is the most frequent, and a model of it."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"arm": [f"arm {k % 12:02d}" for k in range(192)], "dose": rng.random(192)})
    table.loc[144:, "arm"] = "arm 11"
    table["alt"] = 30 + rng.normal(0, 3, 192)
    table.loc[:4, "arm"] = None
    schema = lacova.Schema(["alt"], {"arm": "categorical", "dose": "continuous"})
    prior = "gp(dose):cat(arm) + cat(arm)"
    return table, lacova.GPPriorVAE(schema, prior=prior, latent_dim=1, inducing=4).fit(table, max_epochs=1)


def test_observed_levels_beyond_those_told_apart_are_others_and_not_missing(arms):
    table, model = arms
    shown = next(c for c in facts.latent(model, table, [], facts.Wish(10, 0, True))["colours"] if c["name"] == "arm")
    assert len(shown["levels"]) == 7
    assert shown["levels"][-2:] == ["arm 11", "others"]
    for value, code in zip(table["arm"], shown["values"], strict=True):
        assert (code is None) == pd.isna(value)
        assert code is None or shown["levels"][int(code)] == (value if value in shown["levels"] else "others")
    seven = facts.latent(model, table[table["arm"] > "arm 04"], [], facts.Wish(10, 0, True))["colours"][0]
    assert seven["levels"] == [f"arm {k:02d}" for k in range(5, 12)]


def test_effects_say_of_how_many_levels_they_are(arms, tmp_path):
    table, model = arms
    lines = facts.effects(model, table, ["alt"], facts.Wish(10, 0, True))["lines"]
    assert "arm 11" in lines["cat(arm)"]["levels"]
    assert lines["cat(arm)"]["note"] == "6 of 12 levels of arm are shown, the most frequent."
    drawn = [band["name"] for band in lines["gp(dose):cat(arm)"]["measurements"][0]]
    assert "arm arm 11" in drawn
    assert lines["gp(dose):cat(arm)"]["note"].startswith(f"{len(drawn)} of 12 levels")


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
    pictures = [a for t, a in Tags(text).found if t == "img"]
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
    assert [a["src"] for t, a in Tags(again).found if t == "img"] == [pictures[0]["src"]]
    assert "true.csv --draws" in again
    assert main(words) == 1
    assert "add --data and --images" in capsys.readouterr().err


class Trained:
    interrupted = False

    def __init__(self, **columns):
        self.training = pd.DataFrame(columns)


def test_warnings_in_plain_language(model, table):
    jitter = 0.05 * (-1.0) ** np.arange(40)
    rising, flat = np.linspace(-9, -1, 40) + jitter, -np.exp(-np.arange(40.0)) + jitter
    assert "still rising" in not_converged(Trained(elbo=rising))[0]
    assert not_converged(Trained(elbo=flat)) == []
    assert "still rising" in not_converged(Trained(elbo=flat, validation=rising))[0]
    assert not_converged(Trained(elbo=rising, validation=np.r_[np.arange(30), np.zeros(10)])) == []
    columns = [{"name": "crp", "missing": 0.95, "n": 60}, {"name": "alt", "missing": 0.1, "n": 900}]
    assert nearly_empty(columns)[0].startswith("Nearly empty: crp (60 values, 95% missing).")
    assert nearly_empty(columns[1:]) == []
    assert any("only 24 patients" in text for text in warnings(model, table, [], None))


@pytest.mark.parametrize(("spread", "word"), [(3.0, "too narrow"), (0.2, "too wide"), (1.0, None)])
def test_poor_calibration_is_told(model, spread, word):
    from scipy.stats import norm

    from lacova.analysis.recovery import Recovery

    truth = np.random.default_rng(0).normal(0, spread, 800)
    numbers = pd.DataFrame({"row": 0, "column": "ast", "truth": truth, "mean": 0.0, "pit": norm.cdf(truth)})
    found = poor_calibration(Recovery(model.schema, 0.1, 0, numbers.assign(id=1), numbers, numbers.head(0)))
    assert found == [] if word is None else word in found[0]
    assert word is None or "ast" in found[0]


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


BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")


@pytest.fixture(scope="module")
def browser():
    if BROWSER is None or DRIVER is None:
        pytest.skip("no browser: chromium and chromedriver are not installed")
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for word in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--window-size=1200,900",
    ):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


def requests(driver):
    sent = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    urls = [each["params"]["request"]["url"] for each in sent if each["method"] == "Network.requestWillBeSent"]
    return [url for url in urls if not url.startswith(("data:", "chrome"))]


def test_in_a_browser(browser, path):
    """No console error, no request but for the file itself, pickers change the picture, no smuggled script runs."""
    browser.get_log("performance")
    browser.get(path.as_uri())
    pictures = "return [...document.querySelectorAll('.chart')].map((c) => c.querySelectorAll('svg[role=img]').length)"
    assert all(count > 0 for count in browser.execute_script(pictures))
    pick = """
        const seen = {};
        for (const select of document.querySelectorAll("select")) {
          const chart = select.closest(".chart"), before = chart.querySelector(".canvas").innerHTML;
          select.value = select.options[select.options.length - 1].value;
          select.dispatchEvent(new Event("change"));
          seen[chart.dataset.chart + " " + select.dataset.pick] = chart.querySelector(".canvas").innerHTML !== before;
        }
        return seen;"""
    changed = browser.execute_script(pick)
    assert len(changed) == 8
    assert all(changed.values()), changed
    browser.execute_script("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    found = browser.execute_script(
        "return [window.hacked, document.querySelectorAll('script').length, document.images.length]"
    )
    assert found == [None, 2, 0]
    labels = browser.execute_script("return [...document.querySelectorAll('svg[role=img]')].map((s) => s.ariaLabel)")
    assert all(labels)
    assert [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []
    assert requests(browser) == [path.as_uri()]


def test_a_smuggled_script_would_not_run(browser, path, tmp_path):
    """The policy, not the escaping independent_noise: markup put into the page by hand neither runs nor fetches."""
    text = path.read_text(encoding="utf-8")
    evil = tmp_path / "evil.html"
    evil.write_text(
        text.replace("</main>", '<script>window.hacked=1</script><img src="https://example.org/x.png"></main>')
    )
    browser.get(evil.as_uri())
    assert browser.execute_script("return window.hacked ?? null") is None
    assert any("Content Security Policy" in entry["message"] for entry in browser.get_log("browser"))


@pytest.mark.parametrize("width", [390, 1200])
def test_nothing_is_wider_than_the_screen(browser, path, width):
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(path.as_uri())
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
