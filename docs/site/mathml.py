"""Equations as MathML, which browsers draw themselves: MathJax would come from a CDN."""

from __future__ import annotations

import re
from html import escape
from typing import Any

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util.logging import getLogger

logger = getLogger(__name__)


SIZES = re.compile(r"\\[bB]igg?[lrm]?(?![A-Za-z])")  # of delimiters: in MathML they stretch by themselves


def mathml(tex: str, *, as_block: bool) -> str:
    """The equation as an element `math`; what docutils cannot translate is a warning, which `make docs` refuses."""
    try:
        return str(tex2mathml(SIZES.sub("", tex), as_block=as_block))
    except MathError as error:
        logger.warning("%s in the equation %s", error, tex)
        return f"<code>{escape(tex)}</code>"


def _inline(visitor: Any, node: nodes.math) -> None:
    visitor.body.append(mathml(node.astext(), as_block=False))
    raise nodes.SkipNode


def _block(visitor: Any, node: nodes.math_block) -> None:
    visitor.body.append(f'<div class="math">{mathml(node.astext(), as_block=True)}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True}
