"""The report of a real comparison in a real browser: drawn, clicked, hovered and typed into, on desktop and phone."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from run_folders import write_run

from fedal.campaigns.compare import compare
from fedal.report.collect import collect
from fedal.report.groups import overview
from fedal.report.page import write_report
from fedal.report.sections.differences import difference_rows
from fedal.report.sections.target import target_rows
from optional import needs_programs

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed: fedal[dev]")
from selenium.webdriver import ActionChains, Keys  # noqa: E402
from selenium.webdriver.support.select import Select  # noqa: E402

pytestmark = pytest.mark.processes


class Browser:
    """Headless Chromium with its console and its network log."""

    def __init__(self) -> None:
        programs = needs_programs("chromium", "chromedriver")
        options = webdriver.ChromeOptions()
        options.binary_location = str(programs["chromium"])
        for word in ("--headless=new", "--disable-dev-shm-usage", *(["--no-sandbox"] if os.geteuid() == 0 else [])):
            options.add_argument(word)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options, webdriver.ChromeService(programs["chromedriver"]))

    def open(self, page: Path, width: int, theme: str = "light") -> None:
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        preferences = {"prefers-color-scheme": theme, "prefers-reduced-motion": "reduce"}
        features = [{"name": name, "value": value} for name, value in preferences.items()]
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        self.driver.get(page.as_uri())

    def find(self, selector: str):  # type: ignore[no-untyped-def]
        return self.driver.find_element("css selector", selector)

    def cells(self, table: str) -> list[list[str]]:
        texts = "[...row.cells].slice(1).map(cell => cell.textContent)"
        script = f"return [...document.querySelectorAll(arguments[0])].map(row => {texts})"
        found: list[list[str]] = self.driver.execute_script(script, f"#{table} tbody tr")
        return found

    def overhang(self) -> int:
        """By how many pixels the page is wider than the window."""
        return int(
            self.driver.execute_script("const r = document.documentElement; return r.scrollWidth - r.clientWidth")
        )

    def style(self, selector: str, name: str) -> str:
        return str(self.find(selector).value_of_css_property(name))

    def assert_quiet(self) -> None:
        """Asserts an empty console, and no request except for the file itself."""
        assert self.driver.get_log("browser") == []
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        asked = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
        assert asked
        assert [url for url in asked if not url.startswith(("file:", "data:"))] == []


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    browser = Browser()
    yield browser
    browser.driver.quit()


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = {"clients": 3, "models": "mlp-small", "iterations": 20, "tau": 2, "eval_every": 5, "batch_size": 8}
    return compare(["local", "fedal"], 2, tmp_path_factory.mktemp("runs") / "cmp", settings, jobs=1).path


@pytest.fixture(scope="module")
def report(comparison: Path) -> Path:
    return write_report([comparison])[0]


@pytest.fixture(autouse=True)
def _quiet(browser: Browser) -> Iterator[None]:
    yield
    browser.assert_quiet()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_fits_and_draws(browser: Browser, report: Path, width: int, theme: str) -> None:
    browser.open(report, width, theme)
    assert browser.overhang() == 0
    curves = browser.driver.find_elements("css selector", "[data-measure=test_accuracy] path.curve")
    assert len(curves) == 2
    assert len(browser.driver.find_elements("css selector", "#client-plot circle")) == 2 * 2 * 3
    ground = {"light": "251, 251, 249", "dark": "20, 22, 26"}[theme]
    assert ground in browser.style("body", "background-color")


@pytest.mark.parametrize("width", [1280, 390])
def test_the_axis_can_be_switched(browser: Browser, report: Path, width: int) -> None:
    browser.open(report, width)
    plot = browser.find("[data-measure=test_accuracy]")
    assert "iterations (rounds × tau)" in plot.text
    browser.find("input[value=bytes]").click()
    assert "uploaded by all clients together" in plot.text
    assert browser.find("path.curve.silent")  # local uploads nothing
    browser.find("input[value=seconds]").click()
    assert "seconds, wall clock" in plot.text


def test_hovering_shows_the_values(browser: Browser, report: Path) -> None:
    browser.open(report, 1280)
    plot, tip = browser.find("[data-measure=test_accuracy]"), browser.find("[data-measure=test_accuracy] .tip")
    assert not tip.is_displayed()
    ActionChains(browser.driver).move_to_element(plot).perform()
    assert tip.is_displayed()
    assert tip.text.startswith("iteration ")
    assert "local" in tip.text and "fedal" in tip.text
    ActionChains(browser.driver).move_to_element(browser.find("h1")).perform()
    assert not tip.is_displayed()


def test_arrow_keys_announce_the_values(browser: Browser, report: Path, comparison: Path) -> None:
    browser.open(report, 390)
    plot = browser.find("[data-measure=test_accuracy]")
    points = overview(collect([comparison])).groups[1].curve("test_accuracy")
    plot.send_keys(Keys.ARROW_RIGHT)
    assert f"iteration {points[0][0]:g}: " in plot.get_attribute("aria-valuetext")
    assert f"fedal {points[0][3]:.4f} ({points[0][4]:.4f} to {points[0][5]:.4f}, 2 seeds)" in plot.get_attribute(
        "aria-valuetext"
    )
    plot.send_keys(Keys.END)
    assert f"iteration {points[-1][0]:g}: " in plot.get_attribute("aria-valuetext")
    plot.send_keys(Keys.ESCAPE)
    assert not browser.find("[data-measure=test_accuracy] .tip").is_displayed()


def test_the_theme_can_be_switched(browser: Browser, report: Path) -> None:
    browser.open(report, 1280, "light")
    before = browser.style("section", "background-color")
    button = browser.find("#theme")
    assert button.get_attribute("aria-pressed") == "false"
    button.click()
    assert button.get_attribute("aria-pressed") == "true"
    assert browser.style("section", "background-color") != before
    button.click()
    assert browser.style("section", "background-color") == before


def test_a_method_can_be_hidden(browser: Browser, report: Path) -> None:
    browser.open(report, 1280)
    button = browser.find(".legend button")
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert len(browser.driver.find_elements("css selector", "[data-measure=test_accuracy] path.curve")) == 1


def test_target_and_baseline_change_their_tables(browser: Browser, report: Path, comparison: Path) -> None:
    found = overview(collect([comparison]))
    browser.open(report, 1280)
    number = browser.find("#target-number")
    number.send_keys(Keys.CONTROL, "a")
    number.send_keys("12")
    assert browser.cells("target-table") == target_rows(found)[12 - 1]
    assert browser.find("#target-range").get_attribute("value") == "12"
    Select(browser.find("#baseline")).select_by_visible_text("fedal")
    assert browser.cells("difference-table") == difference_rows(found)[1]


def test_a_hostile_run_folder_stays_text(browser: Browser, tmp_path: Path) -> None:
    attack = "</script><script>window.stolen=1</script><img src=x onerror='window.stolen=2'>"
    path = write_run(tmp_path / "a", method=attack, clients=(attack.replace("/", "|"), "b"), config={"dataset": attack})
    browser.open(write_report([path])[0], 390)
    assert browser.driver.execute_script("return window.stolen === undefined")
    assert attack in browser.find(".legend").text
    assert browser.overhang() == 0
