"""The options that methods share; each method adds its own."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from fedal.facts import Facts, setting

SERVER_MODEL: Any = setting(  # never an import path: an untrusted run folder may name it
    "auto",
    "the server's model, a name of `fedal models`; auto: the largest candidate of the dataset",
    pattern="^[a-z0-9-]+$",
    sites=True,
    changes="weights",
    expected="auto or a name of `fedal models`",
)


class MethodOptions(BaseModel):
    """Options of every method with local training. A loss weight of 0 drops its term."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    facts: ClassVar[Facts] = Facts(sites=True, changes="weights")  # of every option without facts of its own

    tau: int = Field(5, ge=1, description="iterations in each local training and each knowledge transfer stage")
    local_loss: Literal["cross-entropy", "balanced", "restricted"] = Field(
        "cross-entropy",
        description="balanced: cross-entropy on f + log(pi_n), with pi_n the client's label frequencies (never sent), "
        "for tau=1; restricted: only over the client's own classes",
    )
    prior_smoothing: float = Field(
        0.03, gt=0, le=1,
        description="local_loss=balanced: pseudo-samples per class in pi_n, as a share of the client's samples",
    )  # fmt: skip
    prior_strength: float = Field(1.0, ge=0, le=1, description="local_loss=balanced: weight of log(pi_n)")


class LocalStagesOptions(MethodOptions):
    """Options of methods that take no steps on public data."""

    local_stages: int = Field(
        1, ge=1, le=2, description="2: as many steps per round as methods with a public stage, all on private data"
    )

    @property
    def local_steps(self) -> int:
        """Local steps per round."""
        return self.tau * self.local_stages


class PublicOptions(MethodOptions):
    """Options of every method with passes on public data."""

    public_mode: Literal["train", "eval", "frozen"] = Field(
        "train", description="what BatchNorm does on public batches (see docs/methods)"
    )


class TransferOptions(PublicOptions):
    """Options of every method that learns from others' outputs on public data."""

    temperature: float = Field(1.0, gt=0, description="temperature E inside every KL divergence")


class ClassMeanOptions(LocalStagesOptions):
    """Options of methods that exchange means per class."""

    average: Literal["clients", "samples"] = Field(
        "clients", description="how the server weights clients that have a class: equally, or by their samples of it"
    )
