"""Streams are functions of seed, purpose, owner and step; this file pins their bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedal.data.streams import PrivateData, PublicData, Samples
from fedal.seeding import BatchStream, digest, partition_generator, philox_key, raw_bits, torch_seeded
from splits import build_federation, run_rounds


def test_the_bits_of_the_streams_never_change() -> None:
    """A change here changes every result ever published with a seed: do not update these numbers lightly."""
    assert philox_key(0, "public") == 0xCFDF56FCD59B4B7972D6C51403F85042
    assert philox_key(7, "private", "client-03") == 0xCF08C87DDF91E504942CCF0648FB1B5F
    key = philox_key(0, "public")
    assert raw_bits(key, 0, 3).tolist() == [4849490737414828491, 7705983662565858306, 18352632628386527009]
    assert raw_bits(key, 5, 2).tolist() == [8216480480027884445, 17485910364970167956]
    stream = BatchStream(10, 4, 0, "public")
    assert [stream.indices(step).tolist() for step in range(4)] == [
        [6, 4, 8, 0],
        [1, 3, 7, 9],
        [8, 7, 6, 1],
        [4, 0, 5, 9],
    ]
    assert BatchStream(3, 5, 1, "private", "a").indices(2).tolist() == [2, 0, 0, 1, 1]
    assert digest(stream.indices(0)) == "d99bed2c06b42630"


@pytest.mark.parametrize("step", [0, 1, 2**40, 2**64 + 3, 2**127])
def test_draws_are_those_of_a_philox_made_for_them(step: int) -> None:
    key = philox_key(1, "any")
    for n in (3, 8):  # 3: what is left of a block of four must not be drawn next
        assert np.array_equal(raw_bits(key, step, n), np.random.Philox(key=key, counter=step << 128).random_raw(n))


def test_any_part_of_the_name_changes_the_key() -> None:
    keys = [
        philox_key(*name)
        for name in [(0, "public"), (1, "public"), (0, "private"), (0, "public", "a"), (0, "publica"), (10, "ublic")]
    ]
    assert len(set(keys)) == len(keys)


def test_steps_of_a_stream_do_not_overlap() -> None:
    draws = np.concatenate([raw_bits(3, step, 1000) for step in range(5)])
    assert len(np.unique(draws)) == len(draws)


def test_a_longer_draw_begins_with_the_shorter_one() -> None:
    assert raw_bits(3, 1, 10)[:4].tolist() == raw_bits(3, 1, 4).tolist()


@pytest.mark.parametrize(("n", "batch"), [(10, 4), (8, 4), (3, 5), (5, 5), (1, 4)])
def test_random_access_returns_the_same_batches_as_sequential_access(n: int, batch: int) -> None:
    through = BatchStream(n, batch, 0, "private", "a")
    expected = [through.indices(step).tolist() for step in range(30)]
    jumping = BatchStream(n, batch, 0, "private", "a")
    order = np.random.Generator(np.random.Philox(key=1)).permutation(30)
    assert all(jumping.indices(int(step)).tolist() == expected[step] for step in order)
    assert all(BatchStream(n, batch, 0, "private", "a").indices(step).tolist() == expected[step] for step in (0, 7, 29))


def test_no_sample_occurs_twice_in_an_epoch() -> None:
    stream = BatchStream(22, 4, 0, "private", "a")
    for epoch in range(6):
        seen = np.concatenate([stream.indices(epoch * 5 + position) for position in range(5)])
        assert len(set(seen.tolist())) == 20 and set(seen.tolist()) <= set(range(22))


def test_samples_left_out_of_one_epoch_occur_in_others() -> None:
    stream = BatchStream(22, 4, 0, "private", "a")
    assert {int(index) for step in range(50) for index in stream.indices(step)} == set(range(22))


def test_epochs_have_different_orders() -> None:
    stream = BatchStream(20, 20, 0, "private", "a")
    orders = {tuple(stream.indices(epoch).tolist()) for epoch in range(20)}
    assert len(orders) == 20


@pytest.mark.parametrize("n", [1, 2, 3, 5, 7])
def test_fewer_samples_than_a_batch_repeat_evenly(n: int) -> None:
    stream = BatchStream(n, 8, 0, "private", "a")
    for step in range(5):
        counts = np.bincount(stream.indices(step), minlength=n)
        assert counts.sum() == 8 and counts.max() - counts.min() <= 1


def test_adding_a_client_changes_nothing_for_the_others() -> None:
    streams = {name: BatchStream(20, 4, 0, "private", name) for name in ("a", "b", "c")}
    alone = BatchStream(20, 4, 0, "private", "a")
    assert [streams["a"].indices(s).tolist() for s in range(9)] == [alone.indices(s).tolist() for s in range(9)]
    assert streams["a"].indices(0).tolist() != streams["b"].indices(0).tolist()


def test_the_order_of_a_batch_is_part_of_its_digest() -> None:
    indices = np.array([3, 1, 2])
    assert digest(indices) == digest(indices.copy()) == digest(indices.astype(">i8"))
    assert digest(indices) != digest(indices[::-1]) != digest(np.array([3, 1]))


def test_the_name_of_a_batch_does_not_depend_on_earlier_calls() -> None:
    stream, other = BatchStream(10, 4, 0, "public"), BatchStream(10, 4, 0, "public")
    for step in (0, 1, 5, 4, 0, 3, 2):  # through its epochs of two steps, forwards and backwards
        assert stream.name(step) == digest(other.indices(step)) == digest(stream.indices(step))


def test_a_seeded_block_does_not_change_the_global_generator() -> None:
    before = torch.get_rng_state()
    with torch_seeded(0, "weights", "a"):
        first = torch.rand(3)
    assert torch.equal(torch.get_rng_state(), before)
    with torch_seeded(0, "weights", "a"):
        assert torch.equal(torch.rand(3), first)
    with torch_seeded(0, "weights", "b"):
        assert not torch.equal(torch.rand(3), first)


def test_a_partition_generator_starts_from_scratch_every_time() -> None:
    first, second = (partition_generator(0, "partition").random(4).tolist() for _ in range(2))
    assert first == second != partition_generator(1, "partition").random(4).tolist()


def samples(n: int) -> Samples:
    return Samples(np.arange(n, dtype=np.float32).reshape(n, 1), torch.float32)


def test_the_public_stream_is_the_same_for_every_tau() -> None:
    steps = {}
    for tau in (1, 3, 4):
        public = PublicData(samples(20), BatchStream(20, 4, 0, "public"), tau)
        steps[tau] = [public.batch(step // tau, step % tau).flatten().tolist() for step in range(12)]
    assert steps[1] == steps[3] == steps[4]


def test_private_batches_are_the_clients_own_samples_with_their_labels() -> None:
    labels = torch.arange(20) % 3
    own = np.array([1, 4, 7, 9, 11, 13], dtype=np.int64)
    private = PrivateData(samples(20), labels, own, 5, BatchStream(6, 4, 0, "private", "a"), tau=2)
    for t, i in [(0, 0), (3, 1)]:
        x, y = private.batch(t, i)
        assert set(x.flatten().long().tolist()) <= set(own.tolist())
        assert y.tolist() == [int(value) % 3 for value in x.flatten()]
    assert len(private) == 6 and private.label_counts.tolist() == [1, 4, 1, 0, 0]


def test_a_batch_of_images_is_channels_last_without_a_copy_and_keeps_its_values() -> None:
    x = np.random.Generator(np.random.Philox(key=0)).normal(size=(9, 3, 5, 4)).astype(np.float32)
    staged = Samples(x, torch.float32)
    batch = staged.take(torch.tensor([4, 0, 8, 4]))
    assert batch.is_contiguous(memory_format=torch.channels_last) and batch.shape[1:] == (3, 5, 4)
    assert np.array_equal(batch.numpy(), x[[4, 0, 8, 4]])


def drawn_public_batches(method: str, tau: int, rounds: int) -> list[str | None]:
    federation = build_federation(method, tau=tau)
    digests: list[str | None] = []
    anna = federation.clients["anna"]
    federation.watch.exchanged = lambda uploads: digests.append(anna.public.drawn)
    run_rounds(federation, rounds)
    return digests


def test_every_method_with_every_tau_sees_the_same_public_batches() -> None:
    runs = [
        drawn_public_batches(method, tau, rounds)
        for method in ("fedmd", "fedmd-lf", "fedal")
        for tau, rounds in ((1, 6), (3, 2))
    ]
    assert len(runs[0]) == 6 and len(set(runs[0])) == 6
    assert all(run == runs[0] for run in runs)


@pytest.mark.parametrize("n_samples", [5, 32, 63, 64, 200])
def test_several_batches_at_once_are_those_of_single_steps_across_epochs(n_samples: int) -> None:
    some, single = (BatchStream(n_samples, 32, 7, "private", "anna") for _ in range(2))
    for step, count in [(0, 1), (4, 5), (5, 20), (3, 2)]:
        expected = np.stack([single.indices(each) for each in range(step, step + count)])
        assert np.array_equal(some.following(step, count), expected)
