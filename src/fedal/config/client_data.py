"""Settings about data that the clients bring themselves, in `[[clients]]`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def client_data(clients: Any) -> list[str]:
    """The `data` of all `[[clients]]` tables, checked or not; empty if the clients bring none."""
    tables = clients if isinstance(clients, list | tuple) else []
    found = [table.get("data") if isinstance(table, dict) else getattr(table, "data", None) for table in tables]
    return [data for data in found if data is not None]


def data_problems(brought: Mapping[str, str | None], others: Mapping[str, object]) -> list[str]:
    """Contradictions between client -> its data and other settings about data, by name."""
    without = [client for client, data in brought.items() if data is None]
    if len(without) == len(brought):
        return []
    problems = []
    if without:
        problems.append(f'clients: client "{without[0]}" has no data, but others have. Give each client its data.')
    owners: dict[str, str] = {}
    for client, data in brought.items():
        if data is not None and (first := owners.setdefault(data, client)) != client:
            problems.append(f'clients: "{first}" and "{client}" have the same data, {data}. Give each client its own.')
    for name, value in others.items():
        if value:
            instead = "Use own_validation." if name == "validation" else "Remove this setting."
            problems.append(f"{name} = {value}: the clients have their own data, which is not divided. {instead}")
    return problems
