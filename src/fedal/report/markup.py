"""HTML that is safe from injection: anything that is not `Markup` is text, and text is escaped."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence
from typing import Any

from fedal.records.folder import without_nan


class Markup(str):
    """A piece of HTML built in this module."""

    __slots__ = ()


def markup(*parts: object) -> Markup:
    """The concatenated parts; parts that are not markup are escaped."""
    return Markup("".join(part if isinstance(part, Markup) else html.escape(str(part)) for part in parts))


def element(name: str, /, *content: object, **attributes: object) -> Markup:
    """`element("td", 3, cls="number")`: `cls` means class, `_` becomes a dash, None and False omit the attribute."""
    words = ""
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = "class" if key == "cls" else key.rstrip("_").replace("_", "-")
        words += f" {key}" if value is True else f' {key}="{html.escape(str(value))}"'
    return Markup(f"<{name}{words}>" if name == "input" else f"<{name}{words}>{markup(*content)}</{name}>")


def table(
    caption: object,
    columns: Sequence[str | tuple[str, str]],
    rows: Iterable[Sequence[object]],
    *,
    name: str,
    cls: str = "",
    **attributes: object,
) -> Markup:
    """A table in its own horizontally scrolling frame; the first cell of a row is its heading.

    A column is a name, or a name and a second line. Class `stacked` shows rows as cards on narrow screens; the ARIA
    roles keep it a table for screen readers, and each cell carries its column's label.
    """
    heads = [markup(column) if isinstance(column, str) else _two_lines(*column) for column in columns]
    labels = [column if isinstance(column, str) else ", ".join(column) for column in columns]
    head = element("tr", *(element("th", text, scope="col", role="columnheader") for text in heads), role="row")
    body = [
        element(
            "tr",
            element("th", row[0], scope="row", role="rowheader"),
            *(
                element("td", cell, cls=_alarm(cell), role="cell", data_label=label)
                for cell, label in zip(row[1:], labels[1:], strict=True)
            ),
            role="row",
        )
        for row in rows
    ]
    inner = element(
        "table",
        element("caption", caption),
        element("thead", head, role="rowgroup"),
        element("tbody", *body, role="rowgroup"),
        role="table",
        cls=cls or None,
        **attributes,
    )
    return element("div", inner, cls="scroll", role="region", aria_label=name, tabindex=0)


def _two_lines(name: str, below: str) -> Markup:
    return markup(name, " ", element("small", below))


def _alarm(cell: object) -> str | None:
    """The class that highlights a NaN."""
    return "bad" if "NaN" in str(cell) else None


def definitions(pairs: Iterable[tuple[object, object]]) -> Markup:
    """A list of terms with their descriptions."""
    return element("dl", *(element("div", element("dt", term), element("dd", what)) for term, what in pairs))


def bullets(items: Iterable[object]) -> Markup:
    return element("ul", *(element("li", item) for item in items))


def folded(summary: object, *content: object) -> Markup:
    return element("details", element("summary", summary), *content)


def embedded_json(value: Any) -> Markup:
    """JSON for a <script> element: no character in it can end the element, and non-finite values become null."""
    text = json.dumps(without_nan(value), allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)
