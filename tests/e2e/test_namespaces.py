"""The server and three sites in four network namespaces, with the script from the deployment page."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from commands import COMMAND

pytestmark = pytest.mark.processes

SCRIPT = Path(__file__).parents[2] / "deploy" / "four-namespaces.sh"


@pytest.mark.soak
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="network namespaces need root and iproute2")
def test_a_federation_in_four_network_namespaces_is_bit_identical_to_one_process() -> None:
    probe = subprocess.run(["ip", "netns", "add", "fedal-probe"], capture_output=True, text=True)
    if probe.returncode:
        pytest.skip(f"no network namespace can be made here: {probe.stderr.strip()}")
    subprocess.run(["ip", "netns", "del", "fedal-probe"], check=True)
    ended = subprocess.run([SCRIPT], env={**os.environ, "FEDAL": COMMAND[0]}, capture_output=True, text=True)
    print(f"\n{ended.stdout}")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("joined 10.77.0.1:7443") == 3
    assert ended.stdout.count(".safetensors: OK") == 3
