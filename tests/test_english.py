"""Public text uses the field's ordinary words: none of the odd ones in this table, in text, code or config."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent


class Odd(NamedTuple):
    pattern: str  # a space matches any gap, also a line break inside a comment or a split string
    ordinary: str
    example: str
    also_fine: str = ""  # ordinary English that must not match


OWNERS = "".join(rf"(?<!{word} )" for word in ("its", "their", "your", "our", "'s", "s'", "each", "his", "whose"))

ODD = [
    # terms
    Odd(r"\blonely\b", "local-only training", "Lonely training is the floor."),
    Odd(r"\bplay(?:s|ed|ing)?\b(?! a role)", "run, reproduce", "It plays a few rounds.", "a Player replays"),
    Odd(r"\bspeaks? of\b|\bspeaks? about\b", "the theory's quantities, is about", "what the theory speaks of"),
    Odd(r"\b(?:who|that) spoke\b|\bspoke\b", "responded", "the mean over all who spoke", "spokes"),
    Odd(r"\bhears?\b|\bheard\b", "receives", "whether sites hear of it", "hearing"),
    Odd(r"\bgradients? in (?:those|these|the|its|them|that|x|f)\b", "gradient w.r.t.", "gradients in those outputs"),
    Odd(r"\bthe team\b", "ensemble", "how the team answers"),
    Odd(r"\b(?:former|present|previous|own) sel(?:f|ves)\b", "earlier / current model", "a copy of its former self"),
    Odd(r"\bwhat a model (?:answers|says|thinks)\b", "outputs, predictions", "what a model answers on it"),
    Odd(rf"{OWNERS}\bown data\b", "its own data, private data", "pulled on own data", "on its own data"),
    Odd(r"\ban own\b", "your own", "with an own model"),
    Odd(r"\bdivision of (?:the )?data\b", "partition, split", "the division of data"),
    Odd(r"\bdata sets?\b", "dataset", "A data set is missing."),
    Odd(r"± spread\b", "mean ± std", "mean ± spread over 3 seeds"),
    Odd(r"\bpaired over\b|\bdifferences? to (?:the )?(?:local|fed|first|baseline)", "difference from, paired by seed",
        "Difference to local, paired over seeds"),
    Odd(r"\bminiatures?\b", "small-scale run", "a miniature of the paper's setting"),
    Odd(r"\brivals?\b", "baselines", "against its rivals", "arrival"),
    Odd(r"\bcontenders?\b", "variant", "every contender"),
    Odd(r"\bsound checkpoints?\b|\bcheckpoints? (?:is|are) sound\b|\bwhether they are sound\b", "intact",
        "the newest sound checkpoint"),
    Odd(r"\bto the bit\b", "bit for bit", "equal to the bit"),
    Odd(r"\brun can only grow\b", "can only be extended", "a run can only grow"),
    Odd(r"\bformer li(?:fe|ves)\b", "an earlier process", "left by a former life"),
    Odd(r"\b(?:begins?|begun|starts?|started) (?:\w+ ){0,2}anew\b", "start from scratch", "Start the run anew."),
    Odd(r"\bout of reach\b", "unreachable", "a server out of reach"),
    Odd(r"\bothers waiting\b", "stragglers", "who keeps the others waiting"),
    Odd(r"\bruns? side by side\b|\bclients? side by side\b", "in parallel", "clients side by side on a pool"),
    Odd(r"\b(?:numbers?|values?|that|which|what) (?:that )?(?:is|are) not finite\b", "non-finite values",
        "holds numbers that are not finite"),
    Odd(r"\bwhole numbers?\b", "integers", "K whole numbers"),
    Odd(r"\bmathematics\b", "computation", "a method is mathematics on outputs"),
    Odd(r"\bway to a target\b", "time to target accuracy", "Way to a target"),
    Odd(r'"""(?:Gives|Tells|Says)\b|; gives\b', "returns", '"""Gives the paths.'),
    # rules
    Odd(r"\bcan not\b(?! only)", "cannot", "What it can not tell."),
    Odd(r"(?<!there )\b(?:is|are) no (?!longer|more|less|fewer|such|way|need|different|better|worse|smaller|larger)",
        "is not a", "its accuracy is no fair estimate", "there is no network"),
    Odd(r"\bwhoever\b", "the client, site, caller or user", "whoever made it"),
    Odd(r"\b(?:no|every|some|any)body\b", "no client, all clients, a user", "nobody answers there"),
    Odd(r"\ballows? to\b", "supports, makes it possible to", "whether the seeds allow to say so"),
]  # fmt: skip

GAP = r"""(?:\s|\#|\||"|'|f(?="))+"""  # between two words, possibly of two lines


@cache
def expression(pattern: str) -> re.Pattern[str]:
    """The pattern with every plain space outside lookbehinds widened to `GAP`."""
    parts = re.split(r"(\(\?<!.*? \))", pattern)
    return re.compile("".join(part if part.startswith("(?<!") else part.replace(" ", GAP) for part in parts), re.I)


def public_files() -> list[Path]:
    """README and other pages, docs, code, examples, studies, benchmarks and configs."""
    code = [
        path
        for folder in ("src", "examples", "studies", "benchmarks", "configs", "docs/results")
        for kind in ("py", "proto", "html", "js", "toml")
        for path in (ROOT / folder).rglob(f"*.{kind}")
    ]
    return sorted({*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *code})


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def hits(odd: Odd, paths: Iterable[Path]) -> list[str]:
    """`file:line: words` for every match."""
    found = []
    for path in paths:
        text = text_of(path)
        for match in expression(odd.pattern).finditer(text):
            line, words = text.count("\n", 0, match.start()) + 1, " ".join(match[0].split())
            found.append(f"{path.relative_to(ROOT)}:{line}: {words}")
    return found


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: odd.ordinary)
def test_public_text_uses_ordinary_words(odd: Odd) -> None:
    found = hits(odd, public_files())
    assert not found, f"write {odd.ordinary!r}:\n" + "\n".join(found)


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: odd.ordinary)
def test_every_pattern_finds_its_example(odd: Odd) -> None:
    assert expression(odd.pattern).search(odd.example)
    assert expression(odd.pattern).search(odd.example.replace(" ", "\n    # "))
    assert not odd.also_fine or not expression(odd.pattern).search(odd.also_fine)


def test_all_kinds_of_public_files_are_read() -> None:
    names = {str(path.relative_to(ROOT)) for path in public_files()}
    assert {"README.md", "docs/theory.md", "src/fedal/wire.py", "src/fedal/deploy/fedal.proto"} <= names
    assert all(any(name.startswith(folder) for name in names) for folder in ("examples/", "studies/", "benchmarks/"))
