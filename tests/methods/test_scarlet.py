"""SCARLET: labels that are kept, renewed and counted; clients that were absent; limits and a plain reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fedal.config import Config
from fedal.engine.loop import Federation
from fedal.errors import ConfigError, WireError
from fedal.messages import NewLabels, NewOutputs
from fedal.methods.outputs.scarlet import NONE, lacking
from fedal.wire import Wire
from plain_rounds import TAU, Logits, check_against_plain, soft_divergence
from splits import BATCH, CLASSES, build_federation, differing_clients, run_rounds

BATCHES = 5  # of the public set of 40: sample j is seen in every epoch of five batches


def trained(rounds: int = 6, **options: Any) -> Federation:
    return run_rounds(build_federation("scarlet", tau=BATCHES, **options), rounds)


@pytest.mark.parametrize("rounds", [1, 5])
def test_every_sample_is_paid_for_once_in_a_lifetime(rounds: int) -> None:
    """A round is an epoch of the public set; a label of round t is used in rounds t, t + 1, t + 2."""
    federation = trained(rounds, lifetime=3)
    paid = len([t for t in range(rounds) if t % 3 == 0])
    each = federation.wire.up_bytes["anna"]
    assert each == 4 * CLASSES * BATCH * BATCHES * paid
    assert federation.wire.down_bytes["anna"] == (4 * CLASSES + 1) * BATCH * BATCHES * paid


def test_nothing_is_kept_before_the_warm_up_ends() -> None:
    federation = trained(3, lifetime=2, warmup=BATCHES)  # rounds 0 and 1 are paid for, 2 is not
    assert federation.wire.up_bytes["anna"] == 2 * 4 * CLASSES * BATCH * BATCHES


def test_without_a_cache_it_is_fedmd_with_the_same_sharpening_bit_for_bit() -> None:
    plain = run_rounds(build_federation("fedmd", tau=2, space="probabilities", aggregate="power", sharpness=2.0), 3)
    found = run_rounds(build_federation("scarlet", tau=2, lifetime=0), 3)
    assert differing_clients(found, plain) == []
    assert found.wire.up_bytes == plain.wire.up_bytes
    assert differing_clients(
        run_rounds(build_federation("scarlet", tau=2, lifetime=9), 6), run_rounds(plain, range(3, 6))
    )


def holdings(federation: Federation, client: str) -> tuple[Tensor, Tensor]:
    return federation.server._held[client], federation.clients[client]._made


def test_both_ends_agree_on_what_a_client_holds_also_after_an_absence() -> None:
    federation = build_federation("scarlet", tau=3, lifetime=4)
    for t in range(12):
        federation.run_round(
            t, lambda client, exchange, t=t: client == "ben" and (t in (2, 3) or (t, exchange) == (6, 1))
        )
        for client in federation.roster:
            server, own = holdings(federation, client)
            if federation.clients[client]._in_step:
                assert torch.equal(server, own), (t, client)
                kept = (own != NONE).nonzero()[:, 0]
                same = kept[own[kept] == federation.server._made[kept]]
                assert torch.equal(federation.clients[client]._labels[same], federation.server._labels[same])
        assert (federation.server._made >= federation.server._held["ben"]).all()


def test_a_client_whose_reply_was_lost_starts_afresh() -> None:
    federation = trained(1, lifetime=9)
    federation.clients["ben"]._in_step = False
    before = federation.wire.up_bytes["ben"]
    federation.run_round(1)
    assert federation.wire.up_bytes["ben"] == 2 * before and federation.wire.up_bytes["anna"] == before
    server, own = holdings(federation, "ben")
    assert torch.equal(server, own) and (own == 0).all()  # the labels of round 0, sent again


def test_rows_that_do_not_fit_what_the_server_knows_are_refused() -> None:
    server = trained(1, lifetime=9).server
    rows = torch.zeros(BATCH, CLASSES)
    server.refuse_unfit("anna", NewOutputs(rows[:0]), 1, 0)
    server.refuse_unfit("anna", NewOutputs(rows, 1), 1, 0)
    with pytest.raises(WireError, match="has 8 rows; expected 0"):
        server.refuse_unfit("anna", NewOutputs(rows), 1, 0)
    with pytest.raises(WireError, match="has 0 rows; expected 8"):
        server.refuse_unfit("anna", NewOutputs(rows[:0], 1), 1, 0)


def test_labels_are_distributions_with_one_age_each() -> None:
    wire = Wire((), (NewLabels,), {"K": 3}, torch.float32)
    good = torch.full((2, 3), 1 / 3)
    wire.down("a", NewLabels(good, torch.zeros(2, dtype=torch.uint8)))
    wire.down("a", NewLabels(good[:0], torch.zeros(0, dtype=torch.uint8)))
    with pytest.raises(WireError, match="has 1 numbers for 2 labels"):
        wire.down("a", NewLabels(good, torch.zeros(1, dtype=torch.uint8)))
    with pytest.raises(WireError, match="not a distribution"):
        wire.down("a", NewLabels(2 * good, torch.zeros(2, dtype=torch.uint8)))


def test_a_label_is_used_while_it_is_younger_than_its_lifetime() -> None:
    made = torch.tensor([NONE, 0, 1, 2, 3])
    assert lacking(made, 3, 2).tolist() == [True, True, True, False, False]
    assert lacking(made, 3, 0).all()


def test_scarlet_equals_autograd_with_a_dictionary_as_cache() -> None:
    cache: dict[int, tuple[int, Tensor]] = {}

    def losses(federation: Federation, t: int, i: int, f: Logits) -> Logits:
        ids = federation.clients["anna"].public.ids(t, i).tolist()
        p = torch.stack([torch.softmax(each.detach(), -1) for each in f.values()]).mean(0).square()
        for row, j in enumerate(ids):
            if j not in cache or t - cache[j][0] >= 3:
                cache[j] = (t, p[row] / p[row].sum())
        taught = torch.stack([cache[j][1] for j in ids])
        return {n: soft_divergence(taught, each) for n, each in f.items()}

    found = check_against_plain("scarlet", losses, rounds=8, lifetime=3)
    assert found.wire.up_bytes["anna"] < 8 * TAU * BATCH * CLASSES * 8


def test_kept_labels_belong_to_samples_that_do_not_change() -> None:
    with pytest.raises(ConfigError, match="scarlet keeps what it learnt about each sample"):
        Config(method="scarlet", public_augment="flip")
