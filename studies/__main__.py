"""`python -m studies run | collect | page`: docs/results, by its plan.toml; `partitions`: docs/partitions.md."""

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
    runner = commands.add_parser("run", help="run what is missing; interrupted runs resume")
    runner.add_argument(
        "studies", nargs="*", help="study names from plan.toml, in the order to run them (default: all)"
    )
    runner.add_argument("--seed", type=int, help="only runs with this seed (default: all)")
    runner.add_argument("--jobs", type=int, default=2, help="runs at a time, one core each (default: 2)")
    collector = commands.add_parser("collect", help="write small result files for finished runs, then the page")
    pager = commands.add_parser("page", help="regenerate tables and figures from the small result files")
    commands.add_parser("partitions", help="write the moments of all partitions to docs/partitions.md")
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
    plan = read_plan(arguments.folder)
    if arguments.command == "run":
        from studies.run import missing, run_plan

        os.nice(19)  # these runs take hours: they give way to everything else on the machine
        jobs = missing(plan.only(arguments.studies).studies, arguments.runs, arguments.seed)
        return 1 if run_plan(jobs, arguments.jobs) else 0
    if arguments.command == "collect":
        from studies.result_files import collect

        collect(plan, arguments.runs, arguments.folder)

    from studies.results_page import write_page

    write_page(plan, arguments.folder)
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
