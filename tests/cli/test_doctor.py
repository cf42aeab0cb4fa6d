"""`fedal doctor`, `fedal settings`, `fedal --version` and what the shell completes."""

from __future__ import annotations

import os
import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest

from commands import COMMAND, fedal
from fedal import methods
from fedal.cli import doctor
from fedal.config import Config
from fedal.config.described import describe_settings
from fedal.facts import facts_of
from fedal.installation import Requirement
from fedal.simulate import self_test as module
from fedal.simulate.self_test import SelfTestError, self_test

pytestmark = pytest.mark.usefixtures("empty_folder")


def test_the_doctor_finds_a_sound_machine_sound_and_leaves_nothing_behind() -> None:
    answer = fedal("doctor")
    assert answer.code == 0, answer
    for shown in ("torch", "CPU capability", "kernels", "cores", "memory", "tensorboard", "digits", "bit for bit"):
        assert shown in answer.out, shown
    assert "fedal data fetch mnist" in answer.out
    assert answer.out.splitlines()[-1] == "fedal works on this machine."
    assert list(Path().iterdir()) == []


def test_the_doctor_can_leave_the_self_test_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "self_test", lambda folder: pytest.fail("it was not left out"))
    answer = fedal("doctor", "--no-self-test")
    assert answer.code == 0 and "self-test was left out" in answer.out


def test_missing_extras_are_named_with_what_to_type_and_are_no_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [Requirement("numpy", "1", "", "2"), Requirement("jax", "0.5", "jax", None)]
    monkeypatch.setattr(doctor, "requirements", lambda: found)
    answer = fedal("doctor", "--no-self-test")
    assert answer.code == 0 and "pip install 'fedal[jax]'" in answer.out


def test_a_package_that_is_too_old_ends_with_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "requirements", lambda: [Requirement("numpy", "1.26", "", "1.20")])
    answer = fedal("doctor")
    assert answer.code == 1
    assert "problem: numpy: 1.20 is too old: needs 1.26 or newer" in answer.out and "fedal works" not in answer.out


def test_a_resume_with_other_bits_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    resume = module.resume

    def differing(path: Path) -> object:
        run = resume(path)
        weights = run.folder.models / "client-01.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1] + b"?")
        return run

    monkeypatch.setattr(module, "resume", differing)
    with pytest.raises(SelfTestError, match="different weights at client-01"):
        self_test(tmp_path)
    answer = fedal("doctor")
    assert answer.code == 1 and "problem: self-test: a resumed run" in answer.out


# settings


def test_every_setting_is_listed_with_its_facts() -> None:
    rows = {row.name: row for row in describe_settings()}
    facts = facts_of(Config)
    assert rows.keys() == facts.keys() - {"options"}
    for name, row in rows.items():
        assert (row.changes, row.sites) == (facts[name].changes, "yes" if facts[name].sites else "no")
        assert row.meaning and row.default
    assert (rows["lr"].default, rows["fused"].default, rows["partition"].default) == ("0.001", "true", "-")
    answer = fedal("settings")
    assert answer.code == 0 and all(name in answer.out for name in rows)


def test_named_settings_and_options_of_a_method_are_shown_alone() -> None:
    shown = fedal("settings", "lr", "discriminator_lr").out
    assert "step size eta_l" in shown and "discriminator_lr" in shown and "batch_size" not in shown
    of_method = fedal("settings", "--method", "fedal").out
    assert all(name in of_method for name in methods.get("fedal").options.model_fields)
    assert "batch_size" not in of_method


def test_an_option_in_which_methods_differ_is_shown_for_each() -> None:
    shown = fedal("settings", "temperature").out
    assert "temperature (fccl+)" in shown and "temperature (fedmd," in shown
    assert "(fccl+)" not in fedal("settings", "temperature", "--method", "fccl+").out


def test_a_setting_that_does_not_exist_is_answered_with_the_nearest() -> None:
    answer = fedal("settings", "learning_rate")
    assert answer.code == 2 and "Did you mean lr?" in answer.err
    assert 'Did you mean "fedal"?' in fedal("settings", "--method", "fedall").err


# version and completion


def test_the_version_is_printed() -> None:
    answer = fedal("--version")
    assert (answer.code, answer.out) == (0, f"fedal {version('fedal')}\n")


@pytest.mark.processes
@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("fedal do", {"doctor"}),
        ("fedal run --method fedm", {"fedmd", "fedmd-lf"}),
        ("fedal run --dataset mn", {"mnist"}),
        ("fedal compare --methods local,fedp", {"local,fedproto", "local,fedproto-public"}),
        ("fedal run --models auto,wrn-16", {"auto,wrn-16-1"}),
        ("fedal run --partition by", {"by-user"}),
        ("fedal settings eval_a", {"eval_after_local"}),
    ],
)
def test_the_shell_completes(typed: str, offered: set[str]) -> None:
    asked = {"_FEDAL_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1)}
    answer = subprocess.run(COMMAND, env=os.environ | asked, capture_output=True, text=True, check=True)
    assert set(answer.stdout.split()) == offered
