"""A server's folder is reported like a run's, but without test data, models and private data."""

import json
from pathlib import Path

import pytest
from run_folders import write_run, write_server

import fedal
from fedal.errors import FedalError
from fedal.report.collect import collect
from fedal.report.groups import overview
from fedal.report.page import chart_data, write_report


def test_a_server_folder_has_no_warnings_and_shows_the_accuracy_on_local_data(tmp_path: Path) -> None:
    report, problems = write_report([write_server(tmp_path / "server")])
    text = report.read_text(encoding="utf-8")
    assert problems == []
    assert "NaN" not in text.split("<script")[0]
    assert "has the highest final accuracy on local test data: <strong>0.6500</strong>, mean over 2 of 3 sites" in text
    assert "Final models on the test data of their own sites" in text
    assert "each site&#x27;s own test data, which never leave it" in text
    assert "The sites keep their data" in text
    assert "models: known only to the sites" in text


def test_participation_and_bytes_are_shown(tmp_path: Path) -> None:
    report, _ = write_report([write_server(tmp_path / "server")])
    text = report.read_text(encoding="utf-8")
    assert 'id="participation"' in text
    assert "2 of 3" in text and "3 of 3" in text
    assert "3,000 B" in text and "6,000 B" in text
    curve = overview(collect([tmp_path / "server"])).groups[0].curve("participants")
    assert [point.mean for point in curve] == [3, 2, 3]
    assert 'data-measure="participants"' in text


def test_strikes_are_shown_only_where_there_are_any(tmp_path: Path) -> None:
    path = write_server(tmp_path / "server")
    report, _ = write_report([path])
    assert "in quarantine" not in report.read_text(encoding="utf-8")
    rows = [json.loads(line) for line in (path / "clients.jsonl").read_text().splitlines()]
    rows = [row | ({"strikes": 3, "quarantined": True} if row["client"] == "ben" else {}) for row in rows]
    (path / "clients.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    report, _ = write_report([path])
    assert report.read_text(encoding="utf-8").count("3, in quarantine") == 1


def test_targets_clients_and_curves_use_the_accuracy_on_local_data(tmp_path: Path) -> None:
    found = overview(collect([write_server(tmp_path / "server")]))
    data = chart_data(found)
    assert data["accuracy"] == "accuracy on local test data"
    assert data["targets"][50 - 1] == [["1 of 1", "10", "5.0 s", "2,000 B"]]  # 0.5 at anna alone: ben missed round 2
    assert [value for value, _ in data["groups"][0]["clients"]] == pytest.approx([0.7, 0.6])


def test_sites_that_share_nothing_leave_no_accuracy_and_no_warning(tmp_path: Path) -> None:
    report, problems = write_report([write_server(tmp_path / "server", shared=())])
    text = report.read_text(encoding="utf-8")
    assert problems == []
    assert "No site shares its accuracy" in text
    assert "NaN" not in text.split("<script")[0]
    assert "15.0 s" not in text and "7.5 s" in text


def test_a_run_next_to_a_server_keeps_its_own_column(tmp_path: Path) -> None:
    report, _ = write_report([write_run(tmp_path / "run"), write_server(tmp_path / "server")])
    text = report.read_text(encoding="utf-8")
    assert "has the highest final test accuracy: <strong>0.6000</strong>, mean over 3 clients" in text
    assert 'data-label="accuracy on local test data">0.6500' in text
    assert "NaN" not in text.split("<script")[0]


def test_an_unfinished_server_is_reported_with_how_to_resume(tmp_path: Path) -> None:
    path = write_server(tmp_path / "server")
    rows = [json.loads(line) | {"final": False} for line in (path / "metrics.jsonl").read_text().splitlines()]
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (problem,) = overview(collect([path])).problems
    assert "recorded up to iteration 15 of 15" in problem and "Resume it with the same `fedal serve`." in problem
    with pytest.raises(FedalError, match="Continue it with the same `fedal serve`"):
        _ = fedal.load_run(path).final


def test_a_server_folder_can_be_loaded_and_holds_no_models(tmp_path: Path) -> None:
    run = fedal.load_run(write_server(tmp_path / "server"))
    assert run.final["own_test_accuracy"] == pytest.approx(0.65)
    assert [row["participants"] for row in run.metrics] == [3, 2, 3]
    with pytest.raises(FedalError, match="each site keeps its own"):
        run.model("anna")
