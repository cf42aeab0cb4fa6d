"""The shaped link of the prototype experiment: it changes no byte, limits the bandwidth, and counts all bytes."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest
from benchmarks.shaped_link import Direction, ShapedLink


def echo(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    with connection:
        while data := connection.recv(1 << 16):
            connection.sendall(data)


@pytest.fixture
def link() -> Iterator[ShapedLink]:
    """8 Mbit/s and 20 ms each way, to an echo server."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=echo, args=(listener,))
        thread.start()
        link = ShapedLink(listener.getsockname()[1], bits_per_s=8e6, delay_s=0.02)
        yield link
        link.close()
        thread.join(10)
        assert not thread.is_alive(), "a closed link ends its connections"


def test_data_arrive_unchanged_counted_and_delayed(link: ShapedLink) -> None:
    content = bytes(range(256)) * 800  # 0.2 s at 8 Mbit/s
    with socket.create_connection(("127.0.0.1", link.port)) as site:
        began = time.monotonic()
        site.sendall(content)
        back = b""
        while len(back) < len(content):
            back += site.recv(1 << 16)
        elapsed = time.monotonic() - began
    assert back == content
    assert link.up.count == link.down.count == len(content)
    assert elapsed > 0.2048 + 2 * 0.02


def test_connections_share_the_bandwidth() -> None:
    way = Direction(bits_per_s=8e6, delay_s=0.5)
    assert way.arrival(1_000_000, now=10.0) == pytest.approx(11.5)
    assert way.arrival(1_000_000, now=10.0) == pytest.approx(12.5), "the second waits for the first"
    assert way.arrival(1_000_000, now=20.0) == pytest.approx(21.5), "idle time is not saved up"
