"""The page in a browser."""

import json
import shutil

import pytest

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
    urls = [message["params"]["request"]["url"] for message in sent if message["method"] == "Network.requestWillBeSent"]
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
    leaks = browser.execute_script(
        "return [window.hacked, document.querySelectorAll('script').length, document.images.length]"
    )
    assert leaks == [None, 2, 0]
    labels = browser.execute_script("return [...document.querySelectorAll('svg[role=img]')].map((s) => s.ariaLabel)")
    assert all(labels)
    assert [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []
    assert requests(browser) == [path.as_uri()]


def test_a_smuggled_script_would_not_run(browser, path, tmp_path):
    """The policy alone, without the escaping: markup put into the page by hand neither runs nor fetches."""
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
