"""The table of methods: what each one sends, reveals, costs and needs, and how faithful it is.

Computed from the declarations; `fedal methods` prints it, and docs/methods/README.md contains it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedal import methods
from fedal.messages import Message, in_words
from fedal.methods.method import Method, Need

COLUMNS = ("method", "black-box", "reveals", "up", "down", "server model", "needs", "faithfulness")
EXAMPLE = {"B": 32, "B-1": 31, "K": 10}  # the sizes behind the byte counts


def rows() -> list[list[str]]:
    return [_row(methods.get(name)) for name in methods.MODULES]


def as_markdown() -> str:
    lines = [COLUMNS, ["---"] * len(COLUMNS)]
    lines += [[f"[{row[0]}]({row[0]}.md)", *row[1:]] for row in rows()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _row(method: Method) -> list[str]:
    return [
        method.name,
        "yes" if method.black_box else "no",
        in_words(method.reveals),
        " + ".join(_cost(method, kind) for kind in method.up) or "-",
        " + ".join(_cost(method, kind) for kind in method.down if kind not in method.instead_of) or "-",
        "yes" if "server-model" in method.needs else "no",
        needs_in_words(method),
        method.faithfulness,
    ]


def needs_in_words(method: Method, without: Sequence[Need] = ()) -> str:
    """`features, equal features`; a server model has a column of its own."""
    needs = sorted(method.needs - {"server-model", "fixed-samples", *without})
    return ", ".join(need.replace("same-", "equal ").replace("every-", "every ") for need in needs) or "-"


def _cost(method: Method, kind: type[Message]) -> str:
    """`1,280 B/iteration`, or the formula where the size depends on the models or the data."""
    per = method.per.get(kind, "iteration")
    if kind.size:
        return f"{kind.size}/{per}"
    sizes = EXAMPLE | {axis: method.options.model_fields[option].default for axis, option in method.axes.items()}
    if all(axis in sizes for axes in kind.layout.values() for axis in axes):
        widths = {name: 1 if kind.integer_fields.get(name) == "uint8" else 4 for name in kind.layout}
        total = sum(widths[name] * math.prod(sizes[axis] for axis in axes) for name, axes in kind.layout.items())
        return f"{total:,} B/{per}"
    return " + ".join(f"4·{'·'.join(axes)}" for axes in kind.layout.values()) + f" B/{per}"


if __name__ == "__main__":
    print(as_markdown(), end="")
