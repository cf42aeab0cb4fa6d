"""Files from others are data: no pickle in them is executed, and each bad file is refused by name."""

from __future__ import annotations

import io
import os
import pickle
import random
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from deployments import certs, load_federation
from fedal.data.custom import load_npz, load_public_npz
from fedal.deploy.pki.enrolment import enrol
from fedal.deploy.site_state import run_of
from fedal.errors import CheckpointError, ConfigError, FedalError
from fedal.records.checkpoint import load_checkpoint, load_newest, save_checkpoint
from mutation import mutated
from splits import same_bits


class Bomb:
    """Executes code when it is unpickled."""

    def __init__(self, sentinel: Path, function: Callable[..., Any]) -> None:
        self._sentinel, self._function = sentinel, function

    def __reduce__(self) -> tuple[Any, ...]:
        return self._function, (str(self._sentinel),)


def bombs(sentinel: Path) -> list[bytes]:
    """Pickles of every protocol and several functions: bare, as object arrays, and in torch and NumPy archives."""
    found = []
    for function in (os.mkdir, os.mkfifo):
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            raw = pickle.dumps([Bomb(sentinel, function)], protocol=protocol)
            array = io.BytesIO()
            np.save(array, np.array([Bomb(sentinel, function)], dtype=object), allow_pickle=True)
            found += [raw, array.getvalue(), zipped("data.pkl", raw), zipped("x.npy", array.getvalue())]
    return found


def zipped(name: str, content: bytes) -> bytes:
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as archive:
        archive.writestr(name, content)
    return raw.getvalue()


def read_checkpoint_with(content: bytes, suffix: str, path: Path) -> None:
    save_checkpoint(path, 3, {"round": 3})
    (path / f"round-0000003{suffix}").write_bytes(content)
    load_checkpoint(path / "round-0000003.json")


def read_invitation_with(content: bytes, name: str, path: Path) -> None:
    if not (path / "site-1").exists():
        certs.init(path, "test")
    folder = certs.issue_client(path, "site-1", None)
    (folder / name).write_bytes(content)
    certs.check_pems(certs.read_invitation(folder).pems(), folder)


def read_file(read: Callable[[Path], Any], name: str) -> Callable[[bytes, Path], None]:
    def reader(content: bytes, path: Path) -> None:
        path.mkdir(exist_ok=True)
        (path / name).write_bytes(content)
        read(path / name)

    return reader


READERS: dict[str, Callable[[bytes, Path], None]] = {
    "private data": read_file(load_npz, "own.npz"),
    "the public set": read_file(load_public_npz, "public.npz"),
    "a federation's config": read_file(load_federation, "federation.toml"),
    "a site's state": read_file(run_of, "site.json"),
    "a list of revocations": read_file(lambda path: certs._revocations(path), "crl.pem"),
    **{f"a checkpoint's {end}": lambda raw, path, end=end: read_checkpoint_with(raw, end, path)
       for end in (".json", ".tensors")},
    **{f"an invitation's {name}": lambda raw, path, name=name: read_invitation_with(raw, name, path)
       for name in ("invitation.json", *certs.PEMS)},
}  # fmt: skip


@pytest.mark.parametrize("what", READERS)
def test_a_pickle_in_any_file_is_refused_and_not_executed(what: str, tmp_path: Path) -> None:
    sentinel = tmp_path / "executed"
    hostile = bombs(sentinel)
    assert len(hostile) == 48
    for content in hostile:
        with pytest.raises(FedalError):
            READERS[what](content, tmp_path / "read")
    assert not sentinel.exists()


def test_the_bombs_are_real(tmp_path: Path) -> None:
    pickle.loads(bombs(tmp_path / "executed")[0])  # noqa: S301 - to show that the test above could fail
    assert (tmp_path / "executed").exists()


@pytest.mark.parametrize("count", [2_000, pytest.param(20_000, marks=pytest.mark.soak)])
def test_a_mutated_checkpoint_is_refused_or_equals_the_saved_one(tmp_path: Path, count: int) -> None:
    saved = {"round": 3, "learner": {"weight": torch.arange(12.0).reshape(3, 4), "steps": torch.tensor(7)}}
    save_checkpoint(tmp_path, 3, saved)
    intact = {path: path.read_bytes() for path in tmp_path.glob("round-*")}
    chance, refused = random.Random(0), Counter[str]()
    for _ in range(count):
        path = chance.choice(sorted(intact))
        path.write_bytes(mutated(intact[path], chance))
        try:
            rounds, state = load_checkpoint(tmp_path / "round-0000003.json")
            assert rounds == 3 and same_bits(state, saved)
        except CheckpointError:
            refused[path.suffix] += 1
        path.write_bytes(intact[path])
    assert len(intact) == 2 and min(refused.values()) > 0.45 * count


def test_hostile_checkpoints_of_a_site_fall_back_to_the_intact_one(tmp_path: Path) -> None:
    for round_ in (3, 4):
        save_checkpoint(tmp_path, round_, {"round": round_})
    (tmp_path / "round-0000004.tensors").write_bytes(bombs(tmp_path / "executed")[-1])
    said: list[str] = []
    found = load_newest(tmp_path, said.append)
    assert found is not None and found[0] == 3 and "round-0000004" in said[0]
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("name", ["request.json", "ca.pem", "cert.pem", "invitation.json", "crl.pem"])
def test_a_file_for_certificates_that_would_fill_the_memory_or_never_end_is_not_read(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "certs"
    certs.init(folder, "test")
    certs.issue_client(folder, "site-1", None)
    site = folder / "site-1"

    def read() -> None:
        if name == "request.json":
            enrol(folder, site / name)
        invitation = certs.read_invitation(site)
        certs.revoked_serials(site / "crl.pem", invitation.pems().authority)

    if name != "request.json":
        read()
    (site / name).unlink(missing_ok=True)
    (site / name).touch()
    os.truncate(site / name, 1 << 43)  # sparse: it takes no space
    with pytest.raises(ConfigError, match=r"larger than 4,194,304 bytes"):
        read()
    (site / name).unlink()
    os.mkfifo(site / name)
    with pytest.raises(ConfigError, match="a pipe or a device"):
        read()
