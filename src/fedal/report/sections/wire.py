"""What each method sends, what that reveals, and the total bytes."""

from __future__ import annotations

from collections.abc import Sequence

from fedal import methods
from fedal.config.revealed import is_black_box, revealed
from fedal.messages import Message
from fedal.records.numbers import NONE, size
from fedal.report.groups import Group, Overview
from fedal.report.markup import Markup, element, markup, table
from fedal.report.measures import DOWNLOADED, UPLOADED


def section(overview: Overview) -> Markup:
    rows = [_wire_row(overview, group) for group in overview.groups]
    columns: list[str | tuple[str, str]] = ["method", "black box", "to the server", "to the clients", "reveals"]
    columns += [(UPLOADED.name, "per client"), (DOWNLOADED.name, "per client")]
    caption = "What each method sends; the wire refuses anything not listed here"
    note = element(
        "p",
        "B is the batch size on public data, K the number of classes, d the number of features. A black box reveals "
        "neither parameters nor architecture. Types bound the channel, not the information in it: outputs on public "
        "data still reveal something about a model's training data.",
    )
    return markup(table(caption, columns, rows, name="Messages and bytes", cls="words stacked"), note)


def _wire_row(overview: Overview, group: Group) -> list[object]:
    clients = group.client_count or 1
    sent = [size(group.mean(m.key) / clients) if group.finals(m.key) else NONE for m in (UPLOADED, DOWNLOADED)]
    name = overview.named(group)
    if group.method not in methods.MODULES:
        unknown = "a custom method: its declarations are in its code, which the report does not read"
        return [name, "not known", NONE, NONE, unknown, *sent]
    method = methods.get(group.method)
    partition = group.settings.get("partition")
    black_box = "yes" if is_black_box(method.reveals, partition) else "no"
    return [
        name,
        black_box,
        _messages(method.up),
        _messages([kind for kind in method.down if kind not in method.instead_of]),
        revealed(method.reveals, partition),
        *sent,
    ]


def _messages(kinds: Sequence[type[Message]]) -> str:
    """`Guidance: mean (B x K), grad (B x K)`"""
    words = []
    for kind in kinds:
        fields = [f"{name} ({' x '.join(axes)})" for name, axes in kind.layout.items()] or list(kind.payload_fields())
        words.append(f"{kind.__name__}: {', '.join(fields)}")
    return "; ".join(words) or "nothing"
