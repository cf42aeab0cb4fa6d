"""Snippets in the documents: Python compiles, commands are ones that the command line takes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from fedal.cli.app import app

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"^( *)```([\w{}-]*)[^\n]*\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
Snippet = tuple[str, str]  # where, what


def blocks(language: str) -> list[Snippet]:
    """Fenced blocks of a language, with the line where each begins."""
    found = []
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        for match in BLOCK.finditer(text):
            if match[2] == language:
                line = text[: match.start()].count("\n") + 1
                found.append((f"{path.relative_to(ROOT)}:{line}", match[3]))
    return found


def commands() -> list[Snippet]:
    """Lines to type that begin with fedal: after `$ ` in console blocks, and the lines of blocks without a language."""
    typed = []
    for language, start in (("console", r"^\$ "), ("", r"^")):
        for where, text in blocks(language):
            whole = text.replace("\\\n", " ")
            typed += [(where, line) for line in re.findall(rf"{start}(fedal [a-z-].*)$", whole, re.MULTILINE)]
    return typed


def words(line: str) -> list[str]:
    """Of the first command in a line of shell, without comments."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split, lexer.commenters = True, "#"
    found: list[str] = []
    for word in lexer:
        if set(word) <= set("|&;<>"):
            break
        found.append(word)
    return found


def parse(line: str) -> Any:
    """What the command line makes of a line, without calling the command. Raises what a user would be told."""
    command, name, rest = get_command(app), "fedal", words(line)[1:]
    while hasattr(command, "commands"):
        assert rest and rest[0] in command.commands, f"{name} has no command {rest[:1]}"
        name, command, rest = f"{name} {rest[0]}", command.commands[rest[0]], rest[1:]
    return command.make_context(name, rest)


@pytest.mark.parametrize("snippet", blocks("python"), ids=lambda snippet: snippet[0])
def test_every_piece_of_python_compiles(snippet: Snippet) -> None:
    compile(snippet[1], snippet[0], "exec")


@pytest.mark.parametrize("snippet", commands(), ids=lambda snippet: f"{snippet[0]} {snippet[1][:40]}")
def test_every_command_is_one_that_the_command_line_takes(snippet: Snippet) -> None:
    parse(snippet[1])


def test_snippets_are_found() -> None:
    assert len(blocks("python")) >= 10
    assert len(commands()) >= 20


@pytest.mark.parametrize("line", ["fedal fly", "fedal run --wings 2", "fedal run --iterations many", "fedal data"])
def test_a_command_that_does_not_exist_is_found(line: str) -> None:
    with pytest.raises(Exception, match=r"no command|No such option|valid integer|Missing"):
        parse(line)


def test_shell_around_a_command_is_left_out() -> None:
    assert words("fedal run --out 'a b'  # why") == ["fedal", "run", "--out", "a b"]
    assert words("fedal run --quiet &") == words("fedal run --quiet | tail -1") == ["fedal", "run", "--quiet"]
