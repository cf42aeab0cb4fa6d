"""The table of models: names, candidates, shapes, and the cost of reading it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fedal.data import SOURCES
from fedal.data.split import Task
from fedal.errors import ConfigError
from fedal.models import MODELS, build, is_import_path, suited_to


@pytest.mark.processes
def test_listing_the_models_does_not_import_torch():
    code = (
        "import sys, fedal.models as m; m.suited_to((8,)); [(e.takes, e.fits((1, 8, 8))) for e in m.MODELS.values()]"
        "; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        ("digits", ("mlp-small", "cnn-small", "cnn-small-bn")),
        ("mnist", ("lenet5",)),
        ("fashion-mnist", ("lenet5",)),
        ("svhn", ("wrn-10-1", "wrn-10-2", "wrn-16-1")),
        ("cifar10", ("resnet18", "resnet34")),
        ("cinic10", ("resnet18", "resnet34")),
        ("celeba", ("celeba-cnn",)),
    ],
)
def test_candidates_of_a_known_dataset(dataset, expected):
    assert Task(dataset, (3, 40, 30), 10).candidates == expected


def test_candidates_for_custom_data_follow_its_shape():
    assert Task("mine", (3, 40, 30), 10).candidates == suited_to((3, 40, 30)) == ("cnn-small", "cnn-small-bn")
    assert Task("mine", (12,), 10).candidates == suited_to((12,)) == ("mlp-small",)


@pytest.mark.parametrize("source", SOURCES.values(), ids=lambda source: source.name)
def test_the_models_of_a_dataset_exist_and_take_its_samples(source):
    assert source.models
    assert all(MODELS[name].fits(source.sample_shape) for name in source.models)


@pytest.mark.parametrize("shape", [(12,), (5, 6), (1, 3, 3), (3, 40, 30)])
def test_candidates_by_shape_take_that_shape(shape):
    assert all(MODELS[name].fits(shape) for name in suited_to(shape))


@pytest.mark.parametrize(
    ("name", "nearest"), [("lenet", "lenet5"), ("LeNet5", "lenet5"), ("wrn-10-3", "wrn-10-"), ("resnet-18", "resnet18")]
)
def test_an_unknown_name_suggests_the_closest_one(name, nearest):
    with pytest.raises(ConfigError, match=f'"{name}".*Did you mean {nearest}.*fedal models'):
        build(name, (1, 28, 28), 10)


def test_an_unknown_name_without_a_close_match_gets_no_suggestion():
    with pytest.raises(ConfigError, match="unknown model") as caught:
        build("transformer-xl", (1, 28, 28), 10)
    assert "Did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "shape"), [("lenet5", (1, 8, 8)), ("lenet5", (1, 28, 32)), ("resnet18", (64,)), ("celeba-cnn", (84, 84))]
)
def test_a_model_that_does_not_take_the_shape_names_those_that_do(name, shape):
    with pytest.raises(ConfigError, match=f'"{name}" takes images.*mlp-small'):
        build(name, shape, 10)


def test_import_paths_are_distinguished_from_names():
    assert is_import_path("my_pkg.nets:TinyCNN")
    assert not any(is_import_path(name) for name in MODELS)
