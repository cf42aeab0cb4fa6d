"""The README is executed: every command and every piece of Python in it, in order, in something like a clone."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.main import get_command

from fedal.cli import app

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
CLONED = ["configs", "docs", "examples", "src", "constraints.txt", "Makefile"]

NOT_EXECUTED = {
    "python3.11 -m venv": "installs",
    ". .venv/bin/activate": "belongs to the installation",
    "pip install": "installs, from the network",
    "make demo": "installs, and takes a minute; a smaller `fedal compare` is executed",
}


@dataclass(frozen=True)
class Block:
    """A fenced block of the README that holds something to execute."""

    line: int
    language: str
    text: str

    @property
    def commands(self) -> list[str]:
        return [line[2:] for line in self.text.splitlines() if line.startswith("$ ")]

    @property
    def executed(self) -> list[str]:
        return [command for command in self.commands if not command.startswith(tuple(NOT_EXECUTED))]


def blocks() -> list[Block]:
    found = re.finditer(r"^```(\w+)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    return [Block(README[: match.start()].count("\n") + 1, match[1], match[2]) for match in found]


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a newcomer has after cloning, without what tests and git bring."""
    folder = tmp_path_factory.mktemp("clone")
    for name in CLONED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / name)
    return folder


def execute(arguments: list[str], folder: Path, line: int) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        arguments, cwd=folder, env=os.environ | {"PATH": path}, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, f"README.md, line {line}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"


@pytest.mark.timeout(900)  # under 90 s on two free cores
def test_everything_in_the_readme_works_in_order(clone: Path) -> None:
    """One test: later blocks read what earlier ones wrote."""
    executed = 0
    for block in blocks():
        if block.language == "python":
            execute([sys.executable, "-W", "error", "-c", block.text], clone, block.line)
        elif block.executed:
            execute(["bash", "-e", "-c", "\n".join(block.executed)], clone, block.line)
        executed += 1 if block.language == "python" else len(block.executed)
    assert executed >= 8


def test_every_exception_from_execution_is_still_needed() -> None:
    commands = [command for block in blocks() for command in block.commands]
    unused = [start for start in NOT_EXECUTED if not any(command.startswith(start) for command in commands)]
    assert not unused


def test_blocks_with_commands_are_recognised_as_such() -> None:
    assert {block.language for block in blocks()} <= {"console", "python", "bibtex"}
    assert all(block.commands for block in blocks() if block.language == "console")


def test_every_link_leads_somewhere() -> None:
    links = re.findall(r"\]\(([^)]+)\)", README)
    broken = [link for link in links if not link.startswith("https://") and not (ROOT / link).exists()]
    assert links
    assert not broken


def test_every_file_named_in_the_readme_exists() -> None:
    named = re.findall(r"(?<![\w./-])((?:configs|docs|examples|src|tests)/[\w./-]*\w)", README)
    missing = [name for name in named if not (ROOT / name).exists()]
    assert named
    assert not missing


def test_every_command_and_option_named_in_the_readme_exists() -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    spoken = re.findall(r"`(fedal [^`]+)`", README) + [c for block in blocks() for c in block.commands]
    checked = 0
    for words in (command.split() for command in spoken if command.startswith("fedal ")):
        assert words[1] in commands, " ".join(words)
        known = {name for option in commands[words[1]].params for name in option.opts} | {"--help"}
        unknown = [word for word in words if word.startswith("--") and word not in known]
        assert not unknown, f"{' '.join(words)}: {unknown}"
        checked += 1
    assert checked > 5


def test_every_make_target_named_in_the_readme_exists() -> None:
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    named = re.findall(r"(?:`|\$ )make (\w+)", README)
    assert named
    assert set(named) <= set(targets)
