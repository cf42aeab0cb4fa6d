"""`fedal doctor`: what this machine has, what is missing, and whether fedal does here what it promises."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from fedal import data
from fedal.cli.printing import print_table
from fedal.errors import FedalError
from fedal.installation import Requirement, extras, requirements
from fedal.machine import available_cores, total_memory
from fedal.records.numbers import duration, size


def doctor(
    test: Annotated[
        bool, typer.Option("--self-test/--no-self-test", help="Train a few rounds, about ten seconds.")
    ] = True,
) -> None:
    """Show versions, cores, kernels, extras and datasets, and test that training and resuming work here."""
    needed = requirements()
    _print_machine()
    _print_packages(needed)
    _print_datasets()
    problems = [f"{each.package}: {each.problem}" for each in needed if not each.extra and not each.is_met]
    if test and not problems:
        problems += _self_test()
    for problem in problems:
        print(f"problem: {problem}")
    if problems:
        raise typer.Exit(1)
    print("fedal works on this machine." if test else "Nothing is missing; the self-test was left out.")


def _print_machine() -> None:
    from fedal.records.environment import describe_environment

    found = describe_environment()
    rows = [[name, str(found[name])] for name in ("fedal", "python", "torch", "numpy", "machine")]
    rows += [
        ["cores", f"{available_cores()} of {found['cores']} can be used"],
        ["memory", size(total_memory())],
        ["CPU capability", str(found["cpu_capability"])],
        ["kernels", str(found["kernels"])],
    ]
    print_table("This machine", ["", "found"], rows)


def _print_packages(needed: list[Requirement]) -> None:
    rows = [["always", _in_words([each for each in needed if not each.extra]), ""]]
    for extra, parts in extras(needed).items():
        complete = all(part.is_met for part in parts)
        rows.append([extra, _in_words(parts), "" if complete else f"pip install 'fedal[{extra}]'"])
    print_table("Packages", ["extra", "installed", "to get it"], rows)


def _in_words(parts: list[Requirement]) -> str:
    return ", ".join(f"{part.package} {part.problem or part.installed}" for part in parts)


def _print_datasets() -> None:
    rows = []
    for name in data.names():
        source = data.describe(name)
        there = data.is_installed(name)
        rows.append([name, str(source.root()) if there else "-", "" if there else source.fetch_command()])
    print_table("Datasets", ["dataset", "where", "to get it"], rows)


def _self_test() -> list[str]:
    """The problems that a self-test finds."""
    from fedal.simulate.self_test import self_test

    with tempfile.TemporaryDirectory(prefix="fedal-doctor-") as folder:
        try:
            found = self_test(Path(folder))
        except (FedalError, OSError) as error:
            return [f"self-test: {error}"]
    print(
        f"self-test: {found.iterations} iterations of FedAL reach an accuracy of {found.accuracy:.3f}. A resumed run "
        f"equals an uninterrupted one, bit for bit, in metrics and {found.compared} models. {duration(found.seconds)}"
    )
    return []
