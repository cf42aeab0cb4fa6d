"""Runs on the command line that are interrupted: damaged files, failures (exit 1, reason recorded), Ctrl-C."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import fedal as package
from commands import COMMAND, TINY, fedal
from e2e.lives import ForkServer, outcome
from fedal.errors import ConfigError, FedalError
from observers import StopAt

pytestmark = pytest.mark.usefixtures("empty_folder")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 rounds with a checkpoint after each, never interrupted."""
    path = tmp_path_factory.mktemp("finished") / "run"
    assert fedal("run", *LONGER, "--out", path).code == 0
    return path


LONGER = (
    "--clients", "3", "--models", "mlp-small,cnn-small-bn", "--rounds", "12", "--set", "tau=2", "--set", "batch_size=8",
    "--set", "checkpoint_every=1", "--set", "eval_every=4", "--set", "eval_samples=50",
)  # fmt: skip


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run, stopped after 7 rounds."""
    path = tmp_path_factory.mktemp("interrupted") / "run"
    settings = dict(clients=3, models=["mlp-small", "cnn-small-bn"], rounds=12, tau=2, batch_size=8)
    with pytest.raises(FedalError, match="stopped after iteration 14"):
        package.run(
            package.Config(**settings, checkpoint_every=1, eval_every=4, eval_samples=50), path, callbacks=[StopAt(14)]
        )
    return path


def test_a_run_prints_its_result_and_its_folder(finished: Path) -> None:
    answer = fedal("run", *TINY, "--out", "a")
    assert answer.code == 0
    assert "final test accuracy 0." in answer.out and "run folder: a" in answer.out
    assert fedal("run", *TINY, "--out", "b", "--quiet").out.count("\n") == 2


def test_a_folder_that_holds_a_run_is_not_touched_by_another(finished: Path) -> None:
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    answer = fedal("run", *TINY, "--out", finished)
    assert answer.code == 2
    assert f"error: {finished} holds another run. Continue it with `fedal resume {finished}`" in answer.err
    assert before == {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}


def test_a_resumed_run_is_bit_identical(interrupted: Path, finished: Path) -> None:
    shutil.copytree(interrupted, "copy")
    assert not package.load_run("copy").is_complete
    assert fedal("resume", "copy").code == 0
    assert outcome(Path("copy")) == outcome(finished)


@pytest.mark.parametrize(
    ("line", "edited", "named"),
    [
        ("lr = 0.001", "lr = 0.1", "lr = 0.1, in the checkpoint 0.001"),
        ("batch_size = 8", "", "batch_size = 32, in the checkpoint 8"),
        ('stacked = "auto"', "stacked = false", 'stacked = false, in the checkpoint "auto"'),
        ("eval_every = 4", "eval_every = 2", "eval_every = 2, in the checkpoint 4"),
        ("adversarial = 1.0", "adversarial = 0.5", "options.adversarial = 0.5, in the checkpoint 1.0"),
        ("clients = 3", "clients = 4", "clients = 4, in the checkpoint 3"),
    ],
)
def test_a_setting_that_changed_since_the_checkpoint_is_an_error_that_names_it(
    interrupted: Path, line: str, edited: str, named: str
) -> None:
    shutil.copytree(interrupted, "copy")
    config = Path("copy/config.toml")
    lines = config.read_text().splitlines()
    assert lines.count(line) == 1
    config.write_text("\n".join(edited if found == line else found for found in lines))
    before = {path: path.read_bytes() for path in Path("copy").rglob("*") if path.is_file()}
    for words in (["resume", "copy"], ["resume", "copy", "--iterations", "40"], ["analyse", "copy"]):
        answer = fedal(*words)
        assert answer.code == 2
        assert f"copy/config.toml has other settings than the run's checkpoint: {named}. A run keeps" in answer.err
        assert "Put the old value back, or start a new run" in answer.err
    assert before == {path: path.read_bytes() for path in Path("copy").rglob("*") if path.is_file()}


def test_settings_without_effect_may_change_and_the_plan_may_not_be_shorter_than_the_checkpoint(
    interrupted: Path, finished: Path
) -> None:
    shutil.copytree(interrupted, "copy")
    config = Path("copy/config.toml")
    text = config.read_text()
    config.write_text(text.replace("rounds = 12", "rounds = 3"))
    answer = fedal("resume", "copy")
    assert answer.code == 2
    assert "plans 6 iterations, but the run's checkpoint was saved after 14." in answer.err
    config.write_text(
        text.replace("workers = 0", "workers = 1").replace("checkpoint_every = 1", "checkpoint_every = 3")
    )
    assert fedal("resume", "copy").code == 0
    assert outcome(Path("copy")) == outcome(finished)


def _newest(folder: Path, suffix: str) -> Path:
    return max((folder / "checkpoints").glob(f"round-*{suffix}"))


def _change_one_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: _change_one_byte(_newest(folder, ".tensors")),
        lambda folder: _change_one_byte(_newest(folder, ".json")),
        lambda folder: os.truncate(_newest(folder, ".tensors"), 1000),
        lambda folder: os.truncate(_newest(folder, ".json"), 100),
        lambda folder: os.truncate(_newest(folder, ".json"), 0),
        lambda folder: _newest(folder, ".tensors").unlink(),
        lambda folder: _newest(folder, ".json").write_text("[]"),
    ],
    ids=["a bit of the tensors", "a bit of the rest", "cut tensors", "cut rest", "empty", "no tensors", "no object"],
)
def test_a_damaged_checkpoint_is_named_and_the_older_one_used(
    interrupted: Path, finished: Path, damage: Callable[[Path], None]
) -> None:
    folder = Path("copy")
    shutil.copytree(interrupted, folder)
    damage(folder)
    answer = fedal("resume", folder)
    assert answer.code == 0
    assert answer.err.startswith("warning: copy/checkpoints/round-0000007") and "the previous checkpoint" in answer.err
    assert outcome(folder) == outcome(finished)


def test_without_an_intact_checkpoint_a_run_is_refused_and_left_unchanged(interrupted: Path) -> None:
    shutil.copytree(interrupted, "copy")
    records = Path("copy/metrics.jsonl").read_bytes()
    for path in Path("copy/checkpoints").glob("*.tensors"):
        _change_one_byte(path)
    answer = fedal("resume", "copy")
    assert answer.code == 2
    assert "error: copy/checkpoints: all 2 checkpoints are damaged" in answer.err
    assert Path("copy/metrics.jsonl").read_bytes() == records


def test_records_that_lost_rows_are_refused(interrupted: Path) -> None:
    shutil.copytree(interrupted, "copy")
    os.truncate("copy/metrics.jsonl", 10)
    answer = fedal("resume", "copy")
    assert answer.code == 2
    assert "error: copy/metrics.jsonl has 10 bytes" in answer.err


def test_resuming_a_run_on_other_data_is_refused() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.random((300, 5), np.float32), np.arange(300) % 3
    np.savez("mine.npz", x=x, y=y)
    settings = ["--set", "public_size=40", "--models", "mlp-small"]
    assert fedal("run", *TINY, "--data", "mine.npz", *settings, "--out", "a").code == 0
    np.savez("mine.npz", x=x, y=(y + 1) % 3)
    answer = fedal("resume", "a", "--iterations", 8)
    assert answer.code == 2
    assert "was made for other training data" in answer.err
    assert package.load_run("a").is_complete, "a refused extension must not undo the finished run"
    np.savez("mine.npz", x=x, y=y)
    assert fedal("resume", "a", "--iterations", 8).code == 0


@pytest.mark.parametrize(
    ("passes", "naming"),
    [
        (8, 'client "frail", round 2, exchange 0: the gradient of cross_entropy has non-finite values'),
        (10, 'round 2, exchange 0: Outputs.values from client "frail" contains non-finite values'),
    ],
)
def test_a_non_finite_loss_names_client_round_and_term_and_keeps_the_last_checkpoint(
    custom_module: Callable[[str, str], None], passes: int, naming: str
) -> None:
    custom_module(
        "fragile_nets",
        f"""
        import torch
        from torch import nn

        class Breaks(nn.Module):
            def __init__(self):
                super().__init__()
                self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
                self.register_buffer("passes", torch.zeros(()))

            def forward(self, x):
                if self.training:
                    self.passes += 1
                return self.net(x) + (float("nan") if self.passes > {passes} else 0.0)
        """,
    )
    Path("mine.toml").write_text(
        'method = "fedmd"\nrounds = 6\ncheckpoint_every = 1\nbatch_size = 8\n'
        'clients = [{ name = "intact", model = "mlp-small" }, { name = "frail", '
        'model = "fragile_nets:Breaks" }]\n[options]\ntau = 2\n'
    )
    answer = fedal("run", "--config", "mine.toml", "--out", "a")
    assert answer.code == 1
    (line,) = answer.err.splitlines()
    assert line.startswith(f"error: {naming}")
    assert line.removeprefix("error: ") in json.loads(Path("a/failure.json").read_text())["error"]
    assert _newest(Path("a"), ".json").stem == "round-0000002"
    assert not Path("a/summary.json").exists() and not Path("a/models").exists()
    assert fedal("resume", "a", "--trust").err.splitlines() == [line]


def test_a_far_too_large_step_size_stops_the_run_with_a_hint() -> None:
    answer = fedal("run", *TINY, "--set", "lr=1e30", "--out", "a")
    assert answer.code == 1
    assert 'error: client "client-00' in answer.err and '", round 0, ' in answer.err and "smaller lr" in answer.err


def test_a_model_that_fails_during_training_causes_one_message(custom_module: Callable[[str, str], None]) -> None:
    custom_module(
        "picky_nets",
        """
        from torch import nn
        class SmallBatchesOnly(nn.Sequential):
            def forward(self, x):
                if len(x) > 8:
                    raise RuntimeError("eight at most")
                return super().forward(x)
        def make(): return SmallBatchesOnly(nn.Flatten(), nn.Linear(64, 10))
        """,
    )
    answer = fedal("run", *TINY, "--models", "picky_nets:make", "--out", "a")
    assert answer.code == 1
    (line,) = answer.err.splitlines()
    assert line.startswith("error: ") and "RuntimeError: eight at most" in line
    assert "eight at most" in json.loads(Path("a/failure.json").read_text())["traceback"]


SHAKY = """
import numpy as np
import torch
from fedal.methods.client import ClientLogic
from fedal.methods.method import Method
from fedal.methods.options import MethodOptions
from fedal.methods.server import ServerLogic
WHERE = "{where}"
def fail(where):
    if where == WHERE:
        np.linalg.inv(np.zeros((2, 2)))  # the innermost frames are NumPy's
class Client(ClientLogic):
    def __init__(self, setup):
        super().__init__(setup)
        fail("client's constructor")
    def round(self, t):
        self.local_training(t)
        fail("client")
        yield from ()
class Server(ServerLogic):
    def __init__(self, setup):
        super().__init__(setup)
        fail("server's constructor")
    def round(self, t, clients):
        fail("server")
        yield from ()
METHOD = Method("shaky", "fails", MethodOptions, Client, Server)
"""


@pytest.mark.parametrize(
    ("where", "named", "code"),
    [
        ("client", 'client "client-00", round 0, exchange 0: ', 1),
        ("server", "server, round 0, exchange 0: ", 1),
        ("client's constructor", 'client "client-00": creating its half of the method failed with ', 2),
        ("server's constructor", "the server: creating its half of the method failed with ", 2),
    ],
)
def test_an_error_in_a_custom_method_names_the_line_of_the_users_code(
    custom_module: Callable[[str, str], None], where: str, named: str, code: int
) -> None:
    custom_module("shaky_method", SHAKY.replace("{where}", where))
    answer = fedal("run", *TINY, "--method", "shaky_method:METHOD", "--out", "a")
    assert answer.code == code
    (line,) = answer.err.splitlines()
    assert line == f"error: {named}LinAlgError: Singular matrix (shaky_method.py, line 11, in fail)."
    if code == 1:
        told = json.loads(Path("a/failure.json").read_text())
        assert "shaky_method.py, line 11" in told["error"]
        assert "in fail" in told["traceback"] and "in round" in told["traceback"]


@pytest.mark.processes
def test_a_full_disk_while_saving_keeps_the_last_checkpoint_and_resume_is_bit_identical(finished: Path) -> None:
    folder = Path("a").absolute()
    with ForkServer() as server:
        life = server.command("run", *LONGER, "--out", str(folder), disk_full_at=5)
    assert life.code == 1
    (line,) = [line for line in life.error.splitlines() if not line.startswith("warning: ")]
    assert line.startswith("error: OSError: ") and "File too large" in line and "last checkpoint" in line
    assert _newest(folder, ".json").stem == "round-0000004"
    assert not list(folder.rglob(".tmp-*"))
    assert "File too large" in json.loads((folder / "failure.json").read_text())["error"]
    assert fedal("resume", folder).code == 0
    assert outcome(folder) == outcome(finished)
    assert not (folder / "failure.json").exists()


# code named in a run folder


@pytest.fixture
def trap(custom_module: Callable[[str, str], None]) -> Path:
    """A module that leaves a trace when it is imported, and holds a method and a model."""
    custom_module(
        "trap_module",
        """
        from pathlib import Path
        Path("sprung").touch()
        from torch import nn
        from fedal.methods.outputs.local import METHOD
        def net(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        """,
    )
    return Path("sprung").absolute()


@pytest.mark.parametrize(
    "setting",
    [
        'method = "trap_module:METHOD"',
        'models = "trap_module:net"',
        'models = "mlp-small,trap_module:net"',
        'models = ["mlp-small", "trap_module:net"]',
        'clients = [{ model = "trap_module:net" }, {}]',
        '[options]\nserver_model = "trap_module:net"',
    ],
)
def test_no_module_named_in_a_folder_is_imported_without_trust(trap: Path, setting: str) -> None:
    Path("local/seed-0").mkdir(parents=True)
    Path("local/seed-0/config.toml").write_text(f"rounds = 1\n{setting}\n")
    answer = fedal("resume", "local/seed-0")
    assert answer.code == 2
    assert "trap_module" in answer.err and "--trust" in answer.err
    with pytest.raises(ConfigError, match="trust=True"):
        package.load_run("local/seed-0")
    with pytest.raises(ConfigError, match="trust=True"):
        package.resume("local/seed-0")
    assert fedal("compare", "--methods", "local", "--seeds", 1, "--out", ".", "--rounds", 1).code == 2
    assert not trap.exists()
    assert "trap_module" not in sys.modules


def test_no_model_named_in_the_records_is_imported_without_trust(trap: Path, finished: Path) -> None:
    shutil.copytree(finished, "copy")
    environment = json.loads(Path("copy/environment.json").read_text())
    environment["clients"]["client-00"] = "trap_module:net"
    Path("copy/environment.json").write_text(json.dumps(environment))
    with pytest.raises(ConfigError, match="trust=True"):
        package.load_run("copy").model("client-00")
    assert not trap.exists()


def test_with_trust_the_module_is_imported(trap: Path) -> None:
    Path("a").mkdir()
    Path("a/config.toml").write_text('method = "trap_module:METHOD"\nrounds = 1\nclients = 1\nmodels = "mlp-small"\n')
    assert fedal("resume", "a", "--trust").code == 0
    assert trap.exists()
    assert package.load_run("a", trust=True).is_complete


# in separate processes: signals, locks, speed


def _started(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen([*COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _wait_for(happened: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 120
    while not happened():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.01)


ENDLESS = (*(word if word != "12" else "100000" for word in LONGER), "--out", "a")


@pytest.mark.processes
def test_ctrl_c_finishes_the_round_and_saves_the_folder_is_locked_and_resume_is_bit_identical() -> None:
    process = _started("run", *ENDLESS)
    _wait_for(lambda: Path("a/metrics.jsonl").exists() and Path("a/metrics.jsonl").stat().st_size > 0, process)
    second = fedal("resume", "a")
    assert second.code == 2
    assert "error: a is in use by another process" in second.err
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "finishing the round, then saving" in err and "Continue with `fedal resume a`" in err
    assert "Traceback" not in err and "error" not in err

    done = int(_newest(Path("a"), ".json").stem.removeprefix("round-"))
    assert f"stopped after iteration {2 * done}." in err
    assert not Path("a/failure.json").exists()
    config = Path("a/config.toml")
    config.write_text(config.read_text().replace("rounds = 100000", f"rounds = {done + 3}"))
    assert fedal("resume", "a").code == 0
    whole = [word if word != "12" else str(done + 3) for word in LONGER]
    assert fedal("run", *whole, "--out", "whole").code == 0
    assert outcome(Path("a")) == outcome(Path("whole"))


@pytest.mark.processes
def test_a_second_ctrl_c_stops_immediately(custom_module: Callable[[str, str], None]) -> None:
    custom_module(
        "slow_nets",
        """
        import time
        from pathlib import Path
        from torch import nn
        class Slow(nn.Sequential):
            def forward(self, x):
                if self.training and len(x) > 2:
                    Path("training").touch()
                    time.sleep(600)
                return super().forward(x)
        def make(): return Slow(nn.Flatten(), nn.Linear(64, 10))
        """,
    )
    process = _started("run", *TINY, "--models", "slow_nets:make", "--out", "a")
    _wait_for(Path("training").exists, process)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    while "finishing the round" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 130
