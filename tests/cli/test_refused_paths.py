"""Paths that the system refuses: the message names the path and what to try, not only an errno."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from commands import TINY, fedal
from fedal.cli.app import ADVICE, in_words

pytestmark = pytest.mark.usefixtures("empty_folder")


@pytest.fixture
def run_folder() -> Path:
    assert fedal("run", *TINY, "--out", "run", "--quiet").code == 0
    return Path("run")


def test_a_report_into_a_folder_names_the_file_to_try(run_folder: Path) -> None:
    Path("pages").mkdir()
    answer = fedal("report", run_folder, "--out", "pages")
    assert (answer.code, answer.err) == (
        2, "error: pages is a folder; expected a file to write. Try --out pages/report.html.\n",
    )  # fmt: skip
    assert fedal("report", run_folder, "--out", "nowhere/a.html").err.startswith("error: nowhere: no such folder. ")


def test_a_chart_into_a_file_is_refused_before_the_split() -> None:
    Path("taken").touch()
    answer = fedal("partition", "--out", "taken")
    assert answer.code == 2 and answer.out == "" and "taken is a file; expected a folder" in answer.err
    below = fedal("partition", "--out", "taken/deeper")
    assert below.code == 1 and "Errno" not in below.err
    assert "taken/deeper: Not a directory. Part of this path is a file" in below.err


@pytest.mark.parametrize("number", ADVICE)
def test_every_message_has_path_reason_and_advice(number: int) -> None:
    text = in_words(OSError(number, "Some reason", "some/path"))
    assert text == f"some/path: Some reason. {ADVICE[number]}"


def test_an_error_without_path_or_number_is_still_a_sentence() -> None:
    assert in_words(OSError("lost")) == "lost."
    assert in_words(OSError(errno.EIO, "Input/output error")) == "Input/output error."


def test_a_dataset_into_a_file_is_refused_before_any_download() -> None:
    Path("taken").touch()
    answer = fedal("data", "fetch", "mnist", "--folder", "taken")
    assert answer.code == 2 and "Errno" not in answer.err and len(answer.err.splitlines()) == 1
    assert "taken is a file; expected a folder for the datasets. Choose another --folder." in answer.err


def test_data_that_are_a_folder_or_a_text_are_named_as_such() -> None:
    Path("folder").mkdir()
    Path("text.npz").write_text("hello")
    folder, text = (fedal("run", "--data", name, "--out", "run") for name in ("folder", "text.npz"))
    assert folder.code == text.code == 2
    assert "folder: needs a schema" in folder.err and "fedal schema PUBLIC" in folder.err
    assert (
        "text.npz: not a complete .npz file of plain arrays (not a zip archive)" in text.err
        and "unsafe" not in text.err
    )
