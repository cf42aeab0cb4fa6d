"""Clients in Ray actors: bit-identical to threads, even if an actor is killed; nothing listens beyond loopback.

Ray runs in its own process: it forks, which other frameworks in this process do not support.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import fedal
from commands import COMMAND, TINY
from commands import fedal as command
from fedal.engine.ray import ClientGroup, RayCluster, shared_out
from fedal.errors import ConfigError
from fedal.losses import PrivateLoss
from fedal.methods.client import ClientLogic
from fedal.methods.options import MethodOptions
from fedal.records.run import read_rows
from fedal.user_code import one_line
from frameworks import by_hand
from optional import needs
from site_tables import write_sites
from splits import QUICK, one_of_each_set_of_messages

pytestmark = pytest.mark.processes

SETTINGS = dict(method="fedal", dataset="digits", clients=10, iterations=60, eval_every=10, checkpoint_every=3)


def descendants(pid: int) -> Iterator[int]:
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended meanwhile
            continue
    found = {pid}
    while new := {child for child, parent in parents.items() if parent in found} - found:
        found |= new
    yield from found - {pid}


def actors(pid: int) -> list[int]:
    return [child for child in descendants(pid) if b"ray::ClientGroup" in Path(f"/proc/{child}/cmdline").read_bytes()]


def listening(pid: int) -> set[str]:
    """The addresses, in hexadecimal, on which a process and its descendants listen."""
    inodes = set()
    for process in [pid, *descendants(pid)]:
        for descriptor in Path(f"/proc/{process}/fd").glob("*"):
            try:
                inodes.add(os.readlink(descriptor).removeprefix("socket:[").removesuffix("]"))
            except OSError:
                continue
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return {row[1].partition(":")[0] for row in rows if row[3] == "0A" and row[9] in inodes}


LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}


def start(folder: Path, **settings: Any) -> subprocess.Popen[str]:
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    line = [*COMMAND, "run", "--engine", "ray", "--out", str(folder), "--quiet", *words]
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def without_times(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def assert_same(folder: Path, expected: fedal.Run) -> None:
    found = fedal.load_run(folder)
    assert without_times(found.metrics) == without_times(expected.metrics)
    assert found.client_metrics == expected.client_metrics
    for client in expected.client_models:
        file = f"models/{client}.safetensors"
        assert (found.path / file).read_bytes() == (expected.path / file).read_bytes(), client


@pytest.mark.parametrize("kills", [1, pytest.param(0, marks=pytest.mark.soak), pytest.param(3, marks=pytest.mark.soak)])
def test_ray_matches_threads_bit_for_bit_whether_or_not_actors_are_killed(kills: int, tmp_path: Path) -> None:
    needs("ray", "ray")
    threads = fedal.run(fedal.Config(**SETTINGS), tmp_path / "threads")
    process = start(tmp_path / "ray", workers=2, **SETTINGS)
    try:
        for kill in range(kills):
            rows = 4 * kill + 2
            while len(read_rows(tmp_path / "ray" / "metrics.jsonl")) < rows or len(actors(process.pid)) < 2:
                assert process.poll() is None, process.communicate()
                time.sleep(0.02)
            assert listening(process.pid) <= LOOPBACK
            os.kill(actors(process.pid)[0], signal.SIGKILL)
        _, err = process.communicate(timeout=200)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert err.count("new actors") == kills, err
    assert_same(tmp_path / "ray", threads)


IN_ONE_RAY = """
import json, sys
import fedal, ray
folder, settings = sys.argv[1], json.loads(sys.argv[2])
ray.init("local", num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
for number, config in enumerate(settings):
    fedal.run(fedal.Config(**config), f"{folder}/{number}")
ray.shutdown()
"""


OPTIONS = {  # the runs above have the defaults
    "fedal": {"aggregate": "median", "space": "probabilities", "replay": 1, "discriminator_input": "outputs-and-mean"},
    "fedmd": {"replay": 2, "local_loss": "restricted", "aggregate": "coverage"},
    "fedmd-lf": {"replay": 1},
    "feddf-al": {"discriminator_rule": "balance"},
}
RUNS: dict[str, dict[str, Any]] = {
    "fedavg": {"participation": 2},  # its cohort fetches the average
    "fedmd": {"public_augment": "shift,mixup", "public_augment_start": 1, "private_augment": "noise"},
}


@pytest.mark.parametrize(
    "names",
    [[*one_of_each_set_of_messages(), "fedlift"], pytest.param(list(fedal.methods.MODULES), marks=pytest.mark.soak)],
    ids=["one of each and fedlift", "all"],
)
@pytest.mark.timeout(3600)
def test_ray_matches_threads_for_every_kind_of_message_and_for_tables(names: list[str], tmp_path: Path) -> None:
    """In one Ray, since starting it takes longer than a run. The tables have missing values, columns and classes."""
    needs("ray", "ray")
    needs("xgboost", "xgboost")
    small: dict[str, Any] = dict(clients=3, models="same", rounds=2, batch_size=8, eval_samples=50, workers=1)
    settings = [
        {**small, **RUNS.get(name, {}), "method": name, "options": {"tau": 2, **(QUICK | OPTIONS).get(name, {})}}
        for name in names
    ]
    tables = write_sites(tmp_path) | {"method": "fedal", "rounds": 2, "workers": 2, "metrics": ["brier"]}
    models = {"north": "mlp-small", "south": "logistic", "east": "xgboost"}
    tables["clients"] = [{**client, "model": models[client["name"]]} for client in tables["clients"]]
    settings.append(tables)
    remote = json.dumps([{**each, "engine": "ray"} for each in settings])
    line = [sys.executable, "-c", IN_ONE_RAY, str(tmp_path / "ray"), remote]
    hidden = {**os.environ, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # listens on loopback only
    done = subprocess.run(line, capture_output=True, text=True, timeout=3000, check=False, env=hidden)
    assert done.returncode == 0, done.stderr
    for number, each in enumerate(settings):
        expected = fedal.run(fedal.Config(**each), tmp_path / "threads" / str(number))
        assert_same(tmp_path / "ray" / str(number), expected)
    assert "own_test_brier" in expected.final


def end_group(process: subprocess.Popen[Any]) -> None:
    """Ends a process and its descendants."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


@pytest.mark.soak
@pytest.mark.parametrize(
    ("sent", "code", "participation"), [(signal.SIGKILL, -signal.SIGKILL, 0.5), (signal.SIGINT, 130, 1.0)]
)
def test_a_killed_or_interrupted_ray_run_resumes_to_the_same_bits_as_threads(
    sent: signal.Signals, code: int, participation: float, tmp_path: Path
) -> None:
    needs("ray", "ray")
    settings = {**SETTINGS, "participation": participation}
    threads = fedal.run(fedal.Config(**settings), tmp_path / "threads")
    process = start(tmp_path / "ray", workers=2, **settings)
    try:
        while len(read_rows(tmp_path / "ray" / "metrics.jsonl")) < 4:
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
        os.kill(process.pid, sent)
        assert process.wait(120) == code
    finally:
        end_group(process)
    assert not (tmp_path / "ray" / "summary.json").exists()
    line = [*COMMAND, "resume", str(tmp_path / "ray"), "--quiet"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert_same(tmp_path / "ray", threads)


@pytest.mark.soak
def test_a_live_cluster_matches_threads_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a token, as newer clusters require, and on loopback, as `--engine ray` starts its own cluster."""
    needs("ray", "ray")
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    threads = fedal.run(fedal.Config(**SETTINGS), tmp_path / "threads")
    port, scratch = free_port(), tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # short: Ray creates sockets in it
    words = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", "--node-ip-address=127.0.0.1"]
    words += [f"--port={port}", "--include-dashboard=false", "--num-cpus=3", f"--temp-dir={scratch}"]
    cluster = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        wait_until_open(port, cluster)
        process = start(tmp_path / "ray", workers=3, ray_address=f"127.0.0.1:{port}", **SETTINGS)
        _, err = process.communicate(timeout=250)
        assert process.returncode == 0, err
    finally:
        end_group(cluster)
        shutil.rmtree(scratch, ignore_errors=True)
    assert_same(tmp_path / "ray", threads)


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_clients_on_two_nodes_keep_their_bits_when_one_node_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs("ray", "ray")
    settings = {**SETTINGS, "iterations": 150, "eval_every": 25}
    threads = fedal.run(fedal.Config(**settings), tmp_path / "threads")
    port, scratch = free_port(), tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}  # several nodes listen everywhere
    quick = {"RAY_health_check_period_ms": "1000", "RAY_health_check_failure_threshold": "5"}
    for name, value in {**token, **quick}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", raising=False)  # it would refuse a second node
    ray = [
        str(Path(sys.executable).with_name("ray")),
        "start",
        "--block",
        "--num-cpus=2",
        "--node-ip-address=127.0.0.1",
    ]

    def node(*words: str) -> subprocess.Popen[Any]:
        quiet: dict[str, Any] = dict(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return subprocess.Popen([*ray, *words], start_new_session=True, **quiet)

    head = node("--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={scratch}")
    started = [head]
    try:
        wait_until_open(port, head)
        other = node(f"--address=127.0.0.1:{port}")
        started.append(other)
        wait_for_nodes(port, 2)
        process = start(tmp_path / "ray", workers=4, ray_address=f"127.0.0.1:{port}", **settings)
        started.append(process)
        while len(read_rows(tmp_path / "ray" / "metrics.jsonl")) < 3:
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
        assert [len(actors(each.pid)) for each in (head, other)] == [2, 2]  # spread over both
        os.killpg(other.pid, signal.SIGKILL)
        _, err = process.communicate(timeout=900)
        assert process.returncode == 0, err
        assert "new actors" in err
    finally:
        for each in started:
            end_group(each)
        shutil.rmtree(scratch, ignore_errors=True)
    assert_same(tmp_path / "ray", threads)


COUNT_NODES = """
import sys, time, ray
ray.init(sys.argv[1], logging_level="ERROR", log_to_driver=False)
while sum(node["Alive"] for node in ray.nodes()) < int(sys.argv[2]):
    time.sleep(0.2)
"""


def wait_for_nodes(port: int, count: int) -> None:
    line = [sys.executable, "-c", COUNT_NODES, f"127.0.0.1:{port}", str(count)]
    subprocess.run(line, check=True, timeout=300)


def test_clients_are_shared_out_by_cost_and_alike_ones_in_turn() -> None:
    assert shared_out(dict.fromkeys("abcde", 1.0), 2) == [("a", "c", "e"), ("b", "d")]
    assert shared_out({"a": 1, "b": 1, "c": 5, "d": 1, "e": 2}, 2) == [("c",), ("e", "a", "b", "d")]
    assert shared_out({"a": 1.0}, 1) == [("a",)]


class FakeRay:
    """A cluster whose second node is lost while the first actors wait for their places."""

    def __init__(self, cpus: list[int], gpus: int = 0) -> None:
        self.cpus, self.gpus, self.options, self.killed = cpus, gpus, [], 0

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": self.cpus[0], **({"GPU": self.gpus} if self.gpus else {})}

    def put(self, value: object) -> object:
        return value

    def kill(self, actor: object) -> None:
        self.killed += 1

    def remote(self, **options: Any) -> Any:
        self.options.append(options)
        ready = SimpleNamespace(remote=lambda: "ready")
        made = lambda make, names: SimpleNamespace(names=names, __ray_ready__=ready)  # noqa: E731
        return lambda kind: SimpleNamespace(remote=made)

    def wait(self, waiting: list[Any], **how: Any) -> tuple[list[Any], list[Any]]:
        if len(self.cpus) == 1:
            return waiting, []
        self.cpus.pop(0)
        return [], waiting


def test_fewer_actors_are_placed_after_a_node_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = FakeRay([4, 4, 2])  # it takes two looks until the lost node is noticed
    monkeypatch.setattr(RayCluster, "_caller", lambda self, group, client: group)
    cluster = RayCluster(ray, 0)
    players = cluster.place(dict.fromkeys("abcdef", 1.0), lambda names, done: {}, lambda client, phase: None)
    assert [group.names for group in cluster.groups] == [("a", "c", "e"), ("b", "d", "f")] and ray.killed == 4
    assert [player.names for player in players] == [(name,) for name in "abcdef"]
    assert all(player._call is cluster.groups[index % 2] for index, player in enumerate(players))  # type: ignore[comparison-overlap]
    assert ray.options[-1] == {"num_cpus": 1, "max_restarts": 0, "scheduling_strategy": "SPREAD"}


@pytest.mark.parametrize(("gpus", "expected"), [(1, 0.25), (2, 0.5), (8, 1.0)])
def test_actors_share_the_gpus_if_the_run_uses_them(
    gpus: int, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = FakeRay([4], gpus)
    monkeypatch.setattr(RayCluster, "_caller", lambda self, group, client: group)
    cluster = RayCluster(ray, 0, gpus=True)
    cluster.place(dict.fromkeys("abcdef", 1.0), lambda names, done: {}, lambda client, phase: None)
    assert ray.options[0]["num_gpus"] == expected and len(cluster.groups) == 4


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until_open(port: int, process: subprocess.Popen[Any]) -> None:
    for _ in range(600):
        assert process.poll() is None, "ray start has ended"
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.2)
    pytest.fail("ray start does not listen")


def test_without_ray_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    answer = command("run", *TINY, "--engine", "ray", "--out", tmp_path / "run")
    assert answer.code == 2
    assert "pip install 'fedal[ray]'" in answer.err
    assert not (tmp_path / "run").exists()


def test_an_unreachable_address_is_refused_at_once(tmp_path: Path) -> None:
    needs("ray", "ray")
    answer = command("run", *TINY, "--engine", "ray", "--ray-address", "127.0.0.1:1", "--out", tmp_path / "run")
    assert answer.code == 2
    assert "no answer" in answer.err
    assert not (tmp_path / "run").exists()


def test_models_given_in_python_are_refused_by_ray(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"client-01.*package\.module:factory"):
        fedal.run(fedal.Config(engine="ray", clients=2), tmp_path / "run", models={"client-01": by_hand(64, 10)})


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"engine": "ray", "instruments": ("zeta",)}, "engine = threads only"),
        ({"ray_address": "10.0.0.1:6379"}, "needs engine = ray"),
        ({"engine": "slurm"}, "threads"),
    ],
)
def test_incompatible_settings_are_refused(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        fedal.Config(**settings)


def test_an_error_in_an_actor_keeps_the_line_of_the_users_code_and_the_traceback() -> None:
    class Fails(ClientLogic):
        def round(self, t: int) -> Iterator[Any]:  # type: ignore[override]
            raise ValueError("not today.")
            yield

    setup = SimpleNamespace(client_id="anna", learner=None, private=SimpleNamespace(label_counts=torch.ones(2)),
                            public=None, options=MethodOptions(), phase_done=None, loss=PrivateLoss())  # fmt: skip
    group = ClientGroup(lambda names, done: {"anna": Fails(setup)}, ("anna",))  # type: ignore[arg-type]
    with pytest.raises(ValueError) as caught:
        group.begin("anna", 0)
    here = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - as Ray transfers it: the traceback stays behind
    assert here.__traceback__ is None
    assert re.fullmatch(r"ValueError: not today \(.*test_ray.py, line \d+, in round\)", one_line(here))
    assert "raise ValueError" in "".join(traceback.format_exception(here))
