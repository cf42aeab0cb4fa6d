"""How a group is named and marked: the same colour and dash in every table and chart."""

from __future__ import annotations

from fedal.report.groups import Group, Overview
from fedal.report.markup import Markup, element, markup


def swatch(index: int) -> Markup:
    """The colour and dash of a group's line."""
    return element("span", cls=f"swatch line-{index % 7} dash-{index // 7 % 4}", aria_hidden="true")


def named(overview: Overview, group: Group) -> Markup:
    return markup(swatch(overview.groups.index(group)), group.label)
