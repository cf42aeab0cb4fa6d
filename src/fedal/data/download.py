"""Downloads one file over HTTP; pooch verifies and places it, and an interrupted download is resumed.

pooch alone starts over after an interruption. The downloader below keeps `NAME.part` next to the target and requests
the rest; if the server does not support ranges and sends the whole file, the part is replaced.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pooch
import requests

from fedal.data.progress import Progress

CONNECT_TIMEOUT_S = 4.0
READ_TIMEOUT_S = 10.0
MAX_INTERRUPTIONS = 5
CHUNK_BYTES = 1 << 14  # the most that a lost connection can cost


class DownloadFailed(Exception):
    """A file could not be downloaded from this address; the message is a short reason."""


def download(url: str, target: Path, checksum: str, progress: Progress) -> None:
    """Downloads `url` to `target` and verifies its checksum (`md5:...`), or raises DownloadFailed.

    A part left by an earlier attempt is resumed. If the result is wrong, the part was stale: the download starts over.
    """
    pooch.get_logger().setLevel("ERROR")  # its messages would break the progress bar
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    while True:
        began_with_part = part.exists()
        downloader = _Resuming(part, progress)
        try:
            pooch.retrieve(url, known_hash=checksum, fname=target.name, path=target.parent, downloader=downloader)
            return
        except requests.RequestException as error:
            raise DownloadFailed(_reason(error)) from error
        except ValueError as error:  # how pooch reports a wrong checksum
            if not began_with_part:
                raise DownloadFailed(f"the server's file does not have the checksum {checksum}") from error
            progress.say(f"{target.name}: the part kept from an earlier attempt does not fit; starting over")
        except OSError as error:
            raise DownloadFailed(f"{target}: {error.strerror or error}") from error


class _Resuming:
    """A pooch downloader that appends to `part`, and moves it to the target once complete."""

    def __init__(self, part: Path, progress: Progress) -> None:
        self.part = part
        self.progress = progress

    def __call__(self, url: str, output_file: str, pooch: Any, check_only: bool = False) -> None:
        for remaining in reversed(range(MAX_INTERRUPTIONS + 1)):
            before = self._size()
            try:
                self._receive(url)
                break
            except (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError):
                if self._size() <= before or remaining == 0:  # nothing arrived: the server is unreachable
                    raise
                self.progress.say(f"{self.part.stem}: interrupted after {self._size():,} bytes; continuing")
        os.replace(self.part, output_file)

    def _receive(self, url: str) -> None:
        start = self._size()
        headers = {"Accept-Encoding": "identity"}  # the raw bytes of the file, so that offsets match
        if start:
            headers["Range"] = f"bytes={start}-"
        with requests.get(url, headers=headers, stream=True, timeout=(CONNECT_TIMEOUT_S, READ_TIMEOUT_S)) as response:
            if response.status_code == 416:  # nothing after `start`: the part is complete, or the file has changed
                if response.headers.get("Content-Range") != f"bytes */{start}":
                    self.part.unlink()
                    self._receive(url)
                return
            response.raise_for_status()
            if not _continues_at(response, start):
                start = 0
            length = response.headers.get("Content-Length", "")
            total = start + int(length) if length.isdecimal() else None
            with self.part.open("ab" if start else "wb") as file:
                for chunk in response.iter_content(CHUNK_BYTES):
                    file.write(chunk)
                    self.progress.advance(self.part.stem, file.tell(), total)

    def _size(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0


def _continues_at(response: requests.Response, start: int) -> bool:
    """Whether the server sends the rest from `start`, as requested, and not the whole file."""
    return response.status_code == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {start}-")


def _reason(error: requests.RequestException) -> str:
    """A short reason instead of the nested text of the HTTP libraries."""
    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"the server returned {error.response.status_code} {error.response.reason}"
    if isinstance(error, requests.Timeout):
        return "timed out"
    if "NameResolutionError" in str(error):
        return "the server's name cannot be resolved (no internet?)"
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return "the connection was lost; the part that arrived is kept and will be resumed"
    return "no connection"
