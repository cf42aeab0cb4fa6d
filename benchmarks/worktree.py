"""A temporary checkout of another commit of this repository."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parents[1]


@contextmanager
def worktree(commit: str, repository: Path = HERE) -> Iterator[Path]:
    """A folder with the files of `commit`; removed at the end, also after an error, Ctrl-C or SIGTERM."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with tempfile.TemporaryDirectory(prefix="fedal-") as temporary:
        folder = Path(temporary) / "tree"
        try:
            git(repository, "worktree", "add", "--detach", "--quiet", str(folder), commit)
            yield folder
        finally:
            if folder.exists():
                git(repository, "worktree", "remove", "--force", str(folder))
            signal.signal(signal.SIGTERM, before)


def git(repository: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(repository), *words], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr.strip())
    return done.stdout
