"""Partitions: who gets what, exactly once, with the class shares that the name promises, and what is refused."""

from __future__ import annotations

import hashlib
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedal.data.partition import (
    PARTITIONS,
    class_table,
    divide,
    draw_public,
    effective_classes,
    equal_counts,
    largest_remainder,
    partition_by_user,
    partition_dirichlet,
    partition_dirichlet_client_balanced,
    partition_iid,
    rarest_class,
)
from fedal.errors import PartitionError

HONEST = ["dirichlet-client", "dirichlet-client-k"]
OVERLAPPING = [f"{name}-overlap" for name in HONEST]
BALANCED = [f"{name}-balanced" for name in HONEST]
CLIENT_WISE = [*HONEST, *OVERLAPPING, *BALANCED]
EVERY_INDEX_ONCE = ["iid", "dirichlet"]
SEEDS = 200


def make_labels(n: int, n_classes: int = 10, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, n_classes, n)


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


@pytest.mark.parametrize("name", [*HONEST, *BALANCED])
@given(request=requests)
def test_client_wise_sizes_are_equal_and_no_index_is_given_twice(name, request):
    partition = run(name, request)
    n, n_clients = len(request["labels"]), request["n_clients"]
    indices = np.concatenate(partition.clients)
    size = len(partition.clients[0])
    assert [len(part) for part in partition.clients] == [size] * n_clients
    assert size == n // n_clients if name in BALANCED else size <= n // n_clients
    assert len(np.unique(indices)) == len(indices)
    assert partition.leftovers == n - len(indices)


@pytest.mark.parametrize("name", OVERLAPPING)
@given(request=requests)
def test_overlapping_clients_repeat_nothing_of_their_own(name, request):
    partition = run(name, request)
    most = len(request["labels"]) // request["n_clients"]
    assert all(len(np.unique(part)) == len(part) <= most for part in partition.clients)
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


def test_pooled_clients_own_everything_whatever_the_seed():
    for seed in range(2):
        pooled = divide("pooled", make_labels(40), 3, 0.1, np.random.default_rng(seed))
        assert [part.tolist() for part in pooled.clients] == [list(range(40))] * 3
        assert pooled.leftovers == 0


@pytest.mark.parametrize("name", [name for name in PARTITIONS if name != "pooled"])
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
    assert effective_classes(class_table(labels, skewed, 10)) < 4


def concentration(name: str, alpha: float, n_classes: int) -> float:
    """Of each class, as the name of the partition reads alpha."""
    return alpha / n_classes if "-k" in name else alpha


def achieved_shares(name: str, alpha: float, n_clients: int, labels: np.ndarray, n_classes: int = 10) -> np.ndarray:
    """The class shares of all clients at all seeds.  -> (SEEDS, N, K)"""
    tables = []
    for seed in range(SEEDS):
        rng = np.random.default_rng([seed, n_clients])
        tables.append(
            class_table(labels, divide(name, labels, n_clients, alpha, rng, min_samples=1).clients, n_classes)
        )
    table = np.array(tables)
    return table / table.sum(axis=-1, keepdims=True)


def standard_errors_off(shares: np.ndarray, per_class: float) -> tuple[float, float]:
    """How many standard errors the means and the variance of shares are away from those of Dir(per_class).

    Of q ~ Dir(a, ..., a) with K entries each has mean 1/K and variance (1/K)(1 - 1/K) / (K a + 1). The squared
    deviation of a client, mean over its classes, has that variance as its mean; its own spread, which gives the
    standard error, is taken from draws of numpy's Dirichlet.
    """
    n_classes = shares.shape[-1]
    n_draws = shares[..., 0].size
    variance = (1 / n_classes) * (1 - 1 / n_classes) / (n_classes * per_class + 1)
    means = shares.reshape(-1, n_classes).mean(axis=0)
    drawn = np.random.default_rng(1).dirichlet([per_class] * n_classes, 20_000)
    spread = ((drawn - 1 / n_classes) ** 2).mean(axis=1).std()
    found = ((shares - 1 / n_classes) ** 2).mean(axis=-1)
    return (
        float(np.abs(means - 1 / n_classes).max() / np.sqrt(variance / n_draws)),
        float(abs(found.mean() - variance) / (spread / np.sqrt(n_draws))),
    )


TENFOLD = np.repeat(np.arange(10), 400)  # K = 10, 400 samples of each class


@pytest.mark.parametrize(
    ("name", "n_clients"), [*((name, n) for name in HONEST for n in (5, 10, 20)), *((name, 5) for name in OVERLAPPING)]
)
@pytest.mark.parametrize("alpha", [0.1, 1.0, 5.0])
def test_shares_have_the_moments_of_the_dirichlet(name, alpha, n_clients):
    """200 seeds; 5 standard errors are passed by chance once in 1.7 million comparisons."""
    shares = achieved_shares(name, alpha, n_clients, TENFOLD)
    means_off, variance_off = standard_errors_off(shares, concentration(name, alpha, 10))
    assert means_off < 5
    assert variance_off < 5


@pytest.mark.parametrize("n_clients", [5, 10, 20])
@pytest.mark.parametrize("name", BALANCED)
def test_balanced_shares_do_not(name, n_clients):
    """What forces every client and every class to be used up takes variance from the shares."""
    per_class = concentration(name, 1.0, 10)
    shares = achieved_shares(name, 1.0, n_clients, TENFOLD)
    assert shares.var() < 0.09 / (10 * per_class + 1)
    assert standard_errors_off(shares, per_class)[1] > 8


def test_shares_are_kept_where_classes_are_of_unequal_size():
    labels = np.repeat(np.arange(5), [300, 3000, 900, 1500, 600])
    shares = achieved_shares("dirichlet-client", 1.0, 4, labels, 5)
    assert max(standard_errors_off(shares, 1.0)) < 5


def test_the_size_is_the_largest_at_which_all_shares_are_kept():
    """Shares (1/2, 1/2) and (1/4, 3/4) ask 3/4 and 5/4 of a size: 300 / (3/4) = 400 and 400 / (5/4) = 320."""
    shares = np.array([[0.5, 0.5], [0.25, 0.75]])
    assert equal_counts(shares, np.array([300, 400]), most=350).tolist() == [[160, 160], [80, 240]]
    # One client alone: the smaller of n / N and 300 / (1/4).
    assert equal_counts(shares[1:], np.array([300, 400]), most=350).tolist() == [[88, 262]]
    assert equal_counts(shares[1:], np.array([300, 150]), most=225).tolist() == [[50, 150]]
    # Shares that leave a class out are not limited by it.
    assert equal_counts(np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([7, 1]), most=4).tolist() == [[3, 0], [3, 0]]


def test_largest_remainder():
    """Size 10 by (.45, .35, .2) is 4.5, 3.5, 2: the first of the equal remainders gets the missing one."""
    assert largest_remainder(np.array([[0.45, 0.35, 0.2]]), 10).tolist() == [[5, 3, 2]]
    assert largest_remainder(np.array([[0.14, 0.57, 0.29]]), 10).tolist() == [[1, 6, 3]]  # 1.4, 5.7, 2.9
    assert largest_remainder(np.array([[0.26, 0.26, 0.48]]), 5).tolist() == [[1, 1, 3]]  # 1.3, 1.3, 2.4


def test_a_class_is_never_asked_for_more_than_it_has():
    """Four clients want 5/8 of class 0, which has 5: size 2 would be 1.25 each, rounded 1, and 3 is 1.875, rounded 2.

    floor(5 / (4 * 5/8)) = 2, so 4 of 5. With 10 samples the formula gives 4: 2.5 each, rounded up to 3, 12 in all.
    Size 3 has 2 each, 8 in all, and fits.
    """
    shares = np.array([[0.625, 0.375]] * 4)
    assert equal_counts(shares, np.array([5, 100]), most=26)[:, 0].tolist() == [1, 1, 1, 1]
    assert equal_counts(shares, np.array([10, 100]), most=27).tolist() == [[2, 1]] * 4


@given(
    n_of_class=st.lists(st.integers(1, 60), min_size=1, max_size=8).map(np.array),
    n_clients=st.integers(1, 10),
    alpha=st.sampled_from([1e-3, 0.3, 1.0, 1e3]),
    seed=st.integers(0, 2**32),
)
def test_counts_stay_within_the_classes_and_next_to_the_shares(n_of_class, n_clients, alpha, seed):
    shares = np.random.default_rng(seed).dirichlet([alpha] * len(n_of_class), n_clients)
    shares = np.nan_to_num(shares, nan=1 / len(n_of_class))  # numpy gives nan where all weights underflow
    counts = equal_counts(shares, n_of_class, most=int(n_of_class.sum()) // n_clients)
    size = counts[0].sum()
    assert (counts.sum(axis=1) == size).all()
    assert (counts.sum(axis=0) <= n_of_class).all()
    assert np.abs(counts - size * shares).max() < 1 + 1e-9
    assert (size * shares.sum(axis=0) <= n_of_class + 1e-6).all()


def test_what_nobody_gets_is_counted():
    """At a tiny alpha every client has one class; here two of three have the same one, and share it."""
    labels = np.repeat(np.arange(4), 100)
    for seed in range(20):
        partition = divide("dirichlet-client", labels, 3, 1e-9, np.random.default_rng(seed))
        table = class_table(labels, partition.clients, 4)
        wanted = np.bincount(table.argmax(axis=1), minlength=4).max()
        assert table.max(axis=1).tolist() == table.sum(axis=1).tolist() == [100 // wanted] * 3
        assert partition.leftovers == 400 - 3 * (100 // wanted)


def test_classes_without_samples_play_no_part():
    labels = np.repeat([2, 5], 100)
    one, other = (divide("dirichlet-client-k", y, 2, 1.0, np.random.default_rng(0)) for y in (labels, labels // 5))
    assert all(np.array_equal(a, b) for a, b in zip(one.clients, other.clients, strict=True))
    assert class_table(labels, one.clients, 7)[:, [0, 1, 3, 4, 6]].sum() == 0


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("dirichlet-client-balanced", "2ebb0a571923b13e"),
        ("dirichlet-client-k-balanced", "b8d4541e50e8a450"),
    ],
)
def test_the_balanced_bits_are_those_of_the_runs_that_were_made_with_them(name, bits):
    parts = divide(name, np.arange(4000) % 10, 5, 1.0, np.random.default_rng(3)).clients
    assert hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()[:16] == bits


def test_the_rarest_class_counts_samples_and_owners():
    found = rarest_class(np.array([[50, 1, 0], [49, 0, 0], [0, 0, 30]]))
    assert found == (1, 1, 1, 130) and found.is_rare
    assert not rarest_class(np.array([[98, 2], [98, 2]])).is_rare and rarest_class(np.array([[5, 0], [4, 0]])).is_rare


def test_effective_classes():
    """exp(entropy): one class counts as 1, two equal ones as 2, (1/2, 1/4, 1/4) as 2 * sqrt(2)."""
    assert effective_classes(np.array([[7, 0, 0]])) == 1
    assert effective_classes(np.array([[3, 3, 0], [5, 0, 0]])) == pytest.approx(1.5)
    assert effective_classes(np.array([[2, 1, 1]])) == pytest.approx(2 * np.sqrt(2))
    assert effective_classes(np.array([[4, 4], [0, 0]])) == pytest.approx(2)  # nobody without samples counts
    assert np.isnan(effective_classes(np.zeros((2, 3), np.int64)))


@pytest.mark.parametrize(
    ("name", "alpha", "expected"),
    [
        ("dirichlet-client", 5.0, 9.2),
        ("dirichlet-client", 2.0, 8.2),
        ("dirichlet-client", 1.0, 6.9),
        ("dirichlet-client-k", 5.0, 5.5),
        ("dirichlet-client-k", 2.0, 3.5),
        ("dirichlet-client-k", 1.0, 2.5),
    ],
)
def test_the_effective_number_of_classes_is_the_one_of_the_dirichlet_prior(name, alpha, expected):
    """Expected are means of exp(entropy of q); 50 seeds of ten clients have a standard error below 0.06."""
    found = [
        effective_classes(class_table(TENFOLD, divide(name, TENFOLD, 10, alpha, rng).clients, 10))
        for rng in map(np.random.default_rng, range(50))
    ]
    assert np.mean(found) == pytest.approx(expected, abs=0.25)


def test_dirichlet_splits_a_class_by_dirichlet_shares():
    """Mean and variance of the first client's share of one class: 1/N and (N-1) / (N^2 (N alpha + 1))."""
    rng = np.random.default_rng(0)
    n_clients, alpha = 4, 0.5
    shares = [len(partition_dirichlet(np.zeros(1000), n_clients, alpha, rng)[0]) / 1000 for _ in range(3000)]
    assert np.mean(shares) == pytest.approx(1 / n_clients, abs=0.015)
    variance = (n_clients - 1) / (n_clients**2 * (n_clients * alpha + 1))
    assert np.var(shares) == pytest.approx(variance, rel=0.1)


def test_an_exhausted_class_is_removed_and_the_others_are_drawn_instead():
    labels = np.array([0] * 5 + [1] * 195)  # at a tiny alpha, who wants class 0 soon has to take class 1
    for seed in range(20):
        parts = partition_dirichlet_client_balanced(labels, 4, 1e-9, np.random.default_rng(seed))
        table = class_table(labels, parts, 2)
        assert table.sum(axis=1).tolist() == [50] * 4
        assert table[:, 0].sum() == 5 or (table[:, 0] == 0).all()


def test_clients_draw_in_turn():
    """Two clients that want the same class share it evenly, whatever their order."""
    labels = np.array([0] * 100 + [1] * 100)
    seen = 0
    for seed in range(40):
        parts = partition_dirichlet_client_balanced(labels, 2, 1e-9, np.random.default_rng(seed))
        table = class_table(labels, parts, 2)
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
    assert "larger alpha, fewer clients, or another seed" in message
    assert str(pickle.loads(pickle.dumps(caught.value))) == message  # noqa: S301 (our own)


@pytest.mark.parametrize("name", HONEST)
def test_a_class_that_is_too_small_for_the_shares_is_told_like_a_client_with_too_few(name):
    labels = np.repeat([0, 1], [300, 5])
    with pytest.raises(PartitionError) as caught:
        divide(name, labels, 4, 2e6, np.random.default_rng(0))  # at most 5 / (4 * 1/2) = 2.5 samples each
    assert str(caught.value) == (
        'client "client-0" gets 2 samples; the minimum is 8 (3 more below it). '
        "Try a larger alpha, fewer clients, another seed, or --set min_samples=2."
    )


@pytest.mark.parametrize("name", ["iid", *BALANCED])
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
@pytest.mark.parametrize("name", [name for name in PARTITIONS if name != "pooled"])
def test_sixty_thousand_samples_are_divided_among_a_hundred(name):
    labels, users = make_labels(60_000), make_labels(60_000, 3000)
    rng = np.random.default_rng(0)
    clients = divide(name, labels, 100, 1.0, rng, users=users, min_samples=1).clients
    assert len(clients) == 100
    assert min(map(len, clients)) >= 1
    assert max(map(len, clients)) < 60_000
