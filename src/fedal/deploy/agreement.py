"""What a site has agreed to: the contract that its state pins, that its invitation names, or that `--accept` names.

None of the three comes from the server. A contract is pinned when the site first agrees to it; any other needs a new
`--accept`. Without all three, only `--allow` binds.
"""

from __future__ import annotations

from pathlib import Path

from fedal.deploy.contract import Contract, read_contract
from fedal.deploy.refusals import Code, Refused
from fedal.records.folder import read_json, write_json

PINNED = "contract.json"
OFFERED = "offered-contract.json"  # the newest one that was refused, for the operator to read


def agree(offered: Contract, state: Path, invited: Contract | None, accepted: str | None) -> str | None:
    """Pins the contract that the server offers; returns why the site agrees to it, None if no contract binds it.

    Raises Refused if the site has not agreed to it.
    """
    pinned = read_pinned(state)
    known = pinned or invited
    if known is None and accepted is None:
        return None
    if offered != known and not (accepted is not None and offered.is_called(accepted)):
        write_json(state / OFFERED, offered.to_json())
        raise Refused(Code.CONTRACT, _unaccepted(offered, pinned, invited, state / OFFERED))
    if offered != pinned:
        write_json(state / PINNED, offered.to_json())
        (state / OFFERED).unlink(missing_ok=True)
    return "--accept" if offered != known else "agreed before" if pinned else "the invitation"


def read_pinned(state: Path) -> Contract | None:
    """The contract that a site's state pins, if any."""
    path = state / PINNED
    return read_json(path, lambda found: read_contract(found, str(path))) if path.exists() else None


def _unaccepted(offered: Contract, pinned: Contract | None, invited: Contract | None, path: Path) -> str:
    known = pinned or invited
    if known is None:
        text = f"the server offers contract {offered.name}, not the one of --accept."
    else:
        whose = "which this site has agreed to" if pinned else "which its invitation names"
        text = f"the server offers another contract than {known.name}, {whose}. Changed: {known.changes_in(offered)}."
    if offered == invited:
        text += " The new one is that of the invitation."
    return (
        f"{text} May leave this site: {offered.leaves}. Nothing was sent. `fedal contract {path}` shows it. If its "
        f"operator agrees, join again with --accept {offered.name}."
    )
