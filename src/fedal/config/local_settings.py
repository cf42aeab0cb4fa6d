"""How a client trains on its own: settings of a run that a `[[clients]]` table may override for its client.

They decide a client's steps and its loss on private data. No other party has to know them: in a deployment, a site may
set them for itself (`fedal join --set lr=1e-2`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedal.errors import ConfigError

Optimizer = Literal["adam", "adamw", "sgd"]
Schedule = Literal["constant", "linear", "cosine", "exponential"]
ClassWeights = Literal["none", "balanced"] | Annotated[tuple[Annotated[float, Field(gt=0)], ...], Field(min_length=2)]


@dataclass(frozen=True)
class LocalSettings:
    """The local settings of one client, resolved."""

    optimizer: Optimizer
    lr: float
    momentum: float
    weight_decay: float
    schedule: Schedule
    schedule_iterations: int | None
    schedule_end: float
    clip: float
    class_weights: ClassWeights
    label_smoothing: float


LOCAL = tuple(LocalSettings.__dataclass_fields__)


class LocalOverrides(BaseModel):
    """The local settings in a `[[clients]]` table; None: as in the whole run."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    optimizer: Optimizer | None = None
    lr: float | None = Field(None, gt=0)
    momentum: float | None = Field(None, ge=0, lt=1)
    weight_decay: float | None = Field(None, ge=0)
    schedule: Schedule | None = None
    schedule_iterations: int | None = Field(None, ge=1)
    schedule_end: float | None = Field(None, gt=0, le=1)
    clip: float | None = Field(None, ge=0)
    class_weights: ClassWeights | None = None
    label_smoothing: float | None = Field(None, ge=0, lt=1)

    @property
    def overrides(self) -> dict[str, Any]:
        """setting -> value, for the settings of this table that differ from the run's."""
        return {name: value for name in LOCAL if (value := getattr(self, name)) is not None}


def local_problems(settings: LocalSettings, whose: str) -> list[str]:
    """Contradictions between the local settings of one client, or of all."""
    if settings.schedule != "constant" and settings.schedule_iterations is None:
        return [
            f"schedule = {settings.schedule}{whose}: needs schedule_iterations, after which the step size stays at "
            "lr x schedule_end. The number of iterations of the run is a usual choice."
        ]
    return []


def own_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """The local settings that a site sets for itself; raises ConfigError for any other setting or a wrong value."""
    other = [name for name in values if name not in LOCAL]
    if other:
        raise ConfigError(f"--set {other[0]}: the federation decides it. A site may set {', '.join(LOCAL)}.")
    try:
        return LocalOverrides(**values).overrides
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ConfigError(f"--set {first['loc'][0]}={first['input']}: {first['msg'].lower()}.") from None
