"""Rewrites the outputs that the executed pages show, from real execution.

    python -m tests.readme_outputs                 all pages of pages.py
    python -m tests.readme_outputs docs/runs.md    only this one
    python -m tests.readme_outputs docs/tutorials/bank.md --keep DIR    the tutorials, in folders that stay, for
                                                                        `python -m studies tutorials --runs DIR`
    python -m tests.readme_outputs --all           also outputs that differ only in what shown.py ignores
    python -m tests.readme_outputs --pictures runs/demo    docs/pictures/report.png and curves.svg, from the comparison
                                                           that the README makes there; needs chromium

Read the result with `git diff`: an elided passage is found again by the lines around it, which is a guess when many
words have changed.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.pages import PAGES, ROOT, TUTORIALS, Step, execute, read
from tests.shown import difference, refreshed

PICTURES = ROOT / "docs" / "pictures"
REPORT_SIZE = (1280, 706)  # the head of the page and its first section


def rewrite(page: str, *, everything: bool, keep: Path | None = None) -> int:
    """Pastes what the commands of a page print; returns how many outputs have changed."""
    new: list[tuple[Step, list[str]]] = []
    for block, step, printed in execute(page, keep):
        if everything or difference(step.shown, printed, any_order=step.any_order):
            pasted = refreshed(step.shown, printed)
            if step.first < 0 and pasted:
                print(f"{block.place}: add a block of text below this Python for what it prints:\n" + "\n".join(pasted))
            elif tuple(pasted) != step.shown:
                new.append((step, pasted))
    lines = read(page).splitlines()
    for step, pasted in reversed(new):
        lines[step.first : step.end] = pasted
    (ROOT / page).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return len(new)


def draw(comparison: Path) -> None:
    """Takes the curves of a finished comparison and photographs the head of its report."""
    from PIL import Image

    fedal = str(Path(sys.executable).parent / "fedal")
    subprocess.run([fedal, "report", str(comparison)], check=True)
    shutil.copy(comparison / "curves.svg", PICTURES / "curves.svg")
    width, height = REPORT_SIZE
    with tempfile.TemporaryDirectory(prefix="browser-") as folder:
        photo = Path(folder, "report.png")
        safe = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--hide-scrollbars")
        where = (f"--user-data-dir={folder}/profile", f"--window-size={width},{height + 200}", f"--screenshot={photo}")
        page = (comparison / "report.html").resolve().as_uri()
        subprocess.run(["chromium", *safe, *where, page], check=True, capture_output=True)
        with Image.open(photo) as image:
            image.convert("RGB").crop((0, 0, width, height)).save(PICTURES / "report.png", optimize=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", choices=[[], *PAGES, *TUTORIALS], metavar="PAGE")
    parser.add_argument("--all", action="store_true", help="also what differs only in times, dates and last digits")
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="execute each page in the folder DIR/PAGE, and keep it"
    )
    parser.add_argument("--pictures", type=Path, metavar="COMPARISON", help="make the pictures of it, nothing else")
    options = parser.parse_args()
    if options.pictures:
        draw(options.pictures)
        return 0
    for page in options.pages or PAGES:
        keep = options.keep / Path(page).stem if options.keep else None
        print(f"{page}: {rewrite(page, everything=options.all, keep=keep)} outputs rewritten", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
