"""Partitions: who gets what, exactly once, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedal.data.partition import (
    PARTITIONS,
    class_table,
    divide,
    draw_public,
    partition_by_user,
    partition_dirichlet,
    partition_dirichlet_client,
    partition_dirichlet_client_k,
    partition_iid,
)
from fedal.errors import PartitionError

CLIENT_WISE = ["dirichlet-client", "dirichlet-client-k"]
EVERY_INDEX_ONCE = ["iid", "dirichlet"]


def make_labels(n: int, n_classes: int = 10, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, n_classes, n)


def effective_classes(labels: np.ndarray, parts: list[np.ndarray], n_classes: int) -> float:
    """Mean over the clients of exp(entropy of the label frequencies)."""
    table = class_table(labels, parts, n_classes)
    q = table / table.sum(axis=1, keepdims=True)
    return float(np.exp(-(q * np.log(np.where(q > 0, q, 1))).sum(axis=1)).mean())


requests = st.fixed_dictionaries(
    {
        "labels": st.lists(st.integers(0, 6), min_size=12, max_size=200).map(np.array),
        "n_clients": st.integers(1, 12),
        "alpha": st.sampled_from([1e-300, 1e-6, 1e-2, 0.5, 1.0, 50.0, 1e12]),
        "seed": st.integers(0, 2**32),
    }
)


def run(name: str, request: dict, **more):
    rng = np.random.default_rng(request["seed"])
    return divide(name, request["labels"], request["n_clients"], request["alpha"], rng, min_samples=0, **more)


@pytest.mark.parametrize("name", EVERY_INDEX_ONCE)
@given(request=requests)
def test_every_index_is_given_exactly_once(name, request):
    partition = run(name, request)
    assert np.array_equal(np.sort(np.concatenate(partition.clients)), np.arange(len(request["labels"])))
    assert partition.leftovers == 0


@pytest.mark.parametrize("name", CLIENT_WISE)
@given(request=requests)
def test_client_wise_sizes_are_equal_and_no_index_is_given_twice(name, request):
    partition = run(name, request)
    n, n_clients = len(request["labels"]), request["n_clients"]
    indices = np.concatenate(partition.clients)
    assert [len(part) for part in partition.clients] == [n // n_clients] * n_clients
    assert len(np.unique(indices)) == len(indices)
    assert partition.leftovers == n - len(indices) == n % n_clients


@pytest.mark.parametrize("name", CLIENT_WISE)
@given(request=requests)
def test_overlapping_clients_repeat_nothing_of_their_own(name, request):
    partition = run(name, request, allow_overlap=True)
    size = len(request["labels"]) // request["n_clients"]
    assert all(len(np.unique(part)) == len(part) == size for part in partition.clients)
    assert partition.leftovers == len(request["labels"]) - len(np.unique(np.concatenate(partition.clients)))


@pytest.mark.parametrize("name", PARTITIONS)
@settings(max_examples=30)
@given(request=requests)
def test_indices_are_sorted_int64_and_the_same_for_the_same_seed(name, request):
    users = np.arange(len(request["labels"]))
    first, second = (run(name, request, users=users) for _ in range(2))
    for one, other in zip(first.clients, second.clients, strict=True):
        assert one.dtype == np.int64
        assert np.all(np.diff(one) > 0)
        assert np.array_equal(one, other)


@pytest.mark.parametrize("name", PARTITIONS)
def test_another_seed_gives_another_split(name):
    labels, users = make_labels(400), np.arange(400) // 10
    one, other = (divide(name, labels, 4, 1.0, np.random.default_rng(s), users=users, min_samples=1) for s in (0, 1))
    assert any(not np.array_equal(a, b) for a, b in zip(one.clients, other.clients, strict=True))


def test_iid_sizes_differ_by_at_most_one():
    assert sorted(len(part) for part in partition_iid(np.zeros(11), 3, np.random.default_rng(0))) == [3, 4, 4]


@pytest.mark.parametrize("name", ["dirichlet", *CLIENT_WISE])
def test_a_large_alpha_is_nearly_uniform_and_a_small_one_skewed(name):
    labels = make_labels(20_000)
    rng = np.random.default_rng(0)
    even = divide(name, labels, 10, 1e6, rng, min_samples=1).clients
    table = class_table(labels, even, 10)
    assert np.abs(table - 200).max() < 60
    skewed = divide(name, labels, 10, 0.01, rng, min_samples=0).clients
    assert effective_classes(labels, [part for part in skewed if len(part)], 10) < 4


@pytest.mark.parametrize(
    ("partition", "alpha", "expected"),
    [
        (partition_dirichlet_client, 5.0, 9.2),
        (partition_dirichlet_client, 2.0, 8.2),
        (partition_dirichlet_client, 1.0, 6.9),
        (partition_dirichlet_client_k, 5.0, 5.5),
        (partition_dirichlet_client_k, 2.0, 3.5),
        (partition_dirichlet_client_k, 1.0, 2.5),
    ],
)
def test_the_effective_number_of_classes_is_the_one_of_the_dirichlet_prior(partition, alpha, expected):
    """Clients that draw from a large pool; the expected values are means of exp(entropy of q)."""
    labels = make_labels(50_000)
    parts = partition(labels, 120, alpha, np.random.default_rng(0), allow_overlap=True)
    assert effective_classes(labels, parts, 10) == pytest.approx(expected, abs=0.35)


def test_dirichlet_splits_a_class_by_dirichlet_shares():
    """Mean and variance of the first client's share of one class: 1/N and (N-1) / (N^2 (N alpha + 1))."""
    rng = np.random.default_rng(0)
    n_clients, alpha = 4, 0.5
    shares = [len(partition_dirichlet(np.zeros(1000), n_clients, alpha, rng)[0]) / 1000 for _ in range(3000)]
    assert np.mean(shares) == pytest.approx(1 / n_clients, abs=0.015)
    variance = (n_clients - 1) / (n_clients**2 * (n_clients * alpha + 1))
    assert np.var(shares) == pytest.approx(variance, rel=0.1)


def test_an_exhausted_class_is_removed_and_the_others_are_drawn_instead():
    labels = np.array([0] * 5 + [1] * 195)  # at a tiny alpha, whoever wants class 0 soon has to take class 1
    for seed in range(20):
        parts = partition_dirichlet_client(labels, 4, 1e-9, np.random.default_rng(seed))
        table = class_table(labels, parts, 2)
        assert table.sum(axis=1).tolist() == [50] * 4
        assert table[:, 0].sum() == 5 or (table[:, 0] == 0).all()


def test_clients_draw_in_turn():
    """Two clients that want the same class share it evenly, whatever their order."""
    labels = np.array([0] * 100 + [1] * 100)
    seen = 0
    for seed in range(40):
        table = class_table(labels, partition_dirichlet_client(labels, 2, 1e-9, np.random.default_rng(seed)), 2)
        assert table.tolist() in ([[50, 50], [50, 50]], [[100, 0], [0, 100]], [[0, 100], [100, 0]])
        seen += table[0, 0] == 50
    assert 10 < seen < 30  # the same favourite in half of the cases


def test_class_table_counts():
    labels = np.array([0, 2, 2, 1, 0])
    table = class_table(labels, [np.array([0, 1, 2]), np.array([4])], n_classes=4)
    assert table.tolist() == [[1, 0, 2, 0], [1, 0, 0, 0]]


@pytest.mark.parametrize("kind", [int, str])
def test_by_user_keeps_users_whole(kind):
    users = np.random.default_rng(0).integers(0, 30, 600).astype(kind)
    labels = make_labels(600)
    partition = divide("by-user", labels, 12, 1.0, np.random.default_rng(1), users=users)
    owners = [np.unique(users[part]) for part in partition.clients]
    assert all(len(owner) == 1 for owner in owners)
    assert len({owner[0] for owner in owners}) == 12
    assert all(len(part) == np.sum(users == owner[0]) for part, owner in zip(partition.clients, owners, strict=True))
    assert partition.leftovers == 600 - sum(len(part) for part in partition.clients)


def test_by_user_draws_only_users_with_enough_samples():
    users = np.repeat(np.arange(6), [1, 9, 2, 9, 3, 9])
    parts = partition_by_user(users, 3, np.random.default_rng(0), min_samples=8)
    assert [int(users[part[0]]) for part in parts] == [1, 3, 5]
    with pytest.raises(PartitionError, match=r"4 clients .* at least 8 samples .* has 3 \(of 6 users\)"):
        partition_by_user(users, 4, np.random.default_rng(0), min_samples=8)


def test_the_public_set_is_uniform_sorted_and_without_repeats():
    public = draw_public(1000, 300, np.random.default_rng(0))
    assert public.dtype == np.int64 and len(public) == 300
    assert np.all(np.diff(public) > 0)
    assert abs(public.mean() - 500) < 60
    assert np.array_equal(public, draw_public(1000, 300, np.random.default_rng(0)))
    assert len(draw_public(10, 0, np.random.default_rng(0))) == 0


@pytest.mark.parametrize("size", [11, -1])
def test_an_impossible_public_set_is_refused(size):
    with pytest.raises(PartitionError, match=f"public set of {size} .* from 10"):
        draw_public(10, size, np.random.default_rng(0))


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan"), float("inf")])
def test_alpha_must_be_positive(alpha):
    with pytest.raises(PartitionError, match=r"alpha is .*positive"):
        divide("dirichlet", make_labels(100), 2, alpha, np.random.default_rng(0))


@pytest.mark.timeout(20)  # at once; a list with a place for each client would take minutes
@pytest.mark.parametrize("name", PARTITIONS)
def test_more_clients_than_samples_are_refused_at_once(name):
    with pytest.raises(PartitionError, match="1000000000 clients and only 20 samples"):
        divide(name, make_labels(20), 10**9, 1.0, np.random.default_rng(0))


@pytest.mark.parametrize("n_clients", [0, -3])
def test_a_run_needs_clients(n_clients):
    with pytest.raises(PartitionError, match="at least 1"):
        divide("iid", make_labels(20), n_clients, 1.0, np.random.default_rng(0))


def test_a_client_with_too_few_samples_is_named_with_what_to_try():
    labels = np.array([0] * 20)
    names = ["hospital-1", "hospital-2"]
    with pytest.raises(PartitionError) as caught:
        divide("dirichlet", labels, 2, 1e-9, np.random.default_rng(0), client_names=names)
    message = str(caught.value)
    assert any(f'client "{name}" gets 0 samples; the minimum is 8.' in message for name in names)
    assert "larger alpha, fewer clients, another seed" in message


@pytest.mark.parametrize("name", ["iid", *CLIENT_WISE])
def test_where_sizes_are_equal_only_fewer_clients_help(name):
    with pytest.raises(PartitionError) as caught:
        divide(name, make_labels(20), 4, 1.0, np.random.default_rng(0))
    assert str(caught.value) == (
        'client "client-0" gets 5 samples; the minimum is 8 (3 more below it). '
        "Try fewer clients, or --set min_samples=5."
    )


def test_an_unknown_partition_is_answered_with_the_nearest():
    with pytest.raises(PartitionError, match=r'"dirichlet_client".*Did you mean dirichlet-client'):
        divide("dirichlet_client", make_labels(100), 2, 1.0, np.random.default_rng(0))


def test_by_user_needs_one_user_per_sample():
    with pytest.raises(PartitionError, match="by-user"):
        divide("by-user", make_labels(100), 2, 1.0, np.random.default_rng(0))
    with pytest.raises(PartitionError, match="99 users for 100 labels"):
        divide("by-user", make_labels(100), 2, 1.0, np.random.default_rng(0), users=np.zeros(99))


@pytest.mark.timeout(60)  # under a second; work that grows with the square of the samples takes many minutes
@pytest.mark.parametrize("allow_overlap", [False, True])
@pytest.mark.parametrize("name", PARTITIONS)
def test_sixty_thousand_samples_are_divided_among_a_hundred(name, allow_overlap):
    labels, users = make_labels(60_000), make_labels(60_000, 3000)
    rng = np.random.default_rng(0)
    clients = divide(name, labels, 100, 1.0, rng, users=users, allow_overlap=allow_overlap, min_samples=1).clients
    assert len(clients) == 100
    assert min(map(len, clients)) >= 1
    assert max(map(len, clients)) < 60_000
