"""The pages that are executed: their commands and Python blocks, in order, each page in its own copy of a clone.

A page shows a command after `$ ` (continued after `> `) and below it what the command prints. What a block of Python
prints is in a block of `text` right after it; the Python is run from a file, as a person would. Every block starts in
the root of the clone, or in the project that a tutorial is about. Blocks that follow each other and name a terminal
(```console terminal-1) run at the same time.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).parent.parent
CLONED = ["configs", "docs", "examples", "src", "constraints.txt", "Makefile"]
PAGES = {  # -> the heading of the part that is executed; empty: all of the page
    "README.md": "",
    "docs/install.md": "",
    "docs/runs.md": "",
    "docs/deployment.md": "## Rehearse on one machine",
}
TUTORIALS = {  # -> the folder that the first block makes and in which the others start; they take minutes
    "docs/tutorials/bank.md": "bank",
    "docs/tutorials/hospital.md": "hospital",
    "docs/tutorials/images.md": "images",
}
NOT_EXECUTED = {
    "python3.11 -m venv": "installs",
    "pip install": "installs, from the network",
}
PORT = "7443"  # on the pages; a free one takes its place, so that two test runs do not meet
TIMEOUT_S = 850  # of one block: a busy machine takes ten times as long as a free one
STEP_ENDS = "\x1e"
BLOCK = re.compile(r"^```(\w*)(?: (terminal-\d))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
KILLED = re.compile(r"^bash: line \d+: +\d+ Killed .*\n", re.MULTILINE)  # the shell on a job that the page kills


@dataclass(frozen=True)
class Step:
    """Something to execute, and the lines that the page shows as its output: those from `first` to before `end`."""

    text: str
    shown: tuple[str, ...]
    first: int  # counted from 0
    end: int

    @property
    def is_executed(self) -> bool:
        return not self.text.startswith(tuple(NOT_EXECUTED))

    @property
    def any_order(self) -> bool:
        """Whether it starts processes that print at the same time."""
        return re.search(r"&\s+done", self.text) is not None


@dataclass(frozen=True)
class Block:
    page: str
    line: int  # of its first line, counted from 0
    language: str
    terminal: str
    steps: tuple[Step, ...]

    @property
    def executed(self) -> list[Step]:
        return [step for step in self.steps if step.is_executed]

    @property
    def place(self) -> str:
        return f"{self.page}, line {self.line + 1}"


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str, text: str | None = None) -> list[Block]:
    """All blocks of the executed part of a page, those without anything to execute included."""
    text = read(page) if text is None else text
    matches = list(BLOCK.finditer(text))
    found = []
    for match, after in zip(matches, [*matches[1:], None], strict=True):
        line = text[: match.start(3)].count("\n")
        if match[1] == "python":
            is_output = after is not None and after[1] == "text" and not text[match.end() : after.start()].strip()
            at = text[: after.start(3)].count("\n") if after and is_output else -1
            shown = tuple(after[3].splitlines()) if after and is_output else ()
            steps = [Step(match[3], shown, at, at + len(shown))]
        else:
            steps = list(_steps(match[3].splitlines(), line)) if match[1] == "console" else []
        found.append(Block(page, line, match[1], match[2] or "", tuple(steps)))
    begin, end = _executed_part(page, text)
    return [block for block in found if begin <= block.line < end]


def _steps(lines: Sequence[str], offset: int) -> Iterator[Step]:
    starts = [number for number, line in enumerate(lines) if line.startswith("$ ")]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        first = start + 1
        while first < end and lines[first].startswith("> "):
            first += 1
        command = "\n".join(line[2:] for line in lines[start:first])
        yield Step(command, tuple(lines[first:end]), offset + first, offset + end)


def _executed_part(page: str, text: str) -> tuple[int, int]:
    """From which line to before which, counted from 0."""
    lines = text.splitlines()
    heading = PAGES.get(page, "")
    if not heading:
        return 0, len(lines)
    begin = lines.index(heading)
    after = (number for number, line in enumerate(lines) if number > begin and line.startswith("## "))
    return begin, next(after, len(lines))


@dataclass(frozen=True)
class Stage:
    """Where and how the commands of a page are executed."""

    clone: Path
    start: Path  # of every block, once it exists
    port: str
    edit: Callable[[str], str]
    environment: Mapping[str, str]

    @property
    def folder(self) -> Path:
        return self.start if self.start.is_dir() else self.clone


def execute(
    page: str,
    keep: Path | None = None,
    edit: Callable[[str], str] = str,
    environment: Mapping[str, str] | None = None,
) -> Iterator[tuple[Block, Step, list[str]]]:
    """Executes a page in a fresh clone and yields each step with what it printed. Raises if one fails.

    The clone is in the new folder `keep`, or in a temporary one. `edit` changes a command before it is executed.
    """
    with tempfile.TemporaryDirectory(prefix="clone-") if keep is None else nullcontext(keep) as folder:
        clone, port = Path(folder), _free_port()
        stage = Stage(clone, clone / TUTORIALS.get(page, ""), port, edit, environment or {})
        _clone(clone, port)
        to_execute = [block for block in blocks(page) if block.executed]
        for is_beside, group in groupby(to_execute, lambda block: bool(block.terminal)):
            for together in [[*group]] if is_beside else [[block] for block in group]:
                yield from _execute(together, stage)


def _clone(folder: Path, port: str) -> None:
    """What a newcomer has after cloning, without what tests and git bring."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in CLONED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / name)
    for config in (folder / "configs").glob("*.toml"):
        config.write_text(config.read_text(encoding="utf-8").replace(PORT, port), encoding="utf-8")


def _free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def _execute(together: Sequence[Block], stage: Stage) -> Iterator[tuple[Block, Step, list[str]]]:
    with ExitStack() as stack:
        started = [stack.enter_context(_process(block, stage)) for block in together]
        for block, process in zip(together, started, strict=True):
            out, _ = process.communicate(timeout=TIMEOUT_S)
            assert process.returncode == 0, f"{block.place}: exit {process.returncode}\n{out}"
            printed = KILLED.sub("", out).replace(stage.port, PORT).split(f"{STEP_ENDS}\n")
            for step, text in zip(block.executed, printed, strict=False):
                yield block, step, text.splitlines()


@contextmanager
def _process(block: Block, stage: Stage) -> Iterator[subprocess.Popen[str]]:
    """One process for a block, in a group of its own so that nothing it starts outlives it."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    process = subprocess.Popen(
        _words(block, stage),
        cwd=stage.folder,
        env=os.environ | {"PATH": path, "PYTHONUNBUFFERED": "1"} | dict(stage.environment),
        text=True,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def _words(block: Block, stage: Stage) -> list[str]:
    if block.language == "python":
        file = stage.folder / f"block_at_line_{block.line + 1}.py"
        file.write_text(block.steps[0].text, encoding="utf-8")
        return [sys.executable, "-W", "error", file.name]
    script = f"\necho {STEP_ENDS}\n".join(stage.edit(step.text) for step in block.executed)
    return ["bash", "-e", "-o", "pipefail", "-c", script.replace(PORT, stage.port)]
