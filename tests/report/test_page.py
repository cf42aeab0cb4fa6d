"""The page as text: it is complete, everything is escaped, and screen readers can navigate it."""

import json
import re
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import pytest
from run_folders import write_comparison, write_run

from commands import fedal
from fedal.report.collect import collect
from fedal.report.groups import overview
from fedal.report.markup import element, embedded_json, markup
from fedal.report.page import chart_data, write_report
from fedal.report.tensorboard import mirror

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&\u2028\u202e\x1b[31m"


class Page(HTMLParser):
    """All tags of a page with their attributes."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report([write_comparison(tmp_path_factory.mktemp("runs") / "cmp")])[0]


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    path = write_run(
        tmp_path / "fedmd" / "seed-0",
        method=HOSTILE,
        clients=(HOSTILE.replace("/", "|"), "ben"),
        config={"dataset": HOSTILE, "options": {HOSTILE: HOSTILE}},
        environment={"torch": HOSTILE, "data": HOSTILE},
        extra={HOSTILE: 1.0},
    )
    (path / "failure.json").write_text(json.dumps({"error": HOSTILE}))
    return write_report([tmp_path])[0]


def test_the_page_says_how_skewed_the_data_are(tmp_path: Path) -> None:
    """Counts (0, 1), (2, 3) and (4, 5): exp of the entropies 0, 0.673 and 0.687, mean (1 + 1.960 + 1.988) / 3."""
    write_run(tmp_path / "a", config={"partition": "dirichlet"})
    text = write_report([tmp_path])[0].read_text(encoding="utf-8")
    assert "dirichlet, alpha 1.0 (smaller is more skewed), 1.65 effective classes per client" in text
    assert "1.65 effective classes per client (exp of the entropy, mean); 1,234 unassigned training samples" in text


def test_the_table_shows_means_over_seeds_of_final_rows(report: Path) -> None:
    text = report.read_text(encoding="utf-8")
    assert "0.6100 ± 0.0100" in text
    assert "0.7167 ± 0.0208" in text
    assert "0.340 <small>chance 0.333</small>" in text
    assert "It guesses and hardly pulls" in text


def test_every_section_exists_and_is_linked(report: Path) -> None:
    page = Page(report)
    sections = [section["id"] for section in page.all("section")]
    links = [link["href"] for link in page.all("a")]
    assert len(sections) == 13
    assert [f"#{name}" for name in sections] == [link for link in links if link and link != "#main"]


def test_the_page_is_self_contained(report: Path) -> None:
    page = Page(report)
    addresses = [tag.get(key) for _, tag in page.tags for key in ("src", "href") if tag.get(key)]
    assert all(address and address.startswith(("#", "data:")) for address in addresses)
    text = report.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
    assert not re.findall(r"https?://|@import|url\(", text)


def test_tables_have_captions_and_headings_with_scope(report: Path) -> None:
    page = Page(report)
    assert len(page.all("caption")) == len(page.all("table")) > 8
    assert all(heading.get("scope") in ("col", "row") for heading in page.all("th"))
    assert [attributes["lang"] for attributes in page.all("html")] == ["en"]
    assert len(page.all("h1")) == len(page.all("main")) == len(page.all("nav")) == 1
    regions = [a for _, a in page.tags if a.get("role") == "region"]
    assert all(region.get("aria-label") and region.get("tabindex") == "0" for region in regions)


def test_every_control_has_a_name(report: Path) -> None:
    page = Page(report)
    named = {label.get("for") for label in page.all("label")}
    controls = [control for tag in ("input", "select") for control in page.all(tag) if control.get("type") != "radio"]
    assert controls
    assert all(control["id"] in named or control.get("aria-label") for control in controls)


def test_no_text_of_a_run_folder_becomes_markup(hostile: Path) -> None:
    page, text = Page(hostile), hostile.read_text(encoding="utf-8")
    assert len(page.all("script")) == 2
    assert page.all("img") == []
    assert not [key for _, attributes in page.tags for key in attributes if key.startswith("on")]
    assert "alert(1)" in text  # shown as text
    assert not set("\x1b\u202e\u2028") & set(text)


def test_only_the_script_of_the_page_can_run(hostile: Path) -> None:
    policy = next(meta["content"] for meta in Page(hostile).all("meta") if "http-equiv" in meta)
    assert policy is not None
    assert "default-src 'none'" in policy
    assert re.search(r"script-src 'sha256-[\w+/=]+';", policy)


def test_text_is_escaped_and_markup_is_not() -> None:
    assert markup("<b>", element("b", "<", title='"')) == '&lt;b&gt;<b title="&quot;">&lt;</b>'


def test_embedded_json_cannot_end_its_element_and_keeps_its_value() -> None:
    value = {"</script>": ["<!--", "&", "\u2028", 1.5, float("nan"), float("inf")]}
    text = embedded_json(value)
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"</script>": ["<!--", "&", "\u2028", 1.5, None, None]}


def test_nan_is_highlighted(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a")
    (path / "metrics.jsonl").write_text((path / "metrics.jsonl").read_text().replace("0.6,", "NaN,"))
    report, problems = write_report([path])
    text = report.read_text(encoding="utf-8")
    assert len(problems) == 1
    assert "1 warning</a>" in text
    assert re.search(r'<td class="bad"[^>]*><strong>NaN</strong>', text)


def test_an_unfinished_run_shows_its_progress(tmp_path: Path) -> None:
    report, _ = write_report([write_run(tmp_path / "a", complete=False)])
    assert "so far 0.6000 at iteration 30" in report.read_text(encoding="utf-8")


def test_output_matrices_are_shown_if_a_run_has_them(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a")
    (path / "analysis").mkdir()
    matrices = {"before": [[0.5, 0.5]] * 3, "after": [[0.91, 0.09]] * 3}
    (path / "analysis" / "output-matrix.json").write_text(json.dumps(matrices))
    text = write_report([path])[0].read_text(encoding="utf-8")
    assert "fedmd, seed 0: before" in text
    assert "0.91</span>" in text


@pytest.mark.parametrize("matrices", [{"a": [[2.0]]}, {"a": "<b>"}, {"a": [[0.1], [0.1, 0.2]]}, {"a": []}], ids=str)
def test_an_invalid_output_matrix_is_a_warning(tmp_path: Path, matrices: object) -> None:
    path = write_run(tmp_path / "a")
    (path / "analysis").mkdir()
    (path / "analysis" / "output-matrix.json").write_text(json.dumps(matrices))
    assert "is not a table of probabilities" in write_report([path])[1][0]


def test_the_time_to_target_accuracy_is_in_the_embedded_data(tmp_path: Path) -> None:
    found = overview(collect([write_comparison(tmp_path / "cmp")]))
    targets = chart_data(found)["targets"]
    assert targets[60 - 1] == [["3 of 3", "20", "3.0 s", "2,000 B"], ["3 of 3", "30", "4.5 s", "3,000 B"]]
    assert targets[62 - 1][1] == ["1 of 3", "30", "4.5 s", "3,000 B"]
    assert targets[99 - 1][0] == ["0 of 3", "not reached", "–", "–"]


def test_the_report_is_written_to_the_requested_file(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a")
    assert fedal("report", path, "--out", tmp_path / "page.html").code == 0
    assert (tmp_path / "page.html").exists()
    answer = fedal("report", path, "--out", tmp_path / "missing" / "page.html")
    assert answer.code == 2
    assert "no such folder" in answer.err


def test_text_is_readable_in_both_themes() -> None:
    """Contrast of at least 4.5 (WCAG AA) for the colours of text and of lines on a card."""
    style = files("fedal.report").joinpath("style.css").read_text(encoding="utf-8")
    colours = {name: (a, b) for name, a, b in re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", style)}
    for theme in (0, 1):
        for name, ground, least in [("ink", "card", 7), ("soft", "card", 4.5), ("accent", "card", 4.5),
                                    ("bad", "card", 4.5), ("soft", "paper", 4.5), ("alert-ink", "alert", 4.5),
                                    *[(f"c{n}", "card", 3) for n in range(7)]]:  # fmt: skip
            assert contrast(colours[name][theme], colours[ground][theme]) >= least, (name, theme)


def contrast(a: str, b: str) -> float:
    light, dark = sorted((luminance(a), luminance(b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_the_rows_are_mirrored_for_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed: fedal[tensorboard]")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    path = write_run(tmp_path / "a", method="../../up")
    assert mirror([path], tmp_path / "logs") == 1
    (folder,) = (tmp_path / "logs").iterdir()
    assert folder.name == "000--up-seed-0"
    events = EventAccumulator(str(folder)).Reload()
    scalars = [(event.step, round(event.value, 3)) for event in events.Scalars("after_global/test_accuracy")]
    assert scalars == [(10, 0.3), (20, 0.5), (30, 0.6)]
    assert "after_global_final/test_accuracy" in events.Tags()["scalars"]
