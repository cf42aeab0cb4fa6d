"""The settings `participation` and `eval_clients`: how many clients take part in a round, how many are evaluated."""

from __future__ import annotations

from typing import Literal

from fedal import methods
from fedal.methods.method import Method

AUTO_EVALUATED = 20  # clients, at least: the error of their mean is below a quarter of the deviation between clients


def cohort_size(participation: float, everyone: int) -> int:
    """The number of clients in each round: 1.0 is all of them, 1 is one."""
    if isinstance(participation, int):
        return participation
    return int(participation * everyone + 1e-9)  # 0.29 * 100 is 28.999999999999996


def evaluated_clients(eval_clients: int | Literal["auto"], cohort: int, everyone: int) -> int:
    """The number of clients that are evaluated. What evaluation costs follows the cohort, not the roster."""
    if eval_clients != "auto":
        return min(everyone, eval_clients)
    return min(everyone, max(cohort, AUTO_EVALUATED)) if cohort < everyone else everyone


def participation_problems(participation: float, everyone: int, method: Method) -> list[str]:
    """Why this participation is not possible, in words."""
    given, least = f"participation = {participation}", method.least_clients
    is_share = not isinstance(participation, int)
    if not 0 < participation <= (1 if is_share else everyone):
        return [f"{given}: expected a share above 0, up to 1.0, or an integer up to {everyone}."]
    cohort = cohort_size(participation, everyone)
    if cohort == everyone:
        return []
    if "every-client" in method.needs:
        able = [name for name in methods.names() if "every-client" not in methods.get(name).needs]
        return [
            f"{given}: {method.name} needs every client in every round. One that sat out would go on from an old "
            f"state. Methods that do not: {', '.join(able)}."
        ]
    if cohort < least:
        return [
            f"{given}: {cohort} of {everyone} clients; {method.name} needs at least {least} in a round. "
            "Raise it; 1.0 is all of them."
        ]
    return []
