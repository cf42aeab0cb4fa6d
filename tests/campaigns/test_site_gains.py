"""What each site gained: by hand, on both kinds of data, with the sign of what is better."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedal.campaigns.comparison import Comparison, MethodRuns
from fedal.campaigns.site_gains import EVERYONE, site_gains
from fedal.errors import ConfigError

Values = dict[str, tuple[float, float | None]]  # site -> on pooled and on its own data


def run(seed: int, metric: str, values: Values) -> Any:
    clients = [
        {
            "client": site,
            "final": True,
            f"test_{metric}": pooled,
            **({} if own is None else {f"own_test_{metric}": own}),
        }
        for site, (pooled, own) in values.items()
    ]
    metrics = [{f"test_{metric}": 0.0, "final": True}]
    return SimpleNamespace(config=SimpleNamespace(seed=seed), client_metrics=clients, metrics=metrics, final=metrics[0])


def compared(metric: str, local: list[Values], fedal: list[Values]) -> Comparison:
    rows = [
        MethodRuns(name, [run(seed, metric, values) for seed, values in enumerate(each)])
        for name, each in (("local", local), ("fedal", fedal))
    ]
    return Comparison(Path("x"), (0, 1), rows, [], metric)


def test_gains_are_differences_by_seed_and_the_last_line_names_who_lost() -> None:
    local: list[Values] = [{"north": (0.5, 0.7), "south": (0.6, 0.6)}, {"north": (0.5, 0.8), "south": (0.5, 0.6)}]
    after: list[Values] = [{"north": (0.6, 0.6), "south": (0.7, 0.7)}, {"north": (0.8, 0.6), "south": (0.7, 0.8)}]
    found = site_gains(compared("pr_auc", local, after), "local", "fedal")
    assert found.pooled["north"].difference.mean == pytest.approx(0.2)  # 0.1 and 0.3
    assert found.pooled["south"].difference.mean == pytest.approx(0.15)  # 0.1 and 0.2
    assert found.pooled[EVERYONE].difference.mean == pytest.approx(0.175)
    assert found.pooled[EVERYONE].before == pytest.approx(0.525)
    assert found.own["north"].difference.mean == pytest.approx(-0.15)
    both = found.pooled[EVERYONE].difference
    assert both.corrected == both.p_value, "the one question asked in advance"
    north = found.pooled["north"].difference
    assert north.p_value is not None and north.corrected is not None and north.corrected > north.p_value
    assert found.heads[:4] == ["site", "pooled: local", "fedal", "gain (95% interval)"] and len(found.heads) == 7
    assert [row[0] for row in found.rows()] == ["north", "south", EVERYONE] and found.rows()[0][1:3] == [
        "0.5000",
        "0.7000",
    ]
    first, _, _, last = found.sentences()
    assert (
        first.startswith("On the pooled test data the sites gained +0.1750 (") and "PR-AUC on average against" in first
    )
    assert last.startswith("Lost on their own test data: north −0.1500 (") and "south" not in last


def test_a_lower_loss_is_a_gain_and_a_single_seed_is_not_tested() -> None:
    found = site_gains(compared("log_loss", [{"north": (0.9, 0.5)}], [{"north": (0.4, 0.3)}]), "local", "fedal")
    assert found.pooled["north"].difference.mean == pytest.approx(0.5)
    assert found.sentences()[1] == (
        "north: +0.5000 on the pooled data (not tested: it takes two seeds that differ), "
        "+0.2000 on its own data (not tested: it takes two seeds that differ)."
    )
    assert found.sentences()[-1] == "No site lost on its own test data."
    assert found.title == "log loss of each site, means over 1 seeds; lower is better, and a gain is a fall"


def test_a_site_without_a_value_of_its_own_is_left_out_there() -> None:
    local, after = {"north": (0.5, 0.7), "south": (0.6, None)}, {"north": (0.4, 0.8), "south": (0.5, None)}
    found = site_gains(compared("pr_auc", [local], [after]), "local", "fedal")
    assert set(found.own) == {"north", EVERYONE} and found.rows()[1][4:] == ["-", "-", "-"]
    assert "the sites did not gain: −0.1000" in found.sentences()[0]
    assert found.sentences()[2].endswith("differ), no PR-AUC on its own data.") and "no PR" not in found.sentences()[1]
    assert found.sentences()[-1] == "No site with a value lost on its own test data."
    assert found.title == "PR-AUC of each site, means over 1 seeds"
    none = Comparison(Path("x"), (0,), [MethodRuns("local", []), MethodRuns("fedal", [], "no reason")], [], "")
    with pytest.raises(ConfigError, match="local: not applicable"):
        site_gains(none, "local", "fedal")
