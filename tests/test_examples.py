"""Runs every example as a user would, in an empty folder."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from optional import needs

pytestmark = pytest.mark.processes

EXAMPLES = Path(__file__).parent.parent / "examples"


def run_example(name: str, folder: Path, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)], cwd=folder, env=os.environ | variables, capture_output=True, text=True,
        timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr, done.stderr
    return done.stdout


def test_custom_models_of_three_kinds_learn_together(tmp_path: Path) -> None:
    output = run_example("custom_model.py", tmp_path)
    accuracies = {line.split()[0]: float(line.split()[-1]) for line in output.splitlines()[:3]}
    assert accuracies.keys() == {"rows", "careful", "ready-made"}
    assert min(accuracies.values()) > 0.5
    assert "9610 trained weights" in output


def test_custom_data_produce_the_same_result_as_arrays_and_as_a_file(tmp_path: Path) -> None:
    lines = run_example("custom_data.py", tmp_path).splitlines()
    alone, together = (float(line.split("accuracy ")[1].split(",")[0]) for line in lines[1:3])
    assert together > alone
    assert lines[3].endswith(", the same")


def test_custom_method_runs_and_is_black_box(tmp_path: Path) -> None:
    lines = run_example("custom_method.py", tmp_path).splitlines()
    assert len(lines) == 3
    for line in lines:
        assert line.endswith("black-box: True")
        assert float(line.split("}: ")[1].split(",")[0]) > 0.4


def test_a_new_method_takes_under_60_lines() -> None:
    assert len((EXAMPLES / "custom_method.py").read_text(encoding="utf-8").splitlines()) < 60


def final_accuracies(output: str) -> dict[str, dict[str, float]]:
    """method -> client -> accuracy, from lines such as: fedal {'a': 0.9}"""
    lines = [line.split(" ", 1) for line in output.splitlines() if "{" in line]
    return {method: ast.literal_eval(table) for method, table in lines}


def better_together(output: str) -> bool:
    found = final_accuracies(output)
    return all(found["fedal"][client] > accuracy + 0.05 for client, accuracy in found["local"].items())


def test_a_hand_written_numpy_learner_joins_and_both_sides_gain(tmp_path: Path) -> None:
    output = run_example("custom_learner.py", tmp_path)
    assert final_accuracies(output)["fedal"].keys() == {"by-hand", "network"}
    assert better_together(output)


def test_a_custom_learner_takes_under_40_lines() -> None:
    assert len((EXAMPLES / "custom_learner.py").read_text(encoding="utf-8").splitlines()) < 40


def test_a_jax_client_joins_and_all_clients_gain(tmp_path: Path) -> None:
    needs("jax", "jax")
    needs("optax", "jax")
    output = run_example("jax_client.py", tmp_path)
    assert better_together(output)
    assert "norm of the trained hidden layer" in output


def test_scikit_learn_clients_join_and_all_clients_gain(tmp_path: Path) -> None:
    output = run_example("sklearn_client.py", tmp_path)
    assert better_together(output)
    assert "200 trees, saved as arrays" in output


STAND_IN = """
import json
calls = []
class Log:
    def log(self, row, step): calls.append([step, row])
    def finish(self, exit_code):
        with open("sent.json", "w") as file: json.dump([settings, calls, exit_code], file)
def init(**given):
    global settings
    settings = given
    return Log()
"""


def test_the_rows_of_a_run_reach_weights_and_biases(tmp_path: Path) -> None:
    (tmp_path / "wandb.py").write_text(STAND_IN)  # the real one needs an account
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    output = run_example("callback_wandb.py", tmp_path, PYTHONPATH=path)
    settings, calls, exit_code = json.loads((tmp_path / "sent.json").read_text())
    assert (settings["name"], settings["config"]["method"]) == ("fedal on digits, seed 0", "fedal")
    assert [step for step, row in calls if "after_global/test_accuracy" in row] == [0, 10, 20, 20]
    assert exit_code == 0 and "runs/wandb" in output


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_every_example_has_a_test(path: Path) -> None:
    assert f'"{path.name}"' in Path(__file__).read_text(encoding="utf-8")
