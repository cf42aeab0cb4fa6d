"""Runs in forked processes: a fork server that has imported torch once, and children that can be killed.

Started as a script this file is the server: one JSON request per line on stdin, one JSON answer per line on stdout.
It imports everything and computes nothing, because threads do not survive a fork.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CALLS = ("fsync", "replace", "unlink", "mkdir")  # calls that change the folder permanently


@dataclass(frozen=True)
class Life:
    """How one child ended."""

    killed: bool
    code: int | None  # exit code, if it was not killed
    cpu_s: float
    error: str  # its stderr


class ForkServer:
    """The test's side: `live` starts or resumes a run in its own child process, and kills it on request."""

    def __init__(self) -> None:
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        self._server = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **threads},
        )

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server.stdin and self._server.stdout
        self._server.stdin.close()
        self._server.wait()
        self._server.stdout.close()

    def live(
        self,
        out: Path,
        config: dict[str, Any],
        *,
        kill_after: float | None = None,
        die_at: int | None = None,
    ) -> Life:
        """Starts the run in `out`, or resumes it if its config.toml is there.

        `kill_after`: SIGKILL from outside after so many seconds of its CPU time, which unlike the clock on the wall
        passes at the same rate on a busy machine, and a moment that may fall into its waiting.
        `die_at`: SIGKILL from inside just before the call of that number to one of CALLS, and what a file had not
        yet synced is torn.
        """
        return self._ask({"out": str(out), "config": config, "kill_after": kill_after, "die_at": die_at})

    def command(self, *argv: str, disk_full_at: int | None = None) -> Life:
        """Runs the command line in a child; while it saves round `disk_full_at`, writing files above 4 kB fails."""
        return self._ask({"argv": argv, "disk_full_at": disk_full_at, "kill_after": None})

    def _ask(self, request: dict[str, Any]) -> Life:
        assert self._server.stdin and self._server.stdout
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        return Life(**json.loads(self._server.stdout.readline()))


def serve() -> None:
    import sklearn.datasets  # noqa: F401
    import torch._dynamo  # noqa: F401 - the first optimizer imports it

    import fedal.simulate.run  # noqa: F401
    from fedal import methods

    for name in methods.names():
        methods.get(name)
    for line in sys.stdin:
        print(json.dumps(_one_life(json.loads(line))), flush=True)


def _one_life(request: dict[str, Any]) -> dict[str, Any]:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _child(request, writer)
    os.close(writer)
    if request["kill_after"] is not None:
        _kill(child, request["kill_after"])
    _, status, used = os.wait4(child, 0)
    with open(reader, "rb") as pipe:
        error = pipe.read().decode()
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
    return {"killed": killed, "code": code, "cpu_s": used.ru_utime + used.ru_stime, "error": error}


def _kill(child: int, cpu_s: float) -> None:
    """Waits until the child has used this much CPU time, and a moment more, and kills it if it still runs."""
    clock = (~child << 3) | 2  # Linux: the CPU clock of another process
    descriptor = os.pidfd_open(child)
    try:
        while time.clock_gettime(clock) < cpu_s:
            if select.select([descriptor], [], [], 0.001)[0]:
                return
        if not select.select([descriptor], [], [], cpu_s % 0.005)[0]:
            os.kill(child, signal.SIGKILL)  # our own child, not yet waited for, so its pid is not reused
    finally:
        os.close(descriptor)


def _child(request: dict[str, Any], writer: int) -> None:
    code = 1
    os.dup2(writer, 2)
    try:
        if "argv" in request:
            _command(request)
        else:
            _life(request)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)


def _life(request: dict[str, Any]) -> None:
    if request["die_at"] is not None:
        _die_at(request["die_at"])
    from fedal.config import Config
    from fedal.simulate.run import resume, run

    out = Path(request["out"])
    if (out / "config.toml").exists():
        resume(out)
    else:
        run(Config(**request["config"]), out)


def _command(request: dict[str, Any]) -> None:
    import fedal.cli
    import fedal.simulate.session as module

    original = module.save_checkpoint

    def save_checkpoint(folder: Path, round_: int, state: dict[str, Any]) -> None:
        if round_ == request["disk_full_at"]:
            _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (4000, hard))
        original(folder, round_, state)

    module.save_checkpoint = save_checkpoint  # type: ignore[attr-defined]
    sys.argv = ["fedal", *request["argv"]]
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the fork server's answers use the original stdout
    fedal.cli.main()


def _die_at(number: int) -> None:
    """Replaces the calls that change the folder by versions that count and die at call `number` (from 0)."""
    count = -1

    def counted(original: Any) -> Any:
        def call(*arguments: Any, **keywords: Any) -> Any:
            nonlocal count
            count += 1
            if count == number:
                if original is fsync:
                    _tear(arguments[0])
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*arguments, **keywords)

        return call

    fsync = os.fsync
    for name in CALLS:
        setattr(os, name, counted(getattr(os, name)))


def _tear(descriptor: int) -> None:
    """Leaves the first half of an unsynced temporary file, as a power cut may."""
    path = os.readlink(f"/proc/self/fd/{descriptor}")
    if Path(path).name.startswith(".tmp-"):
        os.truncate(path, os.path.getsize(path) // 2)


def outcome(folder: Path) -> dict[str, bytes | list[dict[str, Any]]]:
    """Everything that must not depend on kills: weights as bytes, records without times."""
    found: dict[str, bytes | list[dict[str, Any]]] = {
        path.name: path.read_bytes() for path in sorted((folder / "models").glob("*.safetensors"))
    }
    for name in ("metrics.jsonl", "clients.jsonl"):
        rows = [json.loads(line) for line in (folder / name).read_text().splitlines()]
        found[name] = [{key: value for key, value in row.items() if key != "seconds"} for row in rows]
    return found


if __name__ == "__main__":
    serve()
