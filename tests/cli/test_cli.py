"""The command line: a mistake ends in one message and exit code 2, and nothing is written."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import fedal as package
from commands import COMMAND, TINY, Answer, fedal
from fedal.data import describe

pytestmark = pytest.mark.usefixtures("empty_folder")


def refused(*words: object, naming: str | tuple[str, ...], code: int = 2, lines: int = 1) -> Answer:
    """Runs `fedal run ...`, which must end with one message and leave the current directory unchanged."""
    before = _files()
    answer = fedal("run", *words, "--out", "runs/a")
    assert answer.code == code, answer
    assert len(answer.err.splitlines()) == lines, answer.err
    assert all(line.startswith("error: ") for line in answer.err.splitlines()), answer.err
    for part in (naming,) if isinstance(naming, str) else naming:
        assert part in answer.err
    assert answer.out == ""
    assert _files() == before, "something was written"
    return answer


def _files() -> list[Path]:
    """All files here, except Python's compiled modules."""
    return [path for path in sorted(Path().rglob("*")) if "__pycache__" not in path.parts]


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
        (["--data", "nowhere.npz"], "nowhere.npz: the file does not exist"),
        (["--config", "nowhere.toml"], "nowhere.toml: cannot be read"),
        (["--set", "device=tpu9"], "device = 'tpu9' cannot be used here"),
        (["--set", "device=meta"], "have shapes but no data, so nothing can be trained. Expected a device that"),
        (["--set", "clients=[{name='a'}, {name='a'}]"], 'the name "a" is used 2 times'),
        (["--method", "nothing_here:METHOD"], "importing nothing_here failed"),
        (["--models", "nothing_here:Net"], "importing nothing_here failed"),
        (["--set", "lr"], "expected key=value"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_reported_before_anything_is_written(words: list[str], naming: str) -> None:
    refused(*words, naming=naming)


def test_each_iteration_is_printed_once() -> None:
    answer = fedal("run", *TINY, "--set", "eval_every=2", "--out", "run")
    lines = [line for line in answer.out.splitlines() if "iteration " in line]
    shown = [int(line.split("iteration")[1].split()[0]) for line in lines]
    assert shown == sorted(set(shown)) and shown[-1] == 4
    rows = package.load_run("run").metrics
    assert [row["final"] for row in rows if row["iteration"] == 4 and row["phase"] == "after_global"] == [False, True]


def test_several_mistakes_are_reported_together() -> None:
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
    refused("--config", "mine.toml", naming="mine.toml, evaluate_every: not a setting, and not an option of fedal. Did")


def test_a_model_of_wrong_width_is_named_before_training(custom_module: Callable[[str, str], None]) -> None:
    custom_module(
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
    shown = ("public samples have shape (1, 6, 6)", "private samples (1, 8, 8)")
    refused("--data", "mine.npz", "--public", "public.npz", "--clients", 2, naming=shown)


def test_a_truncated_data_file_is_refused() -> None:
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


def test_black_box_is_computed_and_required(custom_module: Callable[[str, str], None]) -> None:
    custom_module(
        "sends_weights",
        """
        from dataclasses import dataclass
        from fedal.messages import Leak, Message
        from fedal.methods.client import ClientLogic
        from fedal.methods.method import Method
        from fedal.methods.options import MethodOptions

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
        package.methods._registered.pop("open-book")


@pytest.mark.parametrize("kind", ["file", "folder of a file", "folder with something else"])
def test_an_out_that_cannot_be_a_run_folder_is_refused(kind: str) -> None:
    Path("notes.txt").write_text("mine")
    out = {"file": "notes.txt", "folder of a file": "notes.txt/a", "folder with something else": "."}[kind]
    answer = fedal("run", *TINY, "--out", out)
    assert answer.code == 2
    assert answer.err.startswith("error: ") and len(answer.err.splitlines()) == 1
    assert [path.name for path in Path().iterdir()] == ["notes.txt"]


def test_an_unknown_word_exits_with_2() -> None:
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


@pytest.mark.processes
def test_help_and_mistakes_do_not_wait_for_torch() -> None:
    code = "import sys; sys.argv = ['fedal', *sys.argv[1:]]; import fedal.cli\ntry: fedal.cli.main()\n"
    code += "except SystemExit: pass\nprint('torch' in sys.modules)"
    for words in (["--help"], ["run", "--help"], ["run", "--method", "fedall", "--set", "tau=0"], ["resume", "no"]):
        shown = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
        assert shown.stdout.splitlines()[-1] == "False", words


@pytest.mark.processes
def test_a_mistake_in_a_real_process_exits_with_2_and_one_line() -> None:
    answer = subprocess.run([*COMMAND, "run", "--alpha", "0", "--out", "a"], capture_output=True, text=True)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr == "error: alpha = 0.0: input should be greater than 0.\n"
    assert not Path("a").exists()
