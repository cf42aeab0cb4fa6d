"""The README is executed: every command and every piece of Python in it, in order, in something like a clone."""

import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from fedal.cli import app
from optional import needs

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
    terminal: str  # blocks that follow each other and name a terminal are executed side by side
    text: str

    @property
    def commands(self) -> list[str]:
        return [line[2:] for line in self.text.splitlines() if line.startswith("$ ")]

    @property
    def executed(self) -> list[str]:
        return [command for command in self.commands if not command.startswith(tuple(NOT_EXECUTED))]


def blocks() -> list[Block]:
    found = re.finditer(r"^```(\w+)(?: (terminal-\d))?\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    return [Block(README[: match.start()].count("\n") + 1, match[1], match[2] or "", match[3]) for match in found]


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a newcomer has after cloning, without what tests and git bring."""
    folder = tmp_path_factory.mktemp("clone")
    for name in CLONED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / name)
    return folder


def words(block: Block) -> list[str]:
    if block.language == "python":
        return [sys.executable, "-W", "error", "-c", block.text]
    return ["bash", "-e", "-o", "pipefail", "-c", "\n".join(block.executed)]


def execute(together: list[Block], folder: Path) -> None:
    """Starts all, each in a group of processes of its own so that none outlives the test; all must end well."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    settings: dict[str, Any] = dict(cwd=folder, env=os.environ | {"PATH": path}, text=True, start_new_session=True)
    pipes: dict[str, Any] = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    started = [subprocess.Popen(words(block), **settings, **pipes) for block in together]
    try:
        for block, process in zip(together, started, strict=True):
            out, _ = process.communicate(timeout=300)
            assert process.returncode == 0, f"README.md, line {block.line}: exit {process.returncode}\n{out}"
    finally:
        for process in started:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.processes
@pytest.mark.timeout(900)  # under 2 minutes on two free cores
def test_everything_in_the_readme_works_in_order(clone: Path) -> None:
    """One test: later blocks read what earlier ones wrote."""
    needs("grpc", "deploy")
    to_execute = [block for block in blocks() if block.language == "python" or block.executed]
    for is_beside, group in groupby(to_execute, lambda block: bool(block.terminal)):
        for together in [[*group]] if is_beside else [[block] for block in group]:
            execute(together, clone)
    assert len(to_execute) >= 8


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
        spoken_of = getattr(commands[words[1]], "commands", {}).get(" ".join(words[2:3]), commands[words[1]])
        known = {name for option in spoken_of.params for name in option.opts} | {"--help"}
        unknown = [word for word in words if word.startswith("--") and word not in known]
        assert not unknown, f"{' '.join(words)}: {unknown}"
        checked += 1
    assert checked > 5


def test_every_make_target_named_in_the_readme_exists() -> None:
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    named = re.findall(r"(?:`|\$ )make (\w+)", README)
    assert named
    assert set(named) <= set(targets)
