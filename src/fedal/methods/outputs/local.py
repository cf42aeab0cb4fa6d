"""Lonely training: every client learns from its own data only. The floor that any exchange has to beat."""

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
    summary="each client alone on its own data: the floor",
    options=MethodOptions,
    client=LocalClient,
)
