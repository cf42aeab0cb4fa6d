"""The `[deployment]` table of a federation's config: how the server serves the run described by the other tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedal.config import Config, load_config, read_toml
from fedal.deploy.address import refuse_bad_address
from fedal.errors import ConfigError


class Deployment(BaseModel):
    """Settings of the server. Paths are relative to the working directory."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    federation: str = Field(
        "fedal", pattern=r"^[a-z0-9][a-z0-9-]{0,62}$", description="name given to `fedal certs init`"
    )
    listen: str = Field("127.0.0.1:7443", description="address and port")
    certificates: str = Field("certs/server", description="folder of ca.pem, cert.pem and key.pem")
    folder: str = Field("federation", description="folder for the server's state and record")
    policy: Literal["wait", "continue"] = Field("wait", description="what to do when a site is missing")
    min_clients: int = Field(3, ge=3, description="minimum sites per reply; a mean of two reveals the other site")
    deadline_s: float = Field(60.0, gt=0, description="seconds for each answer of a site, computation included")
    max_strikes: int = Field(3, ge=1, description="strikes (refused content, missed deadlines) until quarantine")
    n_classes: int | None = Field(
        None, ge=2, description="number of classes, for sites with their own data; needs `public`"
    )
    max_message_bytes: int = Field(
        1 << 28, ge=1 << 16, description="size limit for methods whose messages have no fixed size"
    )


def load_federation(path: Path) -> tuple[Config, Deployment]:
    """The run's config and its deployment settings, from one TOML file that `fedal run --config` also accepts."""
    table: Any = read_toml(path).get("deployment", {})
    try:
        deployment = Deployment(**table)
    except ValidationError as error:
        problems = error.errors(include_url=False)
        lines = [f"{path}, deployment.{'.'.join(map(str, p['loc']))}: {p['msg']}." for p in problems]
        raise ConfigError("\n".join(lines)) from None
    except TypeError:
        raise ConfigError(f"{path}, deployment: expected a table.") from None
    refuse_bad_address(deployment.listen, f"{path}, deployment.listen")
    config = load_config(path, {})
    if len(config.client_names) < deployment.min_clients:
        raise ConfigError(
            f"{path}: {len(config.client_names)} clients, fewer than min_clients = {deployment.min_clients}. With two "
            "clients, the mean reveals the other's outputs."
        )
    if deployment.n_classes is not None and config.public is None:
        raise ConfigError(f"{path}: deployment.n_classes needs `public`, the file of the public set.")
    return config, deployment
