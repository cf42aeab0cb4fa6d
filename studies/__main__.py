"""`python -m studies run | collect | page`: docs/results, by its plan.toml; `partitions`: docs/partitions.md;
`attacks`: docs/results/attacks; `field-guide`: docs/results/field-guide; `tutorials`: docs/tutorials;
`scale`: docs/scale.md."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from fedal.errors import ConfigError, FedalError, Stopped
from studies.results_plan import PAGE_FOLDER, RUNS, read_plan


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m studies", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    runner = commands.add_parser("run", help="run what has no result file yet; interrupted runs resume")
    runner.add_argument(
        "studies", nargs="*", help="study names from plan.toml, in the order to run them (default: all)"
    )
    runner.add_argument("--seed", type=int, help="only runs with this seed (default: all)")
    runner.add_argument("--jobs", type=int, default=2, help="runs at a time, one core each (default: 2)")
    collector = commands.add_parser("collect", help="write small result files for finished runs, then the page")
    pager = commands.add_parser("page", help="regenerate tables and figures from the small result files")
    commands.add_parser("partitions", help="write the moments of all partitions to docs/partitions.md")
    attacks = commands.add_parser("attacks", help="run what is missing of docs/results/attacks, then write its page")
    attacks.add_argument("--jobs", type=int, default=2, help="runs at a time, one core each; 0: only collect and write")
    attacks.add_argument("--runs", type=Path, default=RUNS.parent / "attacks", help="folder of the run folders")
    tutorials = commands.add_parser("tutorials", help="regenerate tables and figures of docs/tutorials")
    tutorials.add_argument("--runs", type=Path, help="first collect the results of the executed pages in this folder")
    guide = commands.add_parser("field-guide", help="run what is missing of docs/results/field-guide, write its page")
    guide.add_argument("studies", nargs="*", help="names from its plan.toml, in the order to run them (default: all)")
    guide.add_argument("--page", action="store_true", help="run nothing, only write the page")
    scale = commands.add_parser("scale", help="write tables and figure of docs/scale.md")
    scale.add_argument("--measure", action="store_true", help="first measure the costs of one node anew, in minutes")
    for each in (runner, collector):
        each.add_argument("--runs", type=Path, default=RUNS, help="folder of the run folders (default: runs/results)")
    for each in (runner, collector, pager):
        each.add_argument(
            "--folder", type=Path, default=PAGE_FOLDER, help="folder of plan.toml (default: docs/results)"
        )
    arguments = parser.parse_args()
    if arguments.command == "partitions":
        from studies.partitions import write_partitions_page

        write_partitions_page()
        return 0
    if arguments.command == "attacks":
        return _attacks(arguments.runs, arguments.jobs)
    if arguments.command == "tutorials":
        from studies.tutorials import collect as collect_tutorials
        from studies.tutorials_page import write_tutorial_pages

        if arguments.runs is not None:
            collect_tutorials(arguments.runs)
        write_tutorial_pages()
        return 0
    if arguments.command == "field-guide":
        return _field_guide([] if arguments.page else arguments.studies or None)
    if arguments.command == "scale":
        from studies.scale_costs import write_costs
        from studies.scale_page import write_scale_page

        if arguments.measure:
            write_costs()
        write_scale_page()
        return 0
    plan = read_plan(arguments.folder)
    if arguments.command == "run":
        from studies.run import missing, run_plan

        os.nice(19)  # these runs take hours: they give way to everything else on the machine
        jobs = missing(plan.only(arguments.studies).studies, arguments.runs, arguments.folder, arguments.seed)
        return 1 if run_plan(jobs, arguments.jobs) else 0
    if arguments.command == "collect":
        from studies.result_files import collect

        collect(plan, arguments.runs, arguments.folder)

    from studies.results_page import write_page

    write_page(plan, arguments.folder)
    return 0


def _attacks(runs: Path, at_once: int) -> int:
    from studies.attacks import read_attack_plan
    from studies.attacks_page import write_attacks_page
    from studies.run import run_plan, unfinished

    plan = read_attack_plan()
    failed = []
    if at_once:
        os.nice(19)
        failed = run_plan(unfinished(plan.jobs(runs)), at_once)
    plan.collect(runs)
    write_attacks_page(plan)
    return 1 if failed else 0


def _field_guide(names: list[str] | None) -> int:
    from studies.field_guide import read_field_guide
    from studies.field_guide_page import write_field_guide

    guide = read_field_guide()
    os.nice(19)
    for name in [*guide.choices, *guide.studies] if names is None else names:
        for outcome in guide.run(name):
            words = f"{name}: {outcome.method} {outcome.options}, seed {outcome.seed}"
            print(f"{words}: {outcome.processor_seconds:.1f} s of a processor", flush=True)
    write_field_guide(guide)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Stopped as stopped:
        print(stopped, file=sys.stderr)
        sys.exit(130)
    except FedalError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, ConfigError) else 1)
