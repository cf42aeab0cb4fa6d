"""A plan.toml, such as that of docs/results, as studies, arms and jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from fedal.campaigns.job import Job
from fedal.config import Config, load_config, read_toml
from fedal.errors import ConfigError

MeasuredOn = Literal["test", "validation"]
ROOT = Path(__file__).parent.parent
PAGE_FOLDER = ROOT / "docs" / "results"
RUNS = ROOT / "runs" / "results"


@dataclass(frozen=True)
class Arm:
    """A variant: a name, and the settings it adds to the study's config."""

    name: str
    settings: Mapping[str, Any]  # including `method`

    @property
    def words(self) -> list[str]:
        """The options to add to `fedal run --config FILE`."""
        options = [(key, value) for key, value in self.settings.items() if key != "method"]
        return ["--method", self.settings["method"], *(word for o in options for word in ("--set", f"{o[0]}={o[1]}"))]


@dataclass(frozen=True)
class Study:
    """One config, run with several arms and seeds: one table of the page."""

    name: str
    title: str
    config_file: Path
    seeds: tuple[int, ...]
    arms: tuple[Arm, ...]
    measured_on: MeasuredOn = "test"  # what arms are judged by: a search must not look at the test set

    @property
    def measure(self) -> str:
        return f"{self.measured_on}_accuracy"

    def config(self, arm: Arm, seed: int) -> Config:
        return load_config(self.config_file, {**arm.settings, "seed": seed})

    def jobs(self, runs: Path) -> Iterator[Job]:
        """All arms of one seed before the next seed, so that every arm has one run before any has two."""
        for seed in self.seeds:
            for arm in self.arms:
                config = self.config(arm, seed).with_(workers=1)  # one core per run
                yield Job(arm.name, seed, config, runs / self.name / arm.name / f"seed-{seed}")


def result_path(folder: Path, study: Study, arm: str, seed: int) -> Path:
    """The small result file of a finished run, in the folder of the plan."""
    return folder / "data" / study.name / arm / f"seed-{seed}.json"


@dataclass(frozen=True)
class Question:
    """A question and the differences that answer it: first minus second of each pair of arms."""

    text: str
    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, "FedAL beats FedMD", which a study confirms if the first arm is higher than the second."""

    text: str
    pair: tuple[str, str]


@dataclass(frozen=True)
class ResultsPlan:
    """All studies, in the order in which they run, the questions about them, and the claims that each study tests."""

    studies: tuple[Study, ...]
    questions: tuple[Question, ...]
    claims: tuple[Claim, ...] = ()

    @property
    def arm_names(self) -> list[str]:
        """All arms, those of the smallest studies first, so that every curve has a colour of its own in all figures."""
        by_size = sorted(self.studies, key=lambda study: len(study.arms))
        return list(dict.fromkeys(arm.name for study in by_size for arm in study.arms))

    def only(self, names: list[str]) -> ResultsPlan:
        """The named studies, in that order, or all if none is named."""
        known = {study.name: study for study in self.studies}
        unknown = [name for name in names if name not in known]
        if unknown:
            raise ConfigError(f'there is no study "{unknown[0]}". There are: {", ".join(known)}.')
        return replace(self, studies=tuple(known[name] for name in names)) if names else self


def read_plan(folder: Path = PAGE_FOLDER) -> ResultsPlan:
    """Reads the folder's plan.toml; the config of a study is configs/NAME.toml next to it, unless it names another."""
    content = read_toml(folder / "plan.toml")
    settings, measured_on = content["arms"], content.get("measured_on", "test")
    if measured_on not in get_args(MeasuredOn):
        raise ConfigError(f'{folder / "plan.toml"}: measured_on = "{measured_on}": expected test or validation.')
    studies = tuple(
        Study(
            study["name"],
            study["title"],
            folder / study.get("config", f"configs/{study['name']}.toml"),
            tuple(study["seeds"]),
            tuple(Arm(name, settings.get(name, {"method": name})) for name in study["arms"]),
            measured_on,
        )
        for study in content["studies"]
    )
    questions = tuple(Question(q["text"], tuple((a, b) for a, b in q["pairs"])) for q in content["questions"])
    claims = tuple(Claim(claim["text"], (claim["pair"][0], claim["pair"][1])) for claim in content.get("claims", []))
    return ResultsPlan(studies, questions, claims)
