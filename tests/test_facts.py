"""Settings carry their facts: a new setting needs only one field with facts, and the facts are true."""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import typer
from pydantic import Field
from typer.testing import CliRunner

import fedal
from fedal import methods
from fedal.cli.options import GivenSettings, takes_settings
from fedal.config import Config
from fedal.facts import Changes, facts_of, sent_to_sites, setting, without_effect
from fedal.methods.client import ClientLogic
from fedal.methods.method import Method
from fedal.methods.options import MethodOptions
from fedal.report.groups import flat


def test_every_setting_and_every_option_of_a_method_has_facts() -> None:
    assert facts_of(Config).keys() == Config.model_fields.keys()
    for name in methods.MODULES:
        options = methods.get(name).options
        assert facts_of(options).keys() == options.model_fields.keys()


def test_a_setting_without_facts_is_found() -> None:
    class Bare(Config):
        bare: int = Field(3, description="does not state what it changes")

    with pytest.raises(TypeError, match=r"Bare\.bare has no facts"):
        facts_of(Bare)


def test_a_new_setting_must_state_whether_sites_get_it_and_what_it_changes() -> None:
    with pytest.raises(TypeError, match="sites"):
        setting(3, "of something", changes="weights")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="changes"):
        setting(3, "of something", sites=True)  # type: ignore[call-arg]


def test_settings_sent_to_sites_name_neither_code_nor_files() -> None:
    """The contract of a deployment: adding to this list is a decision, not an accident."""
    assert set(sent_to_sites(Config)) == {
        "method", "seed", "batch_size", "optimizer", "lr", "momentum", "weight_decay", "precision", "channels_last",
        "fused", "options", "public_augment", "public_clean", "public_augment_start", "private_augment", "schedule",
        "schedule_iterations", "schedule_end", "clip", "class_weights", "label_smoothing",
    }  # fmt: skip
    config = Config(method="fedmd", data="mine.npz", models="my.nets:Net")
    assert json.loads(json.dumps(config.for_sites())).keys() == set(sent_to_sites(Config))
    assert config.for_sites()["options"] == config.options.model_dump(mode="json")


def test_settings_that_comparisons_ignore() -> None:
    """The contract of `fedal compare` and `fedal report`: any other difference makes a different run."""
    assert set(without_effect(Config)) == {
        "workers", "engine", "ray_address", "checkpoint_every", "preset", "require", "data_folder", "instruments",
        "rest",
    }  # fmt: skip


# A new setting is one field.


def scratch(*, sites: bool, changes: Changes, option: bool = False) -> type[Config]:
    class Scratch(Config):
        fresh_air: float = setting(0.5, "how fresh", gt=0, sites=sites, changes=changes, option=option)

    return Scratch


@pytest.mark.parametrize("sites", [True, False])
def test_a_new_setting_is_sent_to_sites_if_its_facts_say_so(sites: bool) -> None:
    config = scratch(sites=sites, changes="weights")(fresh_air=0.25)
    assert config.for_sites().get("fresh_air") == (0.25 if sites else None)


@pytest.mark.parametrize("changes", ["weights", "record", "nothing"])
def test_a_new_setting_makes_a_different_run_unless_it_changes_nothing(changes: Changes) -> None:
    config = scratch(sites=False, changes=changes)(fresh_air=0.25)
    assert ("fresh_air" in config.deciding()) == (changes != "nothing")


def test_a_new_setting_is_an_option_of_every_command_with_settings() -> None:
    model = scratch(sites=False, changes="weights", option=True)
    received: list[GivenSettings] = []
    app = typer.Typer()

    @app.command()
    @takes_settings(model=model, without=["seed"])
    def command(*, before: int = 1, given: GivenSettings, after: int = 2) -> None:
        """Collects its settings."""
        received.append(given)

    words = ["--fresh-air", "0.25", "--clients", "3", "--set", "tau=2"]
    answer = CliRunner().invoke(app, words, catch_exceptions=False)
    assert answer.exit_code == 0
    assert received[0].values == received[0].settings() == {"fresh_air": 0.25, "clients": 3, "tau": 2}
    assert model(**received[0].settings()).model_dump()["fresh_air"] == 0.25
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).output
    places = [shown.index(word) for word in ("--before", "--method", "How fresh. [default: (0.5)]", "--set", "--after")]
    assert places == sorted(places)
    assert "--seed" not in shown
    assert CliRunner().invoke(app, ["--fresh-air", "thick"]).exit_code == 2


def test_options_are_read_as_the_type_of_their_setting() -> None:
    """`clients` is a number or tables, `models` text or a list: a word on the command line can only be the first."""
    received: list[GivenSettings] = []
    app = typer.Typer()
    app.command()(takes_settings()(collected_in(received)))
    words = ["--clients", "3", "--models", "a,b", "--alpha", "1", "--engine", "ray", "--rounds", "2"]
    assert CliRunner().invoke(app, words, catch_exceptions=False).exit_code == 0
    assert received[0].values == {"clients": 3, "models": "a,b", "alpha": 1.0, "engine": "ray", "rounds": 2}
    assert [type(value) for value in received[0].values.values()] == [int, str, float, int, str]


def collected_in(received: list[GivenSettings]) -> Any:
    def command(given: GivenSettings) -> None:
        received.append(given)

    return command


# An option of a method has the facts of all of them, or its own.


@pytest.fixture
def custom_method() -> Iterator[str]:
    class Options(MethodOptions):
        strength: float = Field(1.0, description="has the facts of all options")
        cache: str = setting("off", "where this machine keeps its cache", sites=False, changes="nothing")

    name = methods.register(Method("cached", "for this test", Options, ClientLogic)).name
    yield name
    methods._registered.pop(name)


def test_a_method_option_may_have_its_own_facts(custom_method: str) -> None:
    config = Config(method=custom_method, cache="on", strength=2.0)
    for settings in (config.for_sites(), config.deciding()):
        assert settings["options"]["strength"] == 2.0
        assert "cache" not in settings["options"]


def test_a_site_also_controls_its_own_method_options(custom_method: str) -> None:
    pytest.importorskip("grpc")
    from fedal.deploy.entering import checked_settings
    from fedal.deploy.refusals import Code, Refused

    told = {"method": custom_method, "options": {"strength": 2.0}}
    assert checked_settings(json.dumps(told)).options.model_dump()["strength"] == 2.0
    told["options"] = {"cache": "here"}
    with pytest.raises(Refused, match="'cache', which only the site may set") as refused:
        checked_settings(json.dumps(told))
    assert refused.value.code == Code.SETTINGS


def test_the_report_groups_runs_by_settings_that_change_results() -> None:
    base = Config(method="fedmd", seed=1).model_dump(mode="json", exclude_none=True)
    assert flat(base) == flat(base | {"seed": 2, "workers": 7, "instruments": ["zeta"]})
    assert flat(base) != flat(base | {"lr": 0.5})
    assert flat({"method": ["fedmd"], "workers": 1}) == {"method": ["fedmd"]}  # a folder may hold anything


# The facts are true.

TINY: dict[str, Any] = dict(
    clients=3, models="mlp-small", iterations=8, eval_every=4, tau=2, batch_size=8, public_size=40, own_validation=0.1
)
OTHER: dict[str, Any] = {
    "preset": "paper",
    "require": "black-box",
    "data_folder": "elsewhere",
    "instruments": ("forgetting", "zeta"),
    "checkpoint_every": 1,
    "workers": 2,
    "eval_every": 2,
    "eval_samples": 50,
    "eval_clients": 2,
    "eval_after_local": False,
    "keep_best": True,
    "metrics": ("roc_auc", "log_loss"),
}
WITH_PARTICIPATION = {"rest"}  # tests/simulate/test_resting.py compares the bits
WITH_RAY = {"engine", "ray_address"}  # tests/engine/test_ray.py compares the bits


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> fedal.Run:
    return fedal.run(Config(**TINY), tmp_path_factory.mktemp("plain") / "run")


def test_every_setting_that_does_not_change_weights_is_tested_here() -> None:
    sparing = {name for name, facts in facts_of(Config).items() if facts.changes != "weights"}
    assert sparing == OTHER.keys() | WITH_RAY | WITH_PARTICIPATION


@pytest.mark.parametrize("name", OTHER)
def test_settings_declared_without_effect_change_neither_weights_nor_metrics(
    name: str, plain: fedal.Run, tmp_path: Path
) -> None:
    other = fedal.run(plain.config.with_(**{name: OTHER[name]}), tmp_path / "run")
    assert getattr(other.config, name) != getattr(plain.config, name)
    assert weights(plain) and weights(other) == weights(plain)
    if facts_of(Config)[name].changes == "nothing":
        found = [{key: row[key] for key in like} for row, like in zip(rows(other), rows(plain), strict=True)]
        assert found == rows(plain)


def weights(run: fedal.Run) -> dict[str, str]:
    return {path.name: sha256(path.read_bytes()).hexdigest() for path in sorted(run.path.glob("models/*.safetensors"))}


def rows(run: fedal.Run) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]
