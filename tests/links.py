"""A network link that a test can cut and heal: a TCP proxy on loopback in front of a server."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress

AT_ONCE = struct.pack("ii", 1, 0)  # SO_LINGER: close with a reset instead of an orderly shutdown


class _Pipe:
    """One connection through the link: both directions pause while `flows` is not set."""

    def __init__(self, near: socket.socket, far: socket.socket, flows: threading.Event) -> None:
        self._ends, self.flows = (near, far), flows
        for source, target in ((near, far), (far, near)):
            threading.Thread(target=self._pump, args=(source, target), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                self.flows.wait()  # data sent before a silence arrives after it, as TCP would retransmit it
                target.sendall(data)
        self.reset()

    def reset(self) -> None:
        for end in self._ends:
            with suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
                end.shutdown(socket.SHUT_RDWR)
            end.close()


class Link:
    """Forwards to a port on loopback. Cut it with `reset` (both ends notice) or `silence` (neither does)."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._pipes: list[_Pipe] = []
        self._flows, self._refuses = threading.Event(), False
        self._flows.set()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):  # the listener was closed
            while True:
                near, _ = self._listener.accept()
                try:
                    if self._refuses:
                        raise ConnectionRefusedError
                    far = socket.create_connection(("127.0.0.1", self._port))
                except OSError:
                    near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
                    near.close()
                else:
                    self._pipes.append(_Pipe(near, far, self._flows))

    def reset(self) -> None:
        """Breaks every connection and refuses new ones."""
        self._refuses = True
        for pipe in self._pipes:
            pipe.reset()
        self._pipes.clear()

    def silence(self) -> None:
        """Keeps connections open, but nothing arrives any more."""
        self._flows.clear()

    def heal(self) -> None:
        self._refuses = False
        self._flows.set()

    def heal_for_new_connections(self) -> None:
        """Like a restarted router: existing connections stay silent for ever."""
        self._flows = threading.Event()
        self.heal()

    def close(self) -> None:
        self._listener.close()
        self.reset()
