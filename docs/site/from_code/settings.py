"""Every setting with its facts, the tables of a config file, and the options that all methods have."""

from __future__ import annotations

from pydantic import BaseModel

from fedal.config.settings import ClientConfig, Config
from fedal.deploy.settings import Deployment
from fedal.facts import facts_of
from from_code.tables import default_of, sentence, table, type_of

PLAIN = ("setting", "type", "default", "meaning")
FACTS = ("sites", "changes")


def markdown() -> str:
    facts = facts_of(Config)
    rows = [
        [
            *plain_row(Config, name, "setting"),
            "yes" if facts[name].sites else "no",
            facts[name].changes,
        ]
        for name in Config.model_fields
        if name != "options"  # the page of methods has them
    ]
    return "\n".join(
        [
            "## Settings of a run\n",
            table([*PLAIN, *FACTS], rows),
            "## `[[clients]]`\n",
            f"{ClientConfig.__doc__}\n",
            table(PLAIN, [plain_row(ClientConfig, name, "clients") for name in ClientConfig.model_fields]),
            "## `[deployment]`\n",
            f"{Deployment.__doc__}\n",
            table(PLAIN, [plain_row(Deployment, name, "deployment") for name in Deployment.model_fields]),
        ]
    )


def plain_row(model: type[BaseModel], name: str, anchor: str) -> list[str]:
    """Name (with an anchor to link to), type, default, meaning."""
    field = model.model_fields[name]
    shown = f"[`{name}`]{{#{anchor}-{name.replace('_', '-')}}}"
    return [shown, type_of(field), default_of(field), sentence(field.description or "")]
