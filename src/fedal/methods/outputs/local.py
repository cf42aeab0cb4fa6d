"""Local-only training: each client learns from its own data alone. The baseline any exchange must beat."""

from __future__ import annotations

from fedal.methods.client import ClientLogic, ClientRound
from fedal.methods.method import Method
from fedal.methods.options import LocalStagesOptions


class LocalClient(ClientLogic):
    def round(self, t: int) -> ClientRound:
        self.local_training(t, stages=self.hp.local_stages)
        yield from ()  # nothing is exchanged


METHOD = Method(
    name="local",
    summary="local-only training: each client on its own data, no exchange",
    options=LocalStagesOptions,
    client=LocalClient,
    local_steps=lambda options: int(options.local_steps),
)
