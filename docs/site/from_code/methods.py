"""Every method: what it sends and reveals, whether it is black-box, and its options."""

from __future__ import annotations

from fedal import methods
from fedal.facts import facts_of
from fedal.messages import Message, in_words
from fedal.methods.method import Method
from from_code.settings import FACTS, plain_row
from from_code.tables import sentence, table


def markdown() -> str:
    return "\n".join(_section(methods.get(name)) for name in methods.MODULES)


def label(name: str) -> str:
    """By which any page links to a method: `[fccl+](#method-fccl-plus)`."""
    return f"method-{name.replace('+', '-plus')}"


def _section(method: Method) -> str:
    facts = facts_of(method.options)
    options = [
        [
            *plain_row(method.options, name, method.name.replace("+", "-plus")),
            "yes" if facts[name].sites else "no",
            facts[name].changes,
        ]
        for name in method.options.model_fields
    ]
    about = [
        ["black-box", "yes" if method.black_box else "no"],
        ["sends up", _messages(method, method.up)],
        ["sends down", _messages(method, method.down)],
        ["reveals", in_words(method.reveals)],
        ["needs", ", ".join(sorted(method.needs)) or "nothing"],
        ["evaluates", f"the models of the {method.evaluates}"],
        ["made from", method.faithfulness],
        ["preset `paper` sets", ", ".join(f"`{key} = {value}`" for key, value in method.paper_options.items()) or "-"],
    ]
    return "\n".join(
        [
            f"({label(method.name)})=\n",
            f"## {method.name}\n",
            f"{sentence(method.summary)} Equations and sources: [{method.name}](../../methods/{method.name}.md).\n",
            table(["fact", "value"], about),
            table(["option", "type", "default", "meaning", *FACTS], options),
        ]
    )


def _messages(method: Method, kinds: tuple[type[Message], ...]) -> str:
    """`Outputs`, every iteration; with links."""
    each = [
        f"[{kind.__name__}](messages.md#{kind.__name__.lower()}), every {method.per.get(kind, 'iteration')}"
        for kind in kinds
    ]
    return "; ".join(text.replace("every run", "once in a run") for text in each) or "nothing"
