"""A link with limited bandwidth and a delay between sites and server: a TCP proxy on loopback that counts bytes.

All connections share the link, like stations on a radio channel: each byte waits for the bytes before it.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress

CHUNK = 4096  # bytes per read: small, so that connections take turns


class Direction:
    """One direction: its bytes leave at `rate` and arrive `delay_s` later."""

    def __init__(self, bits_per_s: float, delay_s: float) -> None:
        self._seconds_per_byte, self._delay_s = 8 / bits_per_s, delay_s
        self._free_at = 0.0
        self.count = 0

    def arrival(self, size: int, now: float) -> float:
        """The arrival time of `size` bytes that are ready now."""
        self.count += size
        self._free_at = max(now, self._free_at) + size * self._seconds_per_byte
        return self._free_at + self._delay_s


class ShapedLink:
    """Listens on its own port and forwards everything to `server_port`."""

    def __init__(self, server_port: int, bits_per_s: float, delay_s: float) -> None:
        self._server_port = server_port
        self.up, self.down = Direction(bits_per_s, delay_s), Direction(bits_per_s, delay_s)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        listening = asyncio.run_coroutine_threadsafe(self._listen(), self._loop)
        self.port: int = listening.result()

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _listen(self) -> int:
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return int(self._listener.sockets[0].getsockname()[1])

    async def _stop(self) -> None:
        self._listener.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _accept(self, site: asyncio.StreamReader, to_site: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError):
                server, to_server = await asyncio.open_connection("127.0.0.1", self._server_port)
                await asyncio.gather(self._pass(site, to_server, self.up), self._pass(server, to_site, self.down))
        finally:  # also runs when the link itself is closed
            to_site.close()

    async def _pass(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, way: Direction) -> None:
        in_flight: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(maxsize=16)  # a full queue blocks the sender
        delivery = asyncio.ensure_future(self._deliver(in_flight, target))
        with suppress(OSError):
            while data := await source.read(CHUNK):
                await in_flight.put((way.arrival(len(data), self._loop.time()), data))
        await in_flight.put((self._loop.time(), b""))
        await delivery

    async def _deliver(self, in_flight: asyncio.Queue[tuple[float, bytes]], target: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError):
                while (item := await in_flight.get())[1]:
                    await asyncio.sleep(item[0] - self._loop.time())
                    target.write(item[1])
                    await target.drain()
        finally:
            target.close()
