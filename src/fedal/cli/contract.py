"""The command `fedal contract`: what a site agrees to, read from wherever it is kept."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedal.cli.deploy import OwnMethod, need_deploy
from fedal.cli.printing import warn
from fedal.errors import ConfigError

if TYPE_CHECKING:
    from fedal.deploy.contract import Contract


def contract(
    where: Annotated[Path, typer.Argument(help="A federation config, an invitation, a token, or a site's state.")],
    method: OwnMethod = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the document whose sha256 is the hash.")] = False,
) -> None:
    """Show a contract: what may leave a site, in which messages, with which settings."""
    need_deploy()
    found = _found(where)
    if as_json:
        sys.stdout.write(found.text)
        return
    document = found.document
    public, settings = document["public"], dict(document["settings"])
    settings |= {f"options.{name}": value for name, value in settings.pop("options").items()}
    print(f"contract {found.name}: {found.summary}")
    print(f"may leave this site: {found.leaves}")
    print(f"comes back: {found.returns}")
    for direction, words in (("from_site", "messages from the site"), ("from_server", "messages to the site")):
        print(f"{words}: {', '.join(_in_words(*item) for item in document['messages'][direction].items()) or 'none'}")
    print(f"settings: {', '.join(f'{name} = {value}' for name, value in settings.items())}")
    print(f"public set: {public['samples']:,} samples, sha256 {public['sha256']}")
    if schema := document.get("schema"):
        print(f"schema of the data: sha256 {schema}")
    print(f"sha256: {found.sha256}")
    if where.suffix != ".toml" and (reason := _unlike_here(found, method)):
        warn(f"this installation would not agree to it: {reason}")


def _found(where: Path) -> Contract:
    from fedal.deploy.agreement import PINNED
    from fedal.deploy.contract import read_contract
    from fedal.deploy.pki.authority import INVITATION, read_json
    from fedal.deploy.plan import plan_federation
    from fedal.deploy.settings import load_federation

    if where.suffix == ".toml":
        return plan_federation(*load_federation(where)).contract
    path = next((path for path in (where / PINNED, where / INVITATION) if path.exists()), where)
    content = read_json(path, "Expected a federation's .toml file, an invitation, a token, or a site's state folder.")
    if "document" in content:
        return read_contract(content, str(path))
    if content.get("contract") is None:
        raise ConfigError(f"{path}: it names no contract, so only --allow binds the site. Make it with --config.")
    return read_contract(content["contract"], str(path))


def _in_words(kind: str, sent: dict[str, Any]) -> str:
    """`Consensus (mean: B x K; count)`."""
    fields = [*(f"{name}: {form}" for name, form in sent["tensors"].items()), *sent["numbers"]]
    return f"{kind} ({'; '.join(fields)})"


def _unlike_here(found: Contract, method: str | None) -> str:
    """Why the code of this installation gives another contract for the same settings, if it does."""
    from fedal.deploy.contract import contract_of
    from fedal.deploy.entering import checked_settings
    from fedal.deploy.refusals import Refused

    document = found.document
    try:
        config = checked_settings(json.dumps(document["settings"]), method)
    except Refused as refused:
        return refused.text
    own = contract_of(
        config,
        n_classes=document["classes"],
        rounds=document["rounds"],
        public_samples=document["public"]["samples"],
        public_sha256=document["public"]["sha256"],
        schema=document.get("schema"),
    )
    return f"{found.changes_in(own)}." if own != found else ""
