"""The project of `fedal init bank`, unchanged, with `serve` and `join`: the bits of `fedal run`."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from deployments import digest, free_port
from fedal.data.registry import PackageFailed
from fedal.projects import bank
from fedal.projects.project import create
from forked import Forked

pytestmark = pytest.mark.processes


def test_the_bank_is_deployed_as_it_is_and_gets_the_bits_of_its_simulation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(package: str, member: str) -> bytes:
        raise PackageFailed("no registry in this test")

    monkeypatch.setattr(bank, "member_of_wheel", failing)
    folder, port = tmp_path / "bank", free_port()
    create(bank.BANK, folder)
    file = folder / "federation.toml"
    text = re.sub("iterations = 200", "rounds = 2", file.read_text(encoding="utf-8"))  # shorter, and a free port
    file.write_text(text + f'listen = "127.0.0.1:{port}"\n', encoding="utf-8")
    alone = Forked(["run", "--against", "none", "--out", "run"], folder, folder / "run.log")
    server = Forked(["serve", "--config", "federation.toml", "--insecure"], folder, folder / "server.log")
    clients = tomllib.loads(text)["clients"]
    words = [
        "join",
        "--server",
        f"127.0.0.1:{port}",
        "--schema-file",
        "schema.json",
        "--insecure",
        "--federation",
        "bank",
    ]
    sites = []
    for client in clients:
        more = ["--name", client["name"], "--data", client["data"], "--model", client["model"]]
        save = ["--save", f"{client['name']}.safetensors"]
        sites.append(Forked([*words, *more, *save], folder, folder / f"{client['name']}.log"))
    for process in (*sites, server, alone):
        assert process.wait(120) == 0, [(path, path.read_text()[-500:]) for path in folder.glob("*.log")]
    for client in clients:
        name = f"{client['name']}.safetensors"
        assert digest(folder / name) == digest(folder / "run" / "models" / name)
