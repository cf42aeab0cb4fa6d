"""Settings: what is refused and how, what overrides what, and that files preserve everything."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import pytest

from fedal import methods
from fedal.config import Config, load_config, merge_settings, parse_assignments
from fedal.config.mistakes import ALIASES
from fedal.errors import ConfigError


def problems(**values: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        Config(**values)
    return str(caught.value).splitlines()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"method": "fedall"}, 'method: there is no method "fedall". Did you mean "fedal"?'),
        ({"method": 5}, "method = 5: expected a name. `fedal methods` lists them."),
        ({"dataset": "digit"}, 'dataset: there is no dataset "digit". Did you mean "digits"?'),
        ({"partition": "dirichlet_client"}, 'partition: there is no partition "dirichlet_client". '),
        ({"lrr": 1}, "lrr: not a setting, and not an option of fedal. Did you mean lr?"),
        (
            {"allow_overlap": False, "partition": "dirichlet-client-k"},
            "allow_overlap: this setting no longer exists; the name of the partition says it now. Remove this setting.",
        ),
        ({"learning_rate": 1}, "learning_rate: not a setting, and not an option of fedal. Did you mean lr?"),
        ({"temperatur": 1}, "temperatur: not a setting, and not an option of fedal. Did you mean temperature?"),
        ({"options": {"tao": 1}}, "options.tao: not a setting, and not an option of fedal. Did you mean options.tau?"),
        ({"options": 5}, "options = 5: expected a table of method options, such as tau = 3."),
        ({"alpha": 0}, "alpha = 0: input should be greater than 0."),
        ({"alpha": -1.5}, "alpha = -1.5: input should be greater than 0."),
        ({"alpha": math.nan}, "alpha = nan: input should be a finite number."),
        ({"alpha": [1], "preset": "paper"}, "alpha = [1]: input should be a valid number."),
        ({"tau": 0}, "tau = 0: input should be greater than or equal to 1."),
        ({"tau": 1.5}, "tau = 1.5: input should be a valid integer, got a number with a fractional part."),
        ({"lr": math.nan}, "lr = nan: input should be a finite number."),
        ({"lr": math.inf}, "lr = inf: input should be a finite number."),
        ({"lr": 0}, "lr = 0: input should be greater than 0."),
        ({"temperature": 0}, "temperature = 0: input should be greater than 0."),
        ({"iterations": 0}, "iterations = 0: input should be greater than or equal to 1."),
        ({"iterations": 10, "rounds": 5}, "iterations = 10 and rounds = 5: give one of them; "),
        ({"batch_size": 1}, "batch_size = 1: input should be greater than or equal to 2."),
        ({"seed": -1}, "seed = -1: input should be greater than or equal to 0."),
        ({"clients": 0}, "clients = 0: input should be greater than or equal to 1."),
        ({"clients": 10**9}, "clients = 1000000000: input should be less than or equal to 1000000."),
        ({"clients": 1}, "clients = 1: fedal exchanges outputs between clients and needs at least 2. "),
        ({"clients": [], "method": "local"}, "clients: the list is empty; expected at least one client."),
        (
            {"clients": "many"},
            "clients = 'many': expected a number of clients or a list of tables with name and model.",
        ),
        ({"clients": [{"name": "a"}, {"name": "a"}]}, 'clients: the name "a" is used 2 times; names must differ.'),
        ({"clients": [{"name": "a", "count": 3}]}, 'clients: the name "a" is used 3 times; names must differ.'),
        ({"clients": [{"name": "client-01"}, {}]}, 'clients: the name "client-01" is used 2 times; names must differ.'),
        (
            {"clients": [{"name": "A/b"}, {}]},
            "clients.0.name = 'A/b': expected up to 63 lower-case letters, digits and",
        ),
        ({"clients": [{"nam": "a"}, {}]}, "clients.0.nam: no such setting. Did you mean name?"),
        ({"models": 3}, "models = 3: expected auto, same, a name of `fedal models`, or a list of names."),
        ({"eval_every": 0}, "eval_every = 0: input should be greater than or equal to 1."),
        ({"eval_every": "often"}, "eval_every = 'often': expected a number of iterations, or auto."),
        ({"checkpoint_every": 0}, "checkpoint_every = 0: expected at least 1 round, or auto."),
        ({"checkpoint_every": "often"}, "checkpoint_every = 'often': expected a number of rounds, or auto."),
        (
            {"require": "black-box", "partition": "pooled", "method": "local"},
            "require = black-box: partition = pooled reveals all private samples to every client. ",
        ),
        (
            {"require": "outputs-only", "partition": "pooled"},
            "require = outputs-only: partition = pooled reveals all private samples to every client. ",
        ),
        ({"require": "trust"}, "require = 'trust': input should be 'black-box' or 'outputs-only'."),
        ({"preset": "papers"}, "preset = 'papers': input should be 'paper'."),
        ({"engine": "clouds"}, "engine = 'clouds': input should be "),
    ],
    ids=lambda value: repr(value)[:50] if isinstance(value, dict) else "",
)
def test_a_mistake_is_one_line_with_value_place_and_expectation(values: dict[str, Any], expected: str) -> None:
    found = problems(**values)
    assert len(found) == 1, found
    assert found[0].startswith(expected)


def test_all_mistakes_are_reported_together() -> None:
    found = problems(
        method="fedmd", dataset="minst", partition="iidd", alpha=0, lr=math.nan, tau=0, rho=1, clients=[{"name": "A"}]
    )
    starts = ["dataset:", "partition:", "rho:", "tau = 0", "clients.0.name", "alpha = 0", "lr = nan"]
    assert sorted(line.split()[0] for line in found) == sorted(start.split()[0] for start in starts)
    unknown_method = problems(method="fedall", dataset="minst", alpha=0)
    assert [line.split()[0] for line in unknown_method] == ["dataset:", "method:", "alpha"]


def test_an_unknown_key_without_a_near_name_lists_the_known_ones() -> None:
    (line,) = problems(xyzzy=1)
    assert "eval_every" in line and "temperature" in line


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("epochs", "iterations or rounds"), ("num_epochs", "iterations or rounds"), ("local_epochs", "tau"),
        ("num_rounds", "rounds"), ("global_rounds", "rounds"), ("lr_rate", "lr"), ("eta", "lr"), ("step_size", "lr"),
        ("num_clients", "clients"), ("number_of_clients", "clients"), ("batch", "batch_size"), ("bs", "batch_size"),
        ("batch-size", "batch_size"), ("random_seed", "seed"), ("T", "temperature"), ("algorithm", "method"),
        ("fraction", "participation"),
        ("test_every", "eval_every"), ("save_every", "checkpoint_every"), ("num_workers", "workers"),
        ("momentun", "momentum"), ("tua", "tau"), ("itertions", "iterations"), ("optimiser", "optimizer"),
        ("scheduler", "schedule"),
    ],
)  # fmt: skip
def test_a_word_of_the_field_leads_to_the_setting(key: str, meant: str) -> None:
    (line,) = problems(**{key: 1})
    assert line.endswith(f"Did you mean {meant}?")


@pytest.mark.parametrize("key", ["dropout", "loss", "kl_weight", "n_classes", "verbose", "augment"])
def test_a_word_without_a_setting_is_not_taken_for_another_one(key: str) -> None:
    (line,) = problems(**{key: 1})
    assert "Did you mean" not in line and "Known: " in line


def test_an_alias_of_an_option_that_the_method_lacks_is_not_suggested() -> None:
    (line,) = problems(method="local", temp=1)
    assert "Did you mean" not in line


def test_every_alias_names_settings() -> None:
    options = {name for method in methods.names() for name in methods.get(method).options.model_fields}
    meant = {name for names in ALIASES.values() for name in names.split(", ") if name}
    assert meant <= {*Config.model_fields, *options}
    assert not ALIASES.keys() & {*Config.model_fields, *options}


def test_a_method_without_exchange_takes_one_client() -> None:
    assert Config(method="local", clients=1).client_names == ("client-00",)


@pytest.mark.timeout(60)
def test_the_names_of_many_clients_are_checked_in_seconds() -> None:
    """Comparing every name with every other took more than 90 s."""
    began = time.process_time()
    config = Config(clients=100_000)
    assert len(set(config.client_names)) == 100_000
    assert time.process_time() - began < 10


@pytest.mark.parametrize(("iterations", "tau", "interval"), [(400, 5, 20), (30, 5, 5), (2, 1, 1), (10_000, 1, 500)])
def test_auto_gives_about_20_evaluations(iterations: int, tau: int, interval: int) -> None:
    config = Config(iterations=iterations, tau=tau)
    assert (config.eval_every, config.eval_interval) == ("auto", interval)
    assert config.with_(eval_every=7).eval_interval == 7


def test_unnamed_clients_get_names() -> None:
    config = Config(clients=[{"name": "north", "model": "mlp-small"}, {"count": 2}, {"name": "south"}])
    assert config.client_names == ("north", "client-01", "client-02", "south")
    assert [table.model for table in config.client_tables] == ["mlp-small", None, None, None]


@pytest.mark.parametrize(
    ("values", "rounds"), [({"iterations": 10}, 2), ({"iterations": 11}, 3), ({"rounds": 7}, 7), ({}, 80)]
)
def test_the_length_is_rounded_up_to_whole_rounds(values: dict[str, Any], rounds: int) -> None:
    assert Config(tau=5, **values).total_rounds == rounds


def test_the_paper_preset_fills_only_what_is_not_given() -> None:
    plain = Config(method="fedal", dataset="svhn", preset="paper")
    assert (plain.client_names[-1], plain.public_size, plain.iterations) == ("client-19", 1000, 7000)
    given = Config(method="fedal", dataset="svhn", preset="paper", clients=3, lr=0.5, rounds=2, tau=7)
    assert (len(given.client_names), given.lr, given.total_rounds, given.tau) == (3, 0.5, 2, 7)
    assert Config(method="fedmd", dataset="mnist", preset="paper").tau == 1


@pytest.mark.parametrize(
    ("dataset", "clients", "iterations", "lr", "public_size"),
    [
        ("mnist", 10, 5000, 1e-3, 1000),
        ("svhn", 20, 5000, 1e-3, 1000),
        ("cifar10", 15, 5000, 1e-3, 1000),
        ("cinic10", 10, 10_000, 1e-3, 1000),
        ("celeba", 20, 10_000, 1e-4, 1000),
        ("fashion-mnist", 10, 5000, 1e-3, 1000),  # not in the paper
        ("digits", 10, 5000, 1e-3, None),  # not in the paper, and too small for its public set
    ],
)
def test_the_paper_preset_follows_the_dataset(
    dataset: str, clients: int, iterations: int, lr: float, public_size: int | None
) -> None:
    found = Config(dataset=dataset, alpha=2, preset="paper")
    assert (found.clients, found.iterations, found.lr, found.public_size) == (clients, iterations, lr, public_size)


def test_a_config_survives_a_round_trip_through_a_file(tmp_path: Path) -> None:
    config = Config(
        method="fedal",
        clients=[{"name": "north", "model": "mlp-small"}, {"count": 2}],
        models=["cnn-small", "cnn-small-bn"],
        lr=1 / 3,
        discriminator_hidden=(3, 4),
        rounds=3,
    )
    path = tmp_path / "config.toml"
    path.write_text(config.to_toml())
    assert load_config(path, {}) == config


def test_the_command_line_overrides_the_file_and_a_length_replaces_both_lengths(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('method = "fedmd"\niterations = 70\nlr = 0.5\n[options]\ntau = 7\n')
    assert load_config(path, {}).total_rounds == 10
    config = load_config(path, {"rounds": 4, "tau": 2, "seed": None})
    assert (config.total_rounds, config.iterations, config.tau, config.lr) == (4, None, 2, 0.5)
    assert merge_settings({"rounds": 3, "lr": 1}, {"iterations": 5}) == {"iterations": 5, "lr": 1}


def test_a_mistake_in_a_file_names_the_file_and_one_on_the_command_line_does_not(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('method = "fedal"\nlearning_rate = 0.1\nalpha = -1\n[options]\ntau = 0\n')
    with pytest.raises(ConfigError) as caught:
        load_config(path, {"batch_size": 1})
    assert str(caught.value).splitlines() == [
        f"{path}, learning_rate: not a setting, and not an option of fedal. Did you mean lr?",
        f"{path}, tau = 0: input should be greater than or equal to 1.",
        f"{path}, alpha = -1: input should be greater than 0.",
        "batch_size = 1: input should be greater than or equal to 2.",
    ]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("0.5", 0.5),
        ("true", True),
        ("[1, 2]", [1, 2]),
        ('"3"', "3"),
        ("adam", "adam"),
        ("a.b:c", "a.b:c"),
        ("", ""),
        ("x=y", "x=y"),
    ],
)
def test_values_of_set_are_toml_if_they_parse_else_strings(text: str, value: object) -> None:
    assert parse_assignments([f"key={text}"]) == {"key": value}
    assert parse_assignments([f"options.key={text}"]) == {"key": value}


@pytest.mark.parametrize("word", ["lr", "=3", ""])
def test_an_assignment_without_key_or_value_is_refused(word: str) -> None:
    with pytest.raises(ConfigError, match="expected key=value"):
        parse_assignments([word])


def test_a_config_cannot_be_changed_and_a_changed_copy_is_checked_again() -> None:
    config = Config(tau=2)
    with pytest.raises(ValueError, match="frozen"):
        config.lr = 2.0  # type: ignore[misc]
    assert config.with_(lr=0.5).lr == 0.5
    with pytest.raises(ConfigError, match="alpha"):
        config.with_(alpha=0)


def test_no_option_of_a_method_has_the_name_of_a_setting() -> None:
    """A flat `--set name=...` would set the setting and never the option."""
    options = [(name, option) for name in methods.MODULES for option in methods.get(name).options.model_fields]
    assert not [(name, option) for name, option in options if option in Config.model_fields]
