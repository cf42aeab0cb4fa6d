"""Instruments that measure during a run: `instruments = ["forgetting", "zeta", "gradients", "bottlenecks"]`.

In every recorded round they measure at three moments: at its start, when a client ends its local training, and at its
end. They change no weights and draw no random numbers, so the models are bit-identical with and without them; only
`seconds` increases. `fedal analyse` runs one further round with all of them on and discards its models.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean
from typing import Protocol

from fedal.theory.bottlenecks import measure_bottlenecks
from fedal.theory.descent import Gradients
from fedal.theory.outputs import client_outputs, zeta
from fedal.theory.view import SERVER, Columns, FederationView


class Instrument(Protocol):
    """Measures one round at a time."""

    def begins(self) -> None:
        """Called before a round starts."""

    def trained(self, client: str) -> None:
        """Called when a client has ended its local training, in the thread of that client."""

    def ends(self) -> Columns:
        """Called after a round; returns its measurements."""

    def final(self) -> Columns:
        """Called after the last round; returns what belongs in the final rows, on all evaluation data."""
        return {}


class Forgetting(Instrument):
    """Accuracy before and after two stages: on global data for local training, on a client's own data for transfer."""

    def __init__(self, view: FederationView) -> None:
        self._view = view
        self._rows: Columns = {}

    def begins(self) -> None:
        before = self._view.workers.map(self._on_global, self._view.clients)
        self._rows = {n: {"global_before_local": a} for n, a in zip(self._view.clients, before, strict=True)}

    def trained(self, client: str) -> None:
        self._rows[client] |= {
            "global_after_local": self._on_global(client),
            "own_before_transfer": self._on_own(client),
        }

    def ends(self) -> Columns:
        trained = [client for client, row in self._rows.items() if "own_before_transfer" in row]
        after = self._view.workers.map(self._on_own, trained)
        return {n: {**self._rows[n], "own_after_transfer": a} for n, a in zip(trained, after, strict=True)}

    def _on_global(self, client: str) -> float:
        return self._view.test_accuracy(client)

    def _on_own(self, client: str) -> float:
        x, y = self._view.private[client]
        predicted = client_outputs([self._view.learners[client]], x)[0].argmax(-1)
        return float((predicted == y).double().mean())


class Zeta(Instrument):
    """zeta_n of every client on the public set, in evaluation mode, at the end of the round."""

    def __init__(self, view: FederationView) -> None:
        self._view = view

    def ends(self) -> Columns:
        measured = zeta(client_outputs(self._view.learners.values(), self._view.public))
        return {n: {"zeta": float(value)} for n, value in zip(self._view.clients, measured, strict=True)}


class BottleneckInstrument(Instrument):
    """Bias, ensemble and gap at the end of the round, and on all evaluation data at the end of the run."""

    def __init__(self, view: FederationView) -> None:
        self._view = view

    def ends(self) -> Columns:
        return measure_bottlenecks(self._view, whole=False)

    def final(self) -> Columns:
        return measure_bottlenecks(self._view, whole=True)


INSTRUMENTS: dict[str, Callable[[FederationView], Instrument]] = {
    "forgetting": Forgetting,
    "zeta": Zeta,
    "gradients": Gradients,
    "bottlenecks": BottleneckInstrument,
}


class Panel:
    """The instruments of a run."""

    def __init__(self, names: Sequence[str], view: FederationView) -> None:
        self._instruments = [INSTRUMENTS[name](view) for name in names]

    def begins(self) -> None:
        for instrument in self._instruments:
            instrument.begins()

    def trained(self, client: str) -> None:
        for instrument in self._instruments:
            instrument.trained(client)

    def ends(self) -> Columns:
        """All measurements of the round, by client."""
        return _joined(instrument.ends() for instrument in self._instruments)

    def final(self) -> Columns:
        """All measurements for the final rows, by client."""
        return _joined(instrument.final() for instrument in self._instruments)


def _joined(parts: Iterable[Columns]) -> Columns:
    columns: Columns = defaultdict(dict)
    for part in parts:
        for client, row in part.items():
            columns[client] |= row
    return dict(columns)


def mean_over_clients(columns: Columns) -> dict[str, float]:
    """One row for the whole federation: means over the measured clients, and the server's columns."""
    clients = [row for owner, row in columns.items() if owner != SERVER]
    names = dict.fromkeys(name for row in clients for name in row)
    return {name: fmean(row[name] for row in clients if name in row) for name in names} | columns.get(SERVER, {})
