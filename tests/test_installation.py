"""What is installed is read from the package's metadata, and compared with what fedal needs."""

from __future__ import annotations

from importlib.metadata import version

import pytest

from fedal.installation import Requirement, extras, requirements

LINES = [
    "numpy>=1.26",
    "nothing-of-this-name>=1; extra == 'jax'",
    'pytest>=8; extra == "dev"',
    "fedal[jax]; extra=='x'",
]


def test_requirements_have_their_extra_and_what_is_installed() -> None:
    found = requirements(LINES)
    assert found == [
        Requirement("numpy", "1.26", "", version("numpy")),
        Requirement("nothing-of-this-name", "1", "jax", None),
    ]
    assert [each.problem for each in found] == ["", "missing"]
    assert extras(found) == {"jax": [found[1]]}


def test_the_installed_fedal_names_its_extras() -> None:
    found = requirements()
    assert {"torch", "numpy", "typer"} <= {each.package for each in found if not each.extra}
    assert {"report", "tune", "deploy", "jax", "ray", "tensorboard"} <= extras(found).keys()
    assert "dev" not in extras(found)


@pytest.mark.parametrize(
    ("installed", "lowest", "is_met"),
    [
        ("2.13.0+cpu", "2.6", True),
        ("2.6", "2.6.0", True),
        ("1.9", "1.10", False),
        ("4.0rc1", "4", True),
        (None, "", False),
    ],
)
def test_versions_are_compared_as_numbers(installed: str | None, lowest: str, is_met: bool) -> None:
    assert Requirement("some", lowest, "", installed).is_met == is_met
