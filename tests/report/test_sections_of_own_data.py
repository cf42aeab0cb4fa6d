"""The page of runs in which every client brought its own data: no partition, names of classes, one worst client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fedal
from fedal.config import Config
from fedal.report.page import write_report
from site_tables import write_sites


def test_the_page_says_what_the_sites_brought(tmp_path: Path) -> None:
    settings: dict[str, Any] = dict(method="fedmd", rounds=1, tau=1, metrics=["brier", "accuracy"]) | write_sites(
        tmp_path
    )
    run = fedal.run(Config(**settings), tmp_path / "run")
    text = write_report([run.path], tmp_path / "page.html")[0].read_text()
    assert "none: every site has its own data" in text and "smaller is more skewed" not in text
    assert "unlabelled samples of" in text and "(not known) unlabelled samples" not in text
    assert "name have the same data in all seeds" in text
    assert ">no<" in text and ">yes<" in text and ">class 0<" not in text
    assert text.count(">Worst client<") == 1, "that of the headline"
    assert text.index(">Brier score<") < text.index(">accuracy<"), "the headline is the first row of the scores"
