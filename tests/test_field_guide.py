"""The field guide runs every method once per seed, keeps a row of every run, and its page shows these rows."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
from studies.field_guide import (
    FOLDER,
    Cell,
    FieldGuide,
    GuideStudy,
    Outcome,
    read_field_guide,
    read_outcomes,
    write_outcomes,
)
from studies.field_guide_page import BEGIN, END, SITUATIONS, Line, field_guide_page, front, lines_of, write_field_guide

from fedal import methods
from fedal.errors import ConfigError

PLAN = """
[studies.tiny]
title = "Tiny digits"
seeds = [0]
best = 1
best_seeds = [1]

[choices.fedreg]
seeds = [5]
grid = { perturbation = [0.1], perturbation_steps = [1, 2] }
"""
TINY = """
dataset = "digits"
clients = 2
models = "same"
batch_size = 8
iterations = 2
tau = 2
eval_every = 2
eval_samples = 20
validation = 0.1
"""


def outcome(
    method: str, accuracy: float = 0.5, n_bytes: float = 10.0, seed: int = 0, validation: float = 0.5
) -> Outcome:
    return Outcome(method, "{}", seed, accuracy, 0.1, validation, n_bytes, 0.0, 4, 1.0, False, "0", "0")


def line(method: str, accuracy: float, n_bytes: float) -> Line:
    return Line(method, [outcome(method, accuracy, n_bytes)])


@pytest.fixture
def guide(tmp_path: Path) -> FieldGuide:
    (tmp_path / "configs").mkdir()
    (tmp_path / "plan.toml").write_text(PLAN)
    for name in ("tiny", "choices"):
        (tmp_path / "configs" / f"{name}.toml").write_text(TINY)
    (tmp_path / "README.md").write_text(f"# Guide\n\n{BEGIN}\n{END}\n")
    return read_field_guide(tmp_path)


def test_every_planned_run_has_a_valid_config_and_choices_have_seeds_of_their_own() -> None:
    guide = read_field_guide()
    for part in (*guide.studies.values(), *guide.choices.values()):
        assert all(guide.config(part, cell) for cell in part.cells([]))
    shown = {seed for study in guide.studies.values() for seed in (*study.seeds, *study.best_seeds)}
    assert all(shown.isdisjoint(choice.seeds) for choice in guide.choices.values())
    with pytest.raises(ConfigError, match=r"has no study 'minst'\. It has: .*mnist"):
        guide.named("minst")


def test_the_page_shows_what_the_files_say() -> None:
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert page.split(BEGIN)[1].split(END)[0].strip() == field_guide_page(read_field_guide())
    assert all((FOLDER / figure).exists() for figure in re.findall(r"\]\((figures/[^)]+)\)", page))


def test_every_method_ran_on_digits_with_three_seeds() -> None:
    guide = read_field_guide()
    lines = lines_of(guide, guide.studies["digits"])
    assert {line.name: len(line.outcomes) for line in lines} == dict.fromkeys(methods.MODULES, 3)


@pytest.mark.parametrize("name", ["fedreg", "fedzkt"])
def test_the_defaults_are_values_of_the_choice(name: str) -> None:
    """No test accuracy is in its file, and the default is in its grid."""
    guide = read_field_guide()
    assert all(math.isnan(each.accuracy) for each in read_outcomes(FOLDER, name))
    defaults = {key: methods.get(name).options.model_fields[key].default for key in guide.choices[name].grid}
    assert json.dumps(defaults) in {cell.options for cell in guide.choices[name].cells([])}


def test_every_situation_has_a_method_and_allows_what_it_says() -> None:
    allowed = {each.words: {name for name in methods.MODULES if each.allows(methods.get(name))} for each in SITUATIONS}
    assert all(names - {"local"} for names in allowed.values())
    first, second, *_ = allowed.values()
    assert "fedal" in first and "fccl" in first and not first & {"fedavg", "fedaux", "fd"}
    assert first - second >= {"fccl", "fedkt"}
    assert allowed["one exchange in the whole run"] == {"fedkt", "fedcvae"}


def test_the_front_has_the_methods_that_no_other_beats_in_both() -> None:
    lines = [line("fedmd", 0.9, 100), line("fd", 0.7, 1), line("fedal", 0.9, 200), line("fedavg", 0.95, 500)]
    assert [each.name for each in front(lines)] == ["fd", "fedmd", "fedavg"]


def test_only_the_best_on_validation_data_run_with_more_seeds() -> None:
    study = GuideStudy("mnist", "MNIST", (0,), best=1, best_seeds=(1,))
    outcomes = [outcome(name, accuracy=0.9) for name in methods.MODULES if name != "fd"]
    assert all(cell.seed == 0 for cell in study.cells(outcomes))
    outcomes.append(outcome("fd", accuracy=0.1, validation=0.6))
    assert [cell for cell in study.cells(outcomes) if cell.seed == 1] == [Cell("fd", "{}", 1)]


def test_a_tiny_guide_from_its_runs_to_its_page(guide: FieldGuide) -> None:
    done = list(guide.run("fedreg"))
    assert [json.loads(each.options)["perturbation_steps"] for each in done] == [1, 2]
    assert all(each.validation is not None and math.isnan(each.accuracy) for each in done)
    assert guide.missing("fedreg") == []
    write_outcomes(guide.folder, "tiny", [outcome(name) for name in methods.MODULES if name != "fd"])
    (first, second) = guide.run("tiny")  # what is missing, then the best one with another seed
    assert first.method == "fd" and second.seed == 1 and first.up_bytes > 0 and not math.isnan(first.accuracy)
    text = write_field_guide(guide).read_text(encoding="utf-8")
    assert f"| tiny | {len(methods.MODULES) + 1} | 0 |" in text and "[fd](../../methods/fd.md) (reconstruction)" in text
    assert (guide.folder / "figures/tiny.png").exists()
