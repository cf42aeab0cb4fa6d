"""The README and the pages that go on from it: every command is executed, and what it prints is what the page shows.

pages.py executes a page, shown.py compares. After a change of words in the output: python -m tests.readme_outputs
"""

import json
import re
from pathlib import Path
from statistics import mean, stdev

import pytest
from scipy import stats
from typer.main import get_command

import fedal
from fedal.cli.app import app
from optional import needs
from pages import NOT_EXECUTED, PAGES, ROOT, TUTORIALS, blocks, execute, read
from shown import difference

every_page = pytest.mark.parametrize("page", PAGES)
also_tutorials = pytest.mark.parametrize("page", [*PAGES, *TUTORIALS])  # test_tutorials.py executes these


@pytest.mark.processes
@pytest.mark.timeout(1800)  # all pages together: under 3 minutes on two free cores
@every_page
def test_every_command_of_a_page_works_and_prints_what_the_page_shows(page: str) -> None:
    """One test per page: later blocks read what earlier ones wrote."""
    needs("grpc", "deploy")
    needs("matplotlib", "report")
    problems = []
    for block, step, printed in execute(page):
        problem = difference(step.shown, printed, any_order=step.any_order)
        if problem:
            problems.append(f"{block.place}: {step.text}\n{problem}\nIt prints:\n" + "\n".join(printed))
    assert not problems, "\n\n".join(problems)


@pytest.mark.processes
def test_execution_gives_every_step_its_own_output_and_every_block_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    page = """
```console
$ cd examples
$ echo one 0.51
one 0.50
$ echo two; echo three >&2
two
```

```console
$ ls configs/demo.toml
configs/demo.toml
```

```python
print("four")
```

```text
four
```
"""
    monkeypatch.setattr("pages.read", lambda name: page)
    steps = [(step.text, step.shown, printed) for _, step, printed in execute("a.md")]
    assert steps == [
        ("cd examples", (), []),
        ("echo one 0.51", ("one 0.50",), ["one 0.51"]),
        ("echo two; echo three >&2", ("two",), ["two", "three"]),
        ("ls configs/demo.toml", ("configs/demo.toml",), ["configs/demo.toml"]),
        ('print("four")\n', ("four",), ["four"]),
    ]


@pytest.mark.processes
def test_a_failing_command_is_named_by_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pages.read", lambda name: "words\n\n```console\n$ echo reason; false\n$ echo unreached\n```\n")
    with pytest.raises(AssertionError, match=r"a\.md, line 4: exit 1\nreason"):
        list(execute("a.md"))


def test_commands_of_several_lines_and_terminals_are_recognised() -> None:
    text = "# page\n\n```console terminal-2\n$ for a in 1 2; do\n>   echo $a &\n> done; wait\n1\n2\n$ true\n```\n"
    (block,) = blocks("a.md", text)
    assert (block.terminal, block.place) == ("terminal-2", "a.md, line 4")
    loop, after = block.steps
    assert loop.text == "for a in 1 2; do\n  echo $a &\ndone; wait"
    assert loop.shown == tuple(text.splitlines()[loop.first : loop.end]) == ("1", "2")
    assert loop.any_order and not after.any_order
    assert after.shown == ()


def test_every_exception_from_execution_is_still_needed() -> None:
    commands = [step.text for page in PAGES for block in blocks(page) for step in block.steps]
    assert not [start for start in NOT_EXECUTED if not any(command.startswith(start) for command in commands)]


@also_tutorials
def test_blocks_with_commands_are_recognised_as_such(page: str) -> None:
    found = blocks(page)
    assert {block.language for block in found} <= {"console", "python", "text", "bibtex"}
    assert all(block.steps for block in found if block.language == "console")
    assert any(block.executed for block in found)


@also_tutorials
def test_every_file_named_on_a_page_exists(page: str) -> None:
    named = re.findall(r"(?<![\w./-])((?:configs|docs|examples|src|tests)/[\w./-]*\w)", read(page))
    assert not [name for name in named if not (ROOT / name).exists()]


@also_tutorials
def test_every_picture_exists_and_is_small(page: str) -> None:
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", read(page))
    assert len(pictures) == len(re.findall(r"!\[|<img", read(page))), "a picture without alt text, or one in HTML"
    for picture in pictures:
        assert (ROOT / page).parent.joinpath(picture).stat().st_size < 250_000, picture


@also_tutorials
def test_every_command_and_option_named_on_a_page_exists(page: str) -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    named = re.findall(r"`(fedal [^`]+)`", read(page))
    named += [command.strip() for command in re.findall(r"^(?:\$|>) +(fedal .*)$", read(page), re.MULTILINE)]
    assert named
    for words in (command.split() for command in named):
        assert words[1] in commands, " ".join(words)
        command = getattr(commands[words[1]], "commands", {}).get(" ".join(words[2:3]), commands[words[1]])
        known = {name for option in command.params for name in option.opts} | {"--help"}
        unknown = [word for word in words if word.startswith("--") and word not in known]
        assert not unknown, f"{' '.join(words)}: {unknown}"


def test_every_make_target_named_in_the_readme_exists() -> None:
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    named = re.findall(r"(?:`|\$ )make (\w+)", read("README.md"))
    assert named
    assert set(named) <= set(targets)


def test_make_demo_runs_the_comparison_of_the_readme() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (command,) = re.findall(r"^\$ (fedal compare .*)$", read("README.md"), re.MULTILINE)
    assert f"demo: $(USE)\n\t$(BIN)/{command}\n" in makefile


def test_the_readme_counts_the_methods() -> None:
    said = re.findall(r"more than (\d+) (?:related )?methods", read("README.md") + read("docs/methods/README.md"))
    assert len(said) == 3 and all(0 <= len(fedal.methods.names()) - int(number) <= 10 for number in said)


RESULTS = ROOT / "docs" / "results"


def accuracies(arm: Path) -> list[float]:
    """Final test accuracy of every seed, from the result files of an arm."""
    return [json.loads(file.read_bytes())["final"]["test_accuracy"] for file in sorted(arm.glob("seed-*.json"))]


def summary(arm: Path) -> str:
    values = accuracies(arm)
    return f"{mean(values):.3f} ± {stdev(values):.3f}"


def paired(arm: Path, other: str) -> str:
    """The difference from another arm of the study, and its interval."""
    pairs = zip(accuracies(arm), accuracies(arm.parent / other), strict=True)
    differences = [ours - theirs for ours, theirs in pairs]
    low, high = stats.t.interval(0.95, len(differences) - 1, mean(differences), stats.sem(differences))
    return f"{mean(differences):+.3f} ({low:.3f}, {high:.3f})".replace("-", "\N{MINUS SIGN}")


def results_row(start: str) -> list[str]:
    text = read("README.md").replace("\N{NO-BREAK SPACE}", " ")
    (row,) = [line for line in text.splitlines() if line.startswith(f"| {start}")]
    return [cell.strip() for cell in row.strip("|").split("|")]


@pytest.mark.parametrize(("study", "name"), [("digits", "Digits"), ("mnist", "MNIST"), ("svhn", "SVHN-40k")])
def test_the_results_of_the_readme_are_those_of_the_result_files(study: str, name: str) -> None:
    folder = RESULTS / "data" / study
    config = json.loads((folder / "fedal" / "seed-0.json").read_bytes())["config"]
    clients = config["clients"] if isinstance(config["clients"], int) else len(config["clients"])
    cells = results_row(f"{name}, {clients} clients, {config['iterations']:,} iterations")
    assert len(accuracies(folder / "fedal")) == 3
    arms = ["local", "fedmd-tau-1", "fedmd-lf", "fedal"]
    assert cells[1:] == [*(summary(folder / arm) for arm in arms), paired(folder / "fedal", "fedmd-lf")]


def test_the_faster_discriminator_of_the_readme_is_that_of_the_result_files() -> None:
    cells, faster = results_row("the same, faster discriminator"), RESULTS / "data" / "svhn" / "fedal-lr-1e-3"
    assert cells[4:] == [summary(faster), paired(faster, "fedmd-lf")]


@pytest.mark.parametrize(
    ("study", "name"),
    [("svhn", "SVHN-40k"), ("cifar10", "CIFAR-10"), ("fashion-mnist", "Fashion-MNIST"), ("mnist", "MNIST")],
)
def test_fedlift_in_the_readme_is_that_of_the_result_files(study: str, name: str) -> None:
    fedlift, fedal = (RESULTS / "lift" / "data" / study / arm for arm in ("fedlift", "fedal"))
    config = json.loads((fedlift / "seed-30.json").read_bytes())["config"]
    cells = results_row(f"{name}, {config['iterations']:,} iterations")
    assert len(accuracies(fedlift)) == 5
    assert cells[1:] == [summary(fedal), summary(fedlift), paired(fedlift, "fedal")]
