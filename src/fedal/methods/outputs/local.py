"""Local-only training: each client learns from its own data alone. The baseline any exchange must beat."""

from __future__ import annotations

from fedal.methods.client import ClientLogic, ClientRound
from fedal.methods.method import Method
from fedal.methods.options import MethodOptions


class LocalClient(ClientLogic):
    def round(self, t: int) -> ClientRound:
        self.local_training(t)
        yield from ()  # nothing is exchanged


METHOD = Method(
    name="local",
    summary="local-only training: each client on its own data, no exchange",
    options=MethodOptions,
    client=LocalClient,
)
