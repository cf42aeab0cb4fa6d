"""The files around the code: workflows, hooks, lock file, citation and what git ignores agree with the project."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import fedal
from commands import fedal as command
from lock import locked
from lowest import NOT_LOWERED, ONLY_FOR_WRITING_CODE, lowest, read_project, requirements
from optional import leave_out

yaml = pytest.importorskip("yaml", reason="PyYAML comes with Optuna and Ray: fedal[tune]")

ROOT = Path(__file__).parent.parent
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z]+):", MAKEFILE, re.MULTILINE))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def jobs(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]
    return found


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in jobs(path).values() for step in job["steps"]]


def commands(path: Path) -> list[str]:
    return [line.strip() for step in steps(path) for line in step.get("run", "").splitlines()]


def test_there_is_a_quick_workflow_and_a_full_one() -> None:
    assert [path.name for path in WORKFLOWS] == ["full.yml", "quick.yml"]
    full, quick = (" ".join(commands(path)) for path in WORKFLOWS)
    assert "make quick" in quick
    assert all(word in full for word in ("make check", "make lowest", "make wheel", "fedal doctor", "fedal run"))
    versions = jobs(WORKFLOWS[0])["check"]["strategy"]["matrix"]["python"]
    assert versions == ["3.11", "3.12", "3.13"]
    named = {line.rpartition(":: ")[2] for line in read_project()["classifiers"] if ":: 3." in line}
    assert named == set(versions)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_every_target_and_file_that_a_workflow_names_exists(path: Path) -> None:
    text = "\n".join(commands(path))
    assert set(re.findall(r"\bmake ([a-z-]+)", text)) <= TARGETS
    for name in [*re.findall(r"-c (\S+)", text), *_cached(path)]:
        assert (ROOT / name).is_file(), name


def _cached(path: Path) -> list[str]:
    return [name for step in steps(path) for name in step.get("with", {}).get("cache-dependency-path", "").split()]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_the_commands_of_fedal_that_a_workflow_runs_exist(path: Path) -> None:
    named = {line.rpartition("/fedal ")[2].split()[0] for line in commands(path) if "/fedal " in line}
    assert all(command(name, "--help").code == 0 for name in named)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_may_read_only_and_pin_their_actions(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert workflow["permissions"] == {"contents": "read"}
    assert workflow["concurrency"]["cancel-in-progress"] is True
    assert "download.pytorch.org/whl/cpu" in workflow["env"]["PIP_EXTRA_INDEX_URL"]
    assert all("timeout-minutes" in job for job in workflow["jobs"].values())
    for action in [step["uses"] for step in steps(path) if "uses" in step]:
        assert re.search(r"@(v\d+\.\d+\.\d+|[0-9a-f]{40})$", action), action


def test_the_hooks_before_a_commit_need_no_network() -> None:
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    assert repository["repo"] == "local"
    assert [hook["id"] for hook in repository["hooks"]] == ["ruff-format", "ruff-check", "mypy"]
    assert all(hook["language"] == "system" and ".venv/bin/" in hook["entry"] for hook in repository["hooks"])


def test_the_citation_names_this_version_and_the_paper() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == fedal.__version__ and citation["license"] == read_project()["license"]
    paper = citation["preferred-citation"]
    assert [author["family-names"] for author in paper["authors"]] == ["Han", "Shi", "Huang"]
    assert paper["url"].endswith("2311.16584")


# versions


def test_the_lowest_versions_are_those_of_the_project() -> None:
    project = {
        "name": "fedal",
        "dependencies": ["torch>=2.6", "numpy>=1.26"],
        "optional-dependencies": {"dev": ["fedal[report]", "ruff>=0.9", "scipy-stubs", "pytest>=8"]},
    }
    assert lowest(project) == {"numpy": "1.26", "pytest": "8"}


def test_every_dependency_has_a_lower_bound_that_can_be_tested() -> None:
    found = lowest(read_project())
    stubs = ("scipy-stubs", "types-requests", "types-protobuf", "grpc-stubs")
    for requirement in requirements(read_project()):
        name = re.split(r"[><=\[]", requirement)[0]
        assert name in (*found, *NOT_LOWERED, *ONLY_FOR_WRITING_CODE, *stubs), requirement


def test_the_lowest_versions_are_tested_with_every_extra() -> None:
    match = re.search(r"^lowest:.*?-e '\.\[([a-z,]+)\]'", MAKEFILE, re.MULTILINE | re.DOTALL)
    assert match is not None
    assert set(match[1].split(",")) == read_project()["optional-dependencies"].keys() - {"dev"}


def test_the_lock_file_holds_exact_versions_and_nothing_of_a_machine() -> None:
    lines = (ROOT / "requirements-dev.lock").read_text(encoding="utf-8").splitlines()
    pinned = [line for line in lines if not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]*", line) for line in pinned)
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert {line for line in constraints if not line.startswith("#")} <= set(pinned)
    names = {line.partition("==")[0] for line in pinned}
    needed = {re.split(r"[><=\[]", each)[0] for each in requirements(read_project())}
    assert needed <= names, needed - names


def test_a_lock_has_normal_names_and_no_local_versions() -> None:
    text = locked({"torch": "2.13.0+cpu", "Typing_Extensions": "4.16.0", "fedal": "0.1.0", "pip": "23.2"})
    assert text.splitlines()[2:] == ["torch==2.13.0", "typing-extensions==4.16.0"]


# what git ignores

WRITTEN_BY_A_DEPLOYMENT = [
    "certs/ca.key", "certs/server/key.pem", "certs/client-00/key.pem", "certs/site-1.token", "sites/client-00.npz",
    "trained/client-00.safetensors", "federation/metrics.jsonl", "client-00-state/key.pem", "site-1.token",
    "site-1/key.pem", "request.json", "examples/certs/ca.key",
]  # fmt: skip
WRITTEN_BY_MAKE = [
    ".venv-lowest/pyvenv.cfg",
    "build/lib/a.py",
    "dist/fedal-0.1.0.tar.gz",
    "fedal-0.1.0-py3-none-any.whl",
]


@pytest.mark.processes
def test_git_ignores_keys_states_and_what_is_built_and_nothing_that_is_tracked() -> None:
    if not (ROOT / ".git").exists():
        leave_out("not a clone: git has nothing to ignore")
    wanted = [*WRITTEN_BY_A_DEPLOYMENT, *WRITTEN_BY_MAKE]
    ignored = _git("check-ignore", "--no-index", *wanted).splitlines()
    assert ignored == wanted
    tracked = [name for name in _git("ls-files").splitlines() if name.startswith(("src", "tests", "docs", "examples"))]
    assert not _git("check-ignore", "--no-index", *tracked)


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False).stdout


# a wheel, as a user gets it


@pytest.mark.soak
@pytest.mark.processes
@pytest.mark.timeout(1800)
def test_the_wheel_works_in_an_empty_environment(tmp_path: Path) -> None:
    def run(*words: object) -> str:
        done = subprocess.run([*map(str, words)], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    pip = ("-m", "pip", "--quiet", "--disable-pip-version-check")
    run(sys.executable, *pip, "wheel", "--no-deps", "--wheel-dir", tmp_path / "dist", ROOT)
    run(sys.executable, "-m", "venv", tmp_path / "empty")
    (wheel,) = (tmp_path / "dist").glob("fedal-*.whl")
    python = tmp_path / "empty" / "bin" / "python"
    run(python, *pip, "install", "--no-compile", "-c", ROOT / "constraints.txt", wheel)
    program = python.with_name("fedal")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert run(program, "--version").split() == ["fedal", project["version"]]
    assert "fedal works on this machine." in run(program, "doctor")
    assert "final test accuracy" in run(program, "run", "--iterations", 20, "--out", "first")
