"""Puts what is generated into pages: a line `<!-- from code: settings -->` becomes the table of settings.

The page is filled before it is parsed, so headings, links and anchors of generated text are those of any Markdown. On
GitHub the line is a comment, which nobody sees.
"""

from __future__ import annotations

import re

from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

from from_code import GENERATORS

MARK = re.compile(r"^<!-- from code: (\w+)((?: [\w.]+)*) -->$", re.MULTILINE)


def filled(text: str) -> str:
    """The text of a page with every mark replaced by what its generator returns."""
    return MARK.sub(lambda mark: GENERATORS[mark[1]](*mark[2].split()), text)


def _fill(app: Sphinx, docname: str, source: list[str]) -> None:
    source[0] = filled(source[0])


def _always_outdated(app: Sphinx, env: BuildEnvironment, *_: set[str]) -> list[str]:
    """Code may have changed without a change of the page."""
    return [name for name in env.found_docs if MARK.search(env.doc2path(name).read_text(encoding="utf-8"))]


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", _fill)
    app.connect("env-get-outdated", _always_outdated)
    return {"parallel_read_safe": True}
