"""The command line: mistakes end in one message, exit 2 and nothing written; failures in exit 1 with a reason kept."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import fedal as package
from commands import COMMAND, TINY, Answer, fedal
from e2e.lives import ForkServer, outcome
from fedal.data import describe
from fedal.errors import ConfigError, FedalError


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh current directory, where own modules are found, and no data sets."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.syspath_prepend(tmp_path / "here")
    monkeypatch.setenv("FEDAL_DATA", str(tmp_path / "data"))
    return tmp_path / "here"


@pytest.fixture
def own_module(empty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    names = []

    def write(name: str, text: str) -> None:
        names.append(name)
        (empty_folder / f"{name}.py").write_text(textwrap.dedent(text))

    yield write
    for name in names:
        sys.modules.pop(name, None)


def refused(*words: object, naming: str | tuple[str, ...], code: int = 2, lines: int = 1) -> Answer:
    """Runs `fedal run ...`, which must end with one message and leave the current directory as it was."""
    before = sorted(Path().rglob("*"))
    answer = fedal("run", *words, "--out", "runs/a")
    assert answer.code == code, answer
    assert len(answer.err.splitlines()) == lines, answer.err
    assert all(line.startswith("error: ") for line in answer.err.splitlines()), answer.err
    for part in (naming,) if isinstance(naming, str) else naming:
        assert part in answer.err
    assert answer.out == ""
    after = [path for path in sorted(Path().rglob("*")) if "__pycache__" not in path.parts]
    assert after == before, "something was written"
    return answer


# before the start: exit 2, one clear message, nothing written


@pytest.mark.parametrize(
    ("words", "naming"),
    [
        (["--method", "fedall"], 'Did you mean "fedal"?'),
        (["--dataset", "digit"], 'Did you mean "digits"?'),
        (["--set", "learning_rate=1"], "Did you mean lr?"),
        (["--set", "tao=3"], "Did you mean tau?"),
        (["--alpha", "0"], "alpha = 0"),
        (["--alpha=-1"], "alpha = -1"),
        (["--set", "tau=0"], "tau = 0"),
        (["--set", "lr=nan"], "lr = nan"),
        (["--iterations", "10", "--rounds", "2"], "give one of them"),
        (["--clients", "1"], "needs at least 2"),
        (["--set", "public_size=1437"], "digits has 1437 training samples"),
        (["--set", "public_size=9999"], "Try a smaller public_size"),
        (["--set", "public_size=31"], "fewer than batch_size = 32"),
        (["--clients", "1138"], "1138 clients and only 1137 samples"),
        (["--clients", "140", "--partition", "iid", "--set", "min_samples=9"], '"client-017" gets 8 samples'),
        (["--partition", "by-user"], "does not say"),
        (["--models", "mlp-smal"], "Did you mean mlp-small?"),
        (["--models", "lenet5"], 'model "lenet5" takes images of 28x28 or 32x32'),
        (["--dataset", "mnist"], "Type: fedal data fetch mnist"),
        (["--data", "nowhere.npz"], "nowhere.npz: there is no such file"),
        (["--config", "nowhere.toml"], "nowhere.toml: cannot be read"),
        (["--set", "device=tpu9"], "device = 'tpu9' cannot be used here"),
        (["--set", "device=meta"], "have shapes and no numbers, so nothing can be learned. Expected is a device that"),
        (["--set", "clients=[{name='a'}, {name='a'}]"], 'the name "a" is used 2 times'),
        (["--method", "nothing_here:METHOD"], "importing nothing_here failed"),
        (["--models", "nothing_here:Net"], "importing nothing_here failed"),
        (["--set", "lr"], "expected key=value"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_answered_before_anything_is_written(words: list[str], naming: str) -> None:
    refused(*words, naming=naming)


def test_several_mistakes_are_answered_together() -> None:
    answer = refused(
        "--method", "fedall", "--dataset", "digit", "--alpha", 0, "--set", "lr=nan",
        naming=('"fedal"', '"digits"', "alpha = 0", "lr = nan"), lines=4,
    )  # fmt: skip
    assert answer.err.count("error: ") == 4


def test_a_file_that_is_not_toml_is_named() -> None:
    Path("mine.toml").write_text('method = "fedal\n')
    refused("--config", "mine.toml", naming="mine.toml: is not valid TOML: ")


def test_an_unknown_key_in_a_file_names_the_file_and_the_nearest_key() -> None:
    Path("mine.toml").write_text("evaluate_every = 5\n")
    refused("--config", "mine.toml", naming="mine.toml, evaluate_every: no such setting, and no option of fedal. Did")


def test_a_model_of_wrong_width_is_named_before_training(own_module: Callable[[str, str], None]) -> None:
    own_module(
        "narrow_nets",
        """
        from torch import nn
        def nine(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 9))
        """,
    )
    text = "clients = [{ name = 'north', model = 'mlp-small' }, { name = 'south', model = 'narrow_nets:nine' }]\n"
    Path("mine.toml").write_text(text)
    shown = ('"narrow_nets:nine of south"', "(2, 9)", "expected (2, 10)", "10 classes")
    refused("--config", "mine.toml", naming=shown)


def test_public_and_private_samples_of_different_shape_are_refused() -> None:
    rng = np.random.default_rng(0)
    np.savez("mine.npz", x=rng.random((200, 1, 8, 8), np.float32), y=np.arange(200) % 4)
    np.savez("public.npz", x=rng.random((64, 1, 6, 6), np.float32))
    shown = ("public samples have shape (1, 6, 6)", "private ones (1, 8, 8)")
    refused("--data", "mine.npz", "--public", "public.npz", "--clients", 2, naming=shown)


def test_an_own_file_cut_short_is_refused() -> None:
    np.savez("mine.npz", x=np.zeros((200, 4), np.float32), y=np.arange(200) % 4)
    whole = Path("mine.npz").read_bytes()
    Path("mine.npz").write_bytes(whole[: len(whole) // 2])
    refused("--data", "mine.npz", "--clients", 2, naming="mine.npz: not a complete .npz file")


@pytest.mark.parametrize(("missing_bytes", "naming"), [(0, "wrong checksum"), (1, "wrong size")])
def test_a_data_file_that_is_not_the_published_one_is_refused(tmp_path: Path, missing_bytes: int, naming: str) -> None:
    root = tmp_path / "data" / "mnist"
    root.mkdir(parents=True)
    for file in describe("mnist").layout_at(root).expected:
        with open(root / file.path, "wb") as made:
            made.truncate(file.size_bytes - missing_bytes)  # type: ignore[union-attr, operator]
    shown = ("train-images-idx3-ubyte", naming, "expected", "Type: fedal data fetch mnist")
    refused("--dataset", "mnist", naming=shown)


def test_black_box_is_computed_and_required(own_module: Callable[[str, str], None]) -> None:
    own_module(
        "sends_weights",
        """
        from dataclasses import dataclass
        from fedal.messages import Leak, Message
        from fedal.methods.base import ClientLogic, Method, MethodOptions

        @dataclass(frozen=True)
        class Weights(Message):
            leak = Leak.PARAMETERS

        METHOD = Method("open-book", "sends its weights", MethodOptions, ClientLogic, up=(Weights,))
        """,
    )
    words = ["--method", "sends_weights:METHOD", "--require", "black-box"]
    refused(*words, naming=("require = black-box: open-book sends model parameters", "fedal"))
    package.methods.register(__import__("sends_weights").METHOD)
    try:
        refused("--method", "open-book", "--require", "black-box", naming="open-book sends model parameters")
    finally:
        package.methods._own.pop("open-book")


@pytest.mark.parametrize("kind", ["file", "folder of a file", "folder with something else"])
def test_an_out_that_cannot_be_a_run_folder_is_refused(kind: str) -> None:
    Path("notes.txt").write_text("mine")
    out = {"file": "notes.txt", "folder of a file": "notes.txt/a", "folder with something else": "."}[kind]
    answer = fedal("run", *TINY, "--out", out)
    assert answer.code == 2
    assert answer.err.startswith("error: ") and len(answer.err.splitlines()) == 1
    assert [path.name for path in Path().iterdir()] == ["notes.txt"]


def test_a_word_typer_does_not_know_ends_with_two() -> None:
    assert fedal("run", "--metod", "fedal").code == 2
    assert fedal("rum").code == 2
    assert fedal("resume", "nowhere").err.startswith("error: no run in nowhere")


def test_lists_are_printed() -> None:
    for words, shown in [
        (["methods"], ["local", "fedmd", "fedmd-lf", "fedal", "outputs on public", "1,280 B/iteration"]),
        (["datasets"], ["digits", "fedal data fetch mnist"]),
        (["models"], ["mlp-small", "wrn-16-1"]),
    ]:
        answer = fedal(*words)
        assert answer.code == 0
        assert all(word in answer.out for word in shown), answer.out


# a run, and what stands in its way


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
    from fedal.experiments.run import Listener

    path = tmp_path_factory.mktemp("interrupted") / "run"
    done: list[int] = []
    listener = Listener(advanced=lambda now, total: done.append(now), should_stop=lambda: done[-1] >= 14)
    settings = dict(clients=3, models=["mlp-small", "cnn-small-bn"], rounds=12, tau=2, batch_size=8)
    with pytest.raises(FedalError, match="stopped after iteration 14"):
        package.run(
            package.Config(**settings, checkpoint_every=1, eval_every=4, eval_samples=50), path, listener=listener
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


def test_an_interrupted_run_resumes_to_the_same_bits(interrupted: Path, finished: Path) -> None:
    shutil.copytree(interrupted, "copy")
    assert not package.load_run("copy").is_complete
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
        lambda folder: _change_one_byte(_newest(folder, ".safetensors")),
        lambda folder: _change_one_byte(_newest(folder, ".json")),
        lambda folder: os.truncate(_newest(folder, ".safetensors"), 1000),
        lambda folder: os.truncate(_newest(folder, ".json"), 100),
        lambda folder: os.truncate(_newest(folder, ".json"), 0),
        lambda folder: _newest(folder, ".safetensors").unlink(),
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
    assert answer.err.startswith("warning: copy/checkpoints/round-0000007") and "the one before it" in answer.err
    assert outcome(folder) == outcome(finished)


def test_without_a_sound_checkpoint_a_run_is_refused_and_left_as_it_is(interrupted: Path) -> None:
    shutil.copytree(interrupted, "copy")
    records = Path("copy/metrics.jsonl").read_bytes()
    for path in Path("copy/checkpoints").glob("*.safetensors"):
        _change_one_byte(path)
    answer = fedal("resume", "copy")
    assert answer.code == 2
    assert "error: copy/checkpoints: none of the 2 checkpoints is sound" in answer.err
    assert Path("copy/metrics.jsonl").read_bytes() == records


def test_records_that_lost_rows_are_refused(interrupted: Path) -> None:
    shutil.copytree(interrupted, "copy")
    os.truncate("copy/metrics.jsonl", 10)
    answer = fedal("resume", "copy")
    assert answer.code == 2
    assert "error: copy/metrics.jsonl has 10 bytes" in answer.err


def test_a_run_on_other_data_than_it_began_with_is_refused() -> None:
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
        (8, 'client "frail", round 2, exchange 0: the gradient of cross_entropy is not finite'),
        (10, 'round 2, exchange 0: Outputs.values from client "frail" holds numbers that are not finite'),
    ],
)
def test_a_loss_that_is_not_finite_names_client_round_and_term_and_the_last_checkpoint_stands(
    own_module: Callable[[str, str], None], passes: int, naming: str
) -> None:
    own_module(
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
        'clients = [{ name = "sound", model = "mlp-small" }, { name = "frail", '
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


def test_a_step_size_that_is_far_too_large_stops_the_run_with_a_hint() -> None:
    answer = fedal("run", *TINY, "--set", "lr=1e30", "--out", "a")
    assert answer.code == 1
    assert 'error: client "client-00", round 0, ' in answer.err and "smaller lr" in answer.err


def test_a_model_that_fails_on_its_way_ends_in_one_message(own_module: Callable[[str, str], None]) -> None:
    own_module(
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


def test_a_full_disk_while_saving_keeps_the_last_checkpoint_and_resume_gives_the_same_bits(finished: Path) -> None:
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
def trap(own_module: Callable[[str, str], None]) -> Path:
    """A module that leaves a trace when it is imported, and holds a method and a model."""
    own_module(
        "trap_module",
        """
        from pathlib import Path
        Path("sprung").touch()
        from torch import nn
        from fedal.methods.local import METHOD
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


# in processes of their own: signals, locks, speed


def _started(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen([*COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _wait_for(happened: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 120
    while not happened():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.01)


ENDLESS = (*(word if word != "12" else "100000" for word in LONGER), "--out", "a")


def test_ctrl_c_finishes_the_round_and_saves_and_resume_gives_the_same_bits_and_nobody_else_may_work_there() -> None:
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


def test_a_second_ctrl_c_stops_at_once(own_module: Callable[[str, str], None]) -> None:
    own_module(
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


def test_help_and_mistakes_do_not_wait_for_torch() -> None:
    code = "import sys; sys.argv = ['fedal', *sys.argv[1:]]; import fedal.cli\ntry: fedal.cli.main()\n"
    code += "except SystemExit: pass\nprint('torch' in sys.modules)"
    for words in (["--help"], ["run", "--help"], ["run", "--method", "fedall", "--set", "tau=0"], ["resume", "no"]):
        shown = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
        assert shown.stdout.splitlines()[-1] == "False", words


def test_a_mistake_in_a_real_process_ends_with_two_and_one_line() -> None:
    answer = subprocess.run([*COMMAND, "run", "--alpha", "0", "--out", "a"], capture_output=True, text=True)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr == "error: alpha = 0.0: input should be greater than 0.\n"
    assert not Path("a").exists()
