"""The documentation site: no warning, no broken link, a whole reference, and a search that finds."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

import fedal
from fedal import aggregate, data, losses, methods
from fedal.config import Config
from fedal.deploy.refusals import Code
from fedal.facts import facts_of
from fedal.learners.base import Learner
from optional import needs, needs_programs

needs("sphinx", "docs")
pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]  # ten seconds to build on a free core

ROOT = Path(__file__).parent.parent
SITE = ROOT / "docs" / "site"
REFERENCE = "docs/site/reference"


class Page(HTMLParser):
    """What a page links to, what it loads, where it can be linked to, and what it says."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.text = path.read_text(encoding="utf-8")
        self.words = re.sub(r"<[^>]+>", "", self.text)
        self.feed(self.text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value for name, value in attributes if value}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag == "link" and given.get("rel") in ("stylesheet", "icon", "preload"):
            self.loads.append(given["href"])
        if "src" in given:
            self.loads.append(given["src"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site, as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-E", "-b", "html", "-c", str(SITE), str(ROOT)]
    done = subprocess.run([*build, str(folder)], capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in site.rglob("*.html")}


def test_the_command_of_the_makefile_is_the_one_tested() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "-m sphinx -q -W --keep-going -E -b html -c docs/site . build/docs" in makefile


def broken_links(pages: dict[Path, Page]) -> list[str]:
    broken = []
    for path, page in pages.items():
        for link in [*page.links, *page.loads]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchor = unquote(parts.fragment)
            if not target.is_file():
                broken.append(f"{path.name}: {link}: no such file")
            elif anchor and target in pages and anchor not in pages[target].anchors:
                broken.append(f"{path.name}: {link}: no such anchor")
    return broken


def test_every_link_of_every_page_leads_somewhere(pages: dict[Path, Page]) -> None:
    assert sum(len(page.links) for page in pages.values()) > 1000
    assert broken_links(pages) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<a href="b.html"></a><a href="#x"></a><a id="y" href="#y"></a>')
    found = broken_links({tmp_path / "a.html": Page(tmp_path / "a.html")})
    assert found == ["a.html: b.html: no such file", "a.html: #x: no such anchor"]


def test_no_page_loads_anything_from_a_network(pages: dict[Path, Page], site: Path) -> None:
    loaded = {link for page in pages.values() for link in page.loads}
    assert loaded
    assert not [link for link in loaded if urlsplit(link).scheme not in ("", "data") or urlsplit(link).netloc]
    styles = [path.read_text(encoding="utf-8") for path in site.rglob("*.css")]
    assert not [style for style in styles if re.search(r"url\(\s*['\"]?(https?:)?//", style) or "@import" in style]


def test_the_first_page_leads_to_the_documentation(site: Path) -> None:
    assert "docs/site/index.html" in Page(site / "index.html").links


def test_every_document_has_a_page(pages: dict[Path, Page], site: Path) -> None:
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    assert not [path for path in documents if site / path.relative_to(ROOT).with_suffix(".html") not in pages]


# The reference.


def test_every_setting_is_in_the_reference(site: Path) -> None:
    page = Page(site / REFERENCE / "settings.html")
    names = set(facts_of(Config)) - {"options"}
    assert {f"setting-{name.replace('_', '-')}" for name in names} <= page.anchors
    row = re.search(r'id="setting-lr".*?</tr>', page.text, re.DOTALL)
    assert row is not None
    cells = [re.sub(r"<[^>]+>", "", cell).strip() for cell in re.findall(r"<td>(.*?)</td>", row[0], re.DOTALL)]
    assert cells[:2] == ["number, above 0", "0.001"]
    assert cells[3:] == ["yes", "weights"]


def test_every_method_with_its_options_is_in_the_reference(site: Path) -> None:
    page = Page(site / REFERENCE / "methods.html")
    for name in methods.MODULES:
        label = f"method-{name.replace('+', '-plus')}"
        assert label in page.anchors
        assert f"../../methods/{name}.html" in [unquote(link) for link in page.links]
        options = {option.replace("_", "-") for option in methods.get(name).options.model_fields}
        assert {f"{name.replace('+', '-plus')}-{option}" for option in options} <= page.anchors


def test_every_message_with_its_fields_is_in_the_reference(site: Path) -> None:
    page = Page(site / REFERENCE / "messages.html")
    declared = {kind for name in methods.MODULES for kind in methods.get(name).up + methods.get(name).down}
    for kind in declared:
        assert kind.__name__.lower() in page.anchors
        assert all(flag.name is not None and f"Leak.{flag.name}" in page.words for flag in kind.leak)
    section = page.text.partition('id="guidance"')[2].partition("</section>")[0]
    cells = [re.sub(r"<[^>]+>", "", cell) for cell in re.findall(r"<td>(.*?)</td>", section, re.DOTALL)]
    fields = ["mean", "float", "(B, K)", "grad", "float", "(B, K)", "count", "integer, in the header", "-"]
    assert [cell.strip() for cell in cells] == fields


def test_every_error_and_every_code_is_in_the_reference(site: Path) -> None:
    page = Page(site / REFERENCE / "errors.html")
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    kinds = re.findall(r"^class (\w+)\((?:Fedal|Config|Run|Wire)Error\):", source, re.MULTILINE)
    assert len(kinds) > 10
    assert not [name for name in [*kinds, *(code.value for code in Code)] if name not in page.words]


def test_every_command_with_its_options_is_in_the_reference(site: Path) -> None:
    from typer.main import get_command

    from fedal.cli.app import app

    page = Page(site / REFERENCE / "commands.html")

    def walk(name: str, command: Any) -> Iterator[tuple[str, Any]]:
        children = getattr(command, "commands", {})
        for child in children.values():
            yield from walk(f"{name} {child.name}", child)
        if not children:
            yield name, command

    found = dict(walk("fedal", get_command(app)))
    assert {"fedal run", "fedal certs init"} <= found.keys()
    for name, command in found.items():
        assert name.replace(" ", "-") in page.anchors
        section = page.text.partition(f'id="{name.replace(" ", "-")}"')[2].partition("</section>")[0]
        options = [option for parameter in command.params for option in parameter.opts if option.startswith("--")]
        assert not [option for option in options if option not in section], name


@pytest.mark.parametrize(
    ("page", "module"),
    [("python", fedal), ("python-data", data), ("python-losses", losses), ("python-aggregate", aggregate)],
)
def test_every_public_name_of_a_module_is_in_the_reference(page: str, module: Any, site: Path) -> None:
    found = Page(site / REFERENCE / f"{page}.html")
    own = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
    names = getattr(module, "__all__", [name for name in own if not name.startswith("_")])
    assert names
    assert not [name for name in names if not re.search(rf"{module.__name__}\.(<[^>]+>)*{name}\b", found.text)]


def test_signatures_and_docstrings_are_in_the_reference(site: Path) -> None:
    words = Page(site / REFERENCE / "python-learners.html").words
    assert re.search(r"logits\(\s*x: Tensor,\s*mode: .*?\)\s*&#x2192;\s*Tensor\[source\]", words, re.DOTALL)
    assert inspect.cleandoc(Learner.forget.__doc__ or "?").splitlines()[0] in words


def test_settings_are_not_spelled_out_in_a_signature(site: Path) -> None:
    words = Page(site / REFERENCE / "python.html").words
    assert re.search(r"class\s*fedal\.Config\(\s*\*\*settings\s*\)", words)
    assert "FieldInfo" not in words


# Search.


def search_index(site: Path) -> dict[str, Any]:
    text = (site / "searchindex.js").read_text(encoding="utf-8")
    index: dict[str, Any] = json.loads(text.removeprefix("Search.setIndex(").removesuffix(")"))
    return index


@pytest.mark.parametrize("words", [("non", "iid"), ("heterogen",)])
def test_the_search_index_knows_the_words_that_people_look_for(words: tuple[str, ...], site: Path) -> None:
    index = search_index(site)
    home = index["docnames"].index("docs/site/index")
    for word in words:
        found = index["terms"][word]
        assert home in (found if isinstance(found, list) else [found])


def test_a_search_in_a_browser_finds_non_iid(site: Path, tmp_path: Path) -> None:
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed: fedal[dev]")
    from selenium.webdriver.support.wait import WebDriverWait

    programs = needs_programs("chromium", "chromedriver")
    options = webdriver.ChromeOptions()
    options.binary_location = str(programs["chromium"])
    flags = ["--headless=new", "--disable-dev-shm-usage", "--disable-gpu", "--disable-background-networking"]
    for flag in [*flags, f"--user-data-dir={tmp_path}", *(["--no-sandbox"] if os.geteuid() == 0 else [])]:
        options.add_argument(flag)
    driver = webdriver.Chrome(options, webdriver.ChromeService(programs["chromedriver"]))
    try:
        driver.set_window_size(1280, 900)  # the search box is in the sidebar, which narrow windows hide
        driver.get((site / "index.html").as_uri())
        WebDriverWait(driver, 60).until(lambda d: d.current_url.endswith("docs/site/index.html"))
        boxes = partial(driver.find_elements, "css selector", ".sidebar-search")
        box = WebDriverWait(driver, 60).until(lambda _: next((box for box in boxes() if box.is_displayed()), False))
        box.send_keys("non-IID")
        box.submit()
        first_page = "#search-results a[href*='docs/site/index.html']"  # results appear one after the other
        WebDriverWait(driver, 60).until(lambda d: d.find_elements("css selector", first_page))
        for width in (1280, 390):
            size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
            driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            for page in ("docs/site/index", f"{REFERENCE}/settings", f"{REFERENCE}/python-losses", "docs/theory"):
                driver.get((site / f"{page}.html").as_uri())
                wide = "const r = document.documentElement; return r.scrollWidth - r.clientWidth"
                assert driver.execute_script(wide) == 0, f"{page} is wider than {width} pixels"
    finally:
        driver.quit()


# Parts of the build.


@pytest.fixture
def own_extensions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SITE)


@pytest.mark.usefixtures("own_extensions")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("`x` is 4 * B * K", r"``x`` is 4 \* B \* K"),
        ("|P| of theta_", r"\|P\| of theta\_"),
        ("a_b and `c*`", "a_b and ``c*``"),
    ],
)
def test_docstrings_are_text_and_not_markup(line: str, expected: str) -> None:
    from docstrings import escaped

    assert escaped(line) == expected


@pytest.mark.usefixtures("own_extensions")
def test_indented_text_in_docstrings_is_literal_and_items_stand_alone() -> None:
    from docstrings import as_rst

    assert as_rst(["Say:", "", "    a * b", "", "Then"]) == ["Say:", "", "::", "", "    a * b", "", "Then"]
    assert as_rst(["Two:", "- one", "- two"]) == ["Two:", "", "- one", "", "- two"]


@pytest.mark.usefixtures("own_extensions")
def test_equations_become_mathml_and_what_cannot_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    from mathml import mathml

    assert mathml(r"\Big(\frac{1}{2}\Big)", as_block=True).startswith("<math")
    assert mathml(r"\nonsense", as_block=False) == r"<code>\nonsense</code>"


@pytest.mark.usefixtures("own_extensions")
def test_types_and_limits_in_words() -> None:
    from from_code.tables import default_of, type_of

    fields = Config.model_fields
    assert type_of(fields["momentum"]) == "number, at least 0, below 1"
    assert type_of(fields["precision"]) == "`fp32` or `fp64` or `bf16`"
    assert type_of(fields["clients"]) == "integer, at least 1, at most 1,000,000 or list (table)"
    assert (default_of(fields["fused"]), default_of(fields["data"])) == ("`true`", "-")


@pytest.mark.usefixtures("own_extensions")
def test_exit_codes_are_those_of_the_entry_point() -> None:
    from fedal.errors import ConfigError, RunError, Stopped
    from from_code.errors import exit_code

    assert [exit_code(kind) for kind in (ConfigError, RunError, Stopped)] == [2, 1, 130]
