"""A site decides what may leave it: no server, whatever method it runs, gets more than the site allows."""

from __future__ import annotations

from pathlib import Path

import pytest

from commands import fedal
from deployments import Rehearsal
from fedal import methods
from fedal.deploy.consent import ALLOWANCES, SINGLE, parse_allowance, refuse_unallowed
from fedal.deploy.refusals import Code, Refused
from fedal.errors import ConfigError
from fedal.messages import LEAK_WORDS, OUTPUTS_ONLY, Leak


@pytest.mark.parametrize("name", methods.names())
@pytest.mark.parametrize("allowed", [[], ["black-box"], *([word] for word in SINGLE)], ids=" ".join)
def test_a_method_is_refused_exactly_if_one_of_its_messages_reveals_more(name: str, allowed: list[str]) -> None:
    """Computed here from the message types alone, beside what the site's check says."""
    method = methods.get(name)
    permitted = {leak for leak in LEAK_WORDS if leak in OUTPUTS_ONLY or any(leak in ALLOWANCES[w] for w in allowed)}
    sent = {leak for message in (*method.up, *method.down) for leak in LEAK_WORDS if leak in message.leak}
    if sent <= permitted:
        refuse_unallowed(method, parse_allowance(allowed))
    else:
        with pytest.raises(Refused, match="does not allow") as refused:
            refuse_unallowed(method, parse_allowance(allowed))
        assert refused.value.code == Code.NOT_ALLOWED


@pytest.mark.parametrize("name", methods.names())
def test_the_advised_words_are_enough_and_none_is_needless(name: str) -> None:
    method = methods.get(name)
    try:
        refuse_unallowed(method, OUTPUTS_ONLY)
    except Refused as refused:
        words = refused.text.rpartition("--allow ")[2].rstrip(".").split(",")
        refuse_unallowed(method, parse_allowance(words))
        for word in words:
            with pytest.raises(Refused):
                refuse_unallowed(method, parse_allowance(set(words) - {word}))


def test_words_of_allow() -> None:
    assert parse_allowance([]) == OUTPUTS_ONLY == parse_allowance(["outputs-only"])
    assert parse_allowance(["label-counts", "class-features"]) == OUTPUTS_ONLY | Leak.LABEL_COUNTS | Leak.CLASS_FEATURES
    assert Leak.PARAMETERS not in parse_allowance(["black-box"]) and Leak.PRIVATE_LABELS in parse_allowance(
        ["black-box"]
    )
    with pytest.raises(ConfigError, match=r"label-count: not a kind of content. Did you mean label-counts"):
        parse_allowance(["label-count"])


@pytest.mark.parametrize("method", ["fedavg", "fedgkt", "fd"])
def test_a_server_that_changes_its_method_gets_nothing(tmp_path: Path, method: str) -> None:
    """The invitations are valid and the settings too; the site ends before it reads a private sample."""
    rehearsal = Rehearsal(tmp_path, export=False, method=method, models="mlp-small")
    (tmp_path / "sites").mkdir()
    (tmp_path / "sites/client-00.npz").write_bytes(b"reading this would be an error of its own")
    with rehearsal.service() as service:
        thread, failure = rehearsal.join_in_thread("client-00", allow=OUTPUTS_ONLY)
        thread.join(30)
        assert not thread.is_alive()
        assert service.wire.up_bytes.total() == 0
    assert isinstance(failure[0], Refused) and failure[0].code == Code.NOT_ALLOWED
    assert not (tmp_path / "client-00.safetensors").exists()


def test_a_wrong_word_is_a_mistake_before_the_start(tmp_path: Path) -> None:
    words = ["--server", "localhost:1", "--name", "client-00", "--data", "x.npz", "--insecure", "--allow", "labels"]
    answer = fedal("join", *words)
    assert answer.code == 2 and "--allow labels" in answer.err and "label-counts" in answer.err
