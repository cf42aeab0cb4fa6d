"""Each loss: a case computed by hand, its closed-form gradient against autograd, and its limits."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedal.losses import (
    Loss,
    certainty,
    class_prior,
    cross_entropy,
    d_cross_entropy,
    d_kl,
    kl,
    kl_by_certainty,
    kl_to_probs,
    l1,
    mse,
    own_classes,
    probabilities,
    soft_cross_entropy,
    softmax,
)

SHAPES = [(1, 2), (4, 3), (7, 10), (32, 101)]
TEMPERATURES = [0.5, 1.0, 2.0, 3.7]


def random(*shape: int, seed: int = 0, scale: float = 3.0) -> Tensor:
    return scale * torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def random_labels(shape: tuple[int, int]) -> Tensor:
    return torch.randint(shape[1], (shape[0],), generator=torch.Generator().manual_seed(1))


def naive_kl(teacher: Tensor, student: Tensor, E: float) -> Tensor:
    log_q, p = torch.log_softmax(student / E, -1), torch.softmax(teacher / E, -1)
    return F.kl_div(log_q, p, reduction="batchmean")


def gradient_of(loss: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    at = at.clone().requires_grad_()
    return torch.autograd.grad(loss(at), at)[0]


def numeric_gradient(loss: Callable[[Tensor], Tensor], at: Tensor, h: float = 1e-5) -> Tensor:
    gradient = torch.zeros_like(at)
    for index in range(at.numel()):
        step = torch.zeros(at.numel(), dtype=at.dtype)
        step[index] = h
        difference = loss(at + step.view_as(at)) - loss(at - step.view_as(at))
        gradient.view(-1)[index] = difference / (2 * h)
    return gradient


def test_cross_entropy_of_two_equal_logits_is_log_two() -> None:
    loss = cross_entropy(torch.zeros(1, 2, dtype=torch.float64), torch.tensor([0]))
    assert loss.value.item() == pytest.approx(math.log(2), abs=1e-15)
    assert loss.gradient.tolist() == [[-0.5, 0.5]]


def test_cross_entropy_is_a_mean_over_the_batch() -> None:
    logits = torch.tensor([[0.0, 0.0], [0.0, math.log(3)]], dtype=torch.float64)
    loss = cross_entropy(logits, torch.tensor([0, 1]))
    assert loss.value.item() == pytest.approx((math.log(2) + math.log(4 / 3)) / 2, abs=1e-15)
    expected = torch.tensor([[-0.25, 0.25], [0.125, -0.125]], dtype=torch.float64)
    torch.testing.assert_close(loss.gradient, expected, rtol=0, atol=1e-15)


def test_kl_of_a_hand_case() -> None:
    teacher, student = torch.tensor([[[0.0, 0.0]], [[0.0, math.log(3)]]], dtype=torch.float64)
    loss = kl(teacher, student)  # p = (1/2, 1/2), q = (1/4, 3/4)
    assert loss.value.item() == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3), abs=1e-15)
    torch.testing.assert_close(loss.gradient, torch.tensor([[-0.25, 0.25]]).double(), rtol=0, atol=1e-15)


def test_temperature_divides_both_logits_and_the_gradient_without_a_squared_factor() -> None:
    teacher, student = random(4, 3, seed=1), random(4, 3, seed=2)
    warm, plain = kl(teacher, student, 2.0), kl(teacher / 2, student / 2)
    assert warm.value.item() == pytest.approx(plain.value.item(), abs=1e-14)
    torch.testing.assert_close(warm.gradient, plain.gradient / 2, rtol=0, atol=1e-16)


def test_mse_and_l1_of_a_hand_case() -> None:
    target, values = torch.tensor([[0.0, 1.0]]).double(), torch.tensor([[2.0, 1.0]]).double()
    assert mse(target, values).value.item() == 2.0
    assert mse(target, values).gradient.tolist() == [[2.0, 0.0]]
    assert l1(target, values).value.item() == 1.0
    assert l1(target, values).gradient.tolist() == [[0.5, 0.0]]


@pytest.mark.parametrize("shape", SHAPES)
def test_cross_entropy_equals_autograd(shape: tuple[int, int]) -> None:
    logits, labels = random(*shape), random_labels(shape)
    ours = cross_entropy(logits, labels)
    assert ours.value.item() == pytest.approx(F.cross_entropy(logits, labels).item(), abs=1e-12)
    expected = gradient_of(lambda f: F.cross_entropy(f, labels), logits)
    torch.testing.assert_close(ours.gradient, expected, rtol=0, atol=1e-12)
    assert torch.equal(d_cross_entropy(logits, labels), ours.gradient)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("E", TEMPERATURES)
def test_kl_equals_autograd_at_every_temperature(shape: tuple[int, int], E: float) -> None:
    teacher, student = random(*shape, seed=1), random(*shape, seed=2)
    ours = kl(teacher, student, E)
    assert ours.value.item() == pytest.approx(naive_kl(teacher, student, E).item(), abs=1e-12)
    expected = gradient_of(lambda f: naive_kl(teacher, f, E), student)
    torch.testing.assert_close(ours.gradient, expected, rtol=0, atol=1e-12)
    assert torch.equal(d_kl(teacher, student, E), ours.gradient)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("ours", "naive"), [(mse, F.mse_loss), (l1, F.l1_loss)])
def test_distances_equal_autograd(
    shape: tuple[int, int], ours: Callable[[Tensor, Tensor], Loss], naive: Callable[[Tensor, Tensor], Tensor]
) -> None:
    target, values = random(*shape, seed=1), random(*shape, seed=2)
    loss = ours(target, values)
    assert loss.value.item() == pytest.approx(naive(values, target).item(), abs=1e-12)
    torch.testing.assert_close(loss.gradient, gradient_of(lambda v: naive(v, target), values), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "loss",
    [
        lambda f: cross_entropy(f, torch.tensor([0, 2, 1])),
        lambda f: kl(random(3, 4, seed=5), f),
        lambda f: kl(random(3, 4, seed=5), f, 2.5),
        lambda f: mse(random(3, 4, seed=5), f),
        lambda f: l1(random(3, 4, seed=5), f),
    ],
    ids=["cross-entropy", "kl", "kl at 2.5", "mse", "l1"],
)
def test_a_gradient_is_the_numeric_derivative_of_its_value(loss: Callable[[Tensor], Loss]) -> None:
    at = random(3, 4, seed=6)
    numeric = numeric_gradient(lambda f: loss(f).value, at)
    torch.testing.assert_close(loss(at).gradient, numeric, rtol=0, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("E", TEMPERATURES)
def test_kl_gradient_is_exactly_zero_where_student_and_teacher_are_bit_identical(dtype: torch.dtype, E: float) -> None:
    for scale in (1e-3, 1.0, 50.0, 1e4):
        logits = random(32, 10, scale=scale).to(dtype)
        loss = kl(logits, logits.clone(), E)
        assert loss.gradient.numpy().tobytes() == bytes(loss.gradient.nbytes)  # +0.0 everywhere
        assert loss.value.item() == 0.0


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_of_softmax_gradients_sum_to_zero(shape: tuple[int, int]) -> None:
    student, teacher = random(*shape, seed=2), random(*shape, seed=1)
    for gradient in (d_cross_entropy(student, random_labels(shape)), d_kl(teacher, student, 2.0)):
        assert gradient.sum(-1).abs().max() < 1e-15


def test_losses_stay_finite_at_extreme_logits() -> None:
    far = torch.tensor([[1e4, -1e4, 0.0]])
    for loss in (cross_entropy(far, torch.tensor([1])), kl(far, -far)):
        assert loss.gradient.isfinite().all() and loss.value.isfinite()


def test_losses_do_not_change_their_arguments() -> None:
    teacher, student = random(4, 3, seed=1), random(4, 3, seed=2)
    before = teacher.clone(), student.clone()
    for loss in (cross_entropy(student, torch.zeros(4, dtype=torch.int64)), kl(teacher, student), l1(teacher, student)):
        assert loss.value.isfinite()
    assert torch.equal(teacher, before[0]) and torch.equal(student, before[1])


def test_class_prior_counts_pseudo_samples() -> None:
    prior = class_prior(torch.tensor([3, 0, 1]), smoothing=0.25)  # a quarter of four samples for each class
    torch.testing.assert_close(
        prior.exp(), torch.tensor([4 / 7, 1 / 7, 2 / 7], dtype=torch.float64), rtol=0, atol=1e-15
    )
    assert class_prior(torch.tensor([3, 0, 1]), smoothing=1e-6).exp()[1] == pytest.approx(1e-6, rel=1e-5)


def test_class_prior_does_not_depend_on_how_much_data_a_client_has() -> None:
    counts = torch.tensor([[3, 0, 1], [3000, 0, 1000]])
    few, many = class_prior(counts, smoothing=0.03)
    torch.testing.assert_close(few, many, rtol=0, atol=1e-15)


def test_own_classes_leave_the_logits_of_absent_classes_without_a_gradient() -> None:
    logits, labels = random(2, 3), torch.tensor([0, 2])
    shift = own_classes(torch.tensor([5, 0, 1]))
    assert shift.tolist() == [0.0, -math.inf, 0.0]
    found = d_cross_entropy(logits + shift, labels)
    assert (found[:, 1] == 0).all()
    torch.testing.assert_close(found[:, [0, 2]], d_cross_entropy(logits[:, [0, 2]], torch.tensor([0, 1])))
    assert torch.equal(logits + own_classes(torch.tensor([5, 2, 1])), logits), (
        "nothing changes where no class is absent"
    )


def test_a_uniform_class_prior_changes_no_gradient() -> None:
    logits, labels = random(6, 3), torch.tensor([0, 1, 2, 0, 1, 2])
    prior = class_prior(torch.bincount(labels, minlength=3), smoothing=0.03)
    balanced = d_cross_entropy(logits + prior, labels)
    torch.testing.assert_close(balanced, d_cross_entropy(logits, labels), rtol=0, atol=1e-15)


def test_a_prior_removes_the_class_bias_from_the_logits() -> None:
    """At flat logits, on data that follows the prior, the balanced loss has no gradient; cross-entropy has one."""
    counts = torch.tensor([6, 3, 1])
    labels = torch.arange(3).repeat_interleave(counts)
    flat = torch.zeros(10, 3, dtype=torch.float64)
    balanced = d_cross_entropy(flat + class_prior(counts, smoothing=1e-12), labels).sum(0)
    assert balanced.abs().max() < 1e-12
    assert d_cross_entropy(flat, labels).sum(0).abs().max() > 0.2


def test_soft_cross_entropy_of_a_hand_case() -> None:
    loss = soft_cross_entropy(torch.tensor([[0.25, 0.75]]).double(), torch.zeros(1, 2).double())
    assert loss.value.item() == pytest.approx(math.log(2), abs=1e-15)
    assert loss.gradient.tolist() == [[0.25, -0.25]]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_gradient_of_soft_cross_entropy_equals_autograd(shape: tuple[int, int]) -> None:
    target, logits = torch.softmax(random(*shape, seed=1), -1), random(*shape, seed=2)
    loss = soft_cross_entropy(target, logits)
    assert loss.value.item() == pytest.approx(F.cross_entropy(logits, target).item(), abs=1e-12)
    expected = gradient_of(lambda f: F.cross_entropy(f, target), logits)
    torch.testing.assert_close(loss.gradient, expected, rtol=0, atol=1e-12)


def test_soft_cross_entropy_with_certain_targets_is_cross_entropy() -> None:
    logits, labels = random(5, 4), random_labels((5, 4))
    soft, hard = soft_cross_entropy(F.one_hot(labels, 4).double(), logits), cross_entropy(logits, labels)
    torch.testing.assert_close(soft.gradient, hard.gradient, rtol=0, atol=1e-15)
    assert soft.value.item() == pytest.approx(hard.value.item(), abs=1e-14)


def test_a_target_of_zeros_adds_nothing_to_soft_cross_entropy() -> None:
    logits, target = random(4, 3), torch.softmax(random(4, 3, seed=1), -1)
    target[2] = 0
    loss, others = soft_cross_entropy(target, logits), [0, 1, 3]
    assert not loss.gradient[2].any()
    assert loss.value.item() == pytest.approx(
        3 / 4 * soft_cross_entropy(target[others], logits[others]).value.item(), abs=1e-14
    )


def test_kl_to_probs_of_a_hand_case() -> None:
    loss = kl_to_probs(torch.tensor([[1.0, 0.0]]).double(), torch.zeros(1, 2).double(), 2.0)
    assert loss.value.item() == pytest.approx(math.log(2), abs=1e-15)
    assert loss.gradient.tolist() == [[-0.25, 0.25]]


@pytest.mark.parametrize("E", TEMPERATURES)
def test_the_gradient_of_kl_to_probs_is_that_of_kl_to_the_same_teacher_and_of_its_value(E: float) -> None:
    teacher, student = random(4, 3, seed=1), random(4, 3, seed=2)
    target = torch.softmax(teacher / E, -1)
    loss = kl_to_probs(target, student, E)
    torch.testing.assert_close(loss.gradient, d_kl(teacher, student, E), rtol=0, atol=1e-15)
    numeric = numeric_gradient(lambda f: kl_to_probs(target, f, E).value, student)
    torch.testing.assert_close(loss.gradient, numeric, rtol=0, atol=1e-9)


def test_kl_to_probs_of_a_stack_is_that_of_each_client() -> None:
    target, student = torch.softmax(random(3, 4, 5, seed=1), -1), random(3, 4, 5, seed=2)
    each = torch.stack([kl_to_probs(p, f).gradient for p, f in zip(target, student, strict=True)])
    assert torch.equal(kl_to_probs(target, student).gradient, each)


def test_certainty_of_hand_cases() -> None:
    p = torch.tensor([[1.0, 0.0], [0.5, 0.5], [0.75, 0.25]]).double()
    entropy_in_bits = -(0.75 * math.log2(0.75) + 0.25 * math.log2(0.25))
    assert certainty(p)[:, 0].tolist() == pytest.approx([1.0, 0.0, 1 - entropy_in_bits], abs=1e-15)


def test_kl_by_certainty_of_a_hand_case() -> None:
    target = torch.tensor([[1.0, 0.0], [0.5, 0.5]]).double()  # the second sample has no weight
    loss = kl_by_certainty(target, torch.tensor([[0.0, 0.0], [1.0, 0.0]]).double(), 1.0, 2.0)
    assert loss.value.item() == pytest.approx(math.log(2) / 2, abs=1e-15)
    assert loss.gradient.tolist() == [[-0.125, 0.125], [0.0, 0.0]]


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("E", TEMPERATURES)
def test_the_gradient_of_kl_by_certainty_is_that_of_its_value(E: float, power: float) -> None:
    target, student = torch.softmax(3 * random(4, 3, seed=1), -1), random(4, 3, seed=2)
    loss = kl_by_certainty(target, student, power, E)
    numeric = numeric_gradient(lambda f: kl_by_certainty(target, f, power, E).value, student)
    torch.testing.assert_close(loss.gradient, numeric, rtol=0, atol=1e-9)
    torch.testing.assert_close(
        loss.gradient, certainty(target) ** power * kl_to_probs(target, student, E).gradient, rtol=0, atol=1e-15
    )


def test_kl_by_certainty_is_kl_where_everything_is_certain_or_the_power_is_zero() -> None:
    certain, student = torch.eye(3).double(), random(3, 3, seed=2)
    assert torch.equal(kl_by_certainty(certain, student, 1.0).gradient, kl_to_probs(certain, student).gradient)
    target = torch.softmax(random(3, 3, seed=1), -1)
    assert torch.equal(kl_by_certainty(target, student, 0.0).gradient, kl_to_probs(target, student).gradient)


def test_kl_by_certainty_of_a_stack_is_that_of_each_client() -> None:
    target, student = torch.softmax(random(3, 4, 5, seed=1), -1), random(3, 4, 5, seed=2)
    each = torch.stack([kl_by_certainty(p, f, 1.0).gradient for p, f in zip(target, student, strict=True)])
    assert torch.equal(kl_by_certainty(target, student, 1.0).gradient, each)


def test_terms_share_the_softmax_of_logits_until_they_change() -> None:
    f, y = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    d_cross_entropy(f, y)
    assert probabilities(f) is probabilities(f)
    assert torch.equal(probabilities(f), torch.softmax(f, -1))
    f.mul_(2)
    assert torch.equal(probabilities(f), torch.softmax(f, -1))
    with torch.inference_mode():
        learnt = torch.randn(4, 3)
    assert torch.equal(probabilities(learnt), torch.softmax(learnt, -1))
    leaf = f.clone().requires_grad_()
    assert probabilities(leaf) is not probabilities(leaf)


def test_the_losses_of_a_stack_do_not_depend_on_its_layout() -> None:
    """A stack may keep the values of a class together: the same numbers, up to rounding, in that layout."""
    rows = torch.randn(3, 8, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    by_class = rows.transpose(1, 2).contiguous().transpose(1, 2)
    y = torch.arange(24).view(3, 8) % 5
    pairs = [(softmax(by_class), softmax(rows)), (d_cross_entropy(by_class, y), d_cross_entropy(rows, y))]
    pairs.append((d_kl(2 * rows, by_class, 2.0), d_kl(2 * rows, rows, 2.0)))
    for found, expected in pairs:
        assert found.stride() == by_class.stride()
        torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-14)
    assert torch.equal(softmax(rows), torch.softmax(rows, -1))
    assert torch.equal(softmax(rows[0].T), torch.softmax(rows[0].T, -1))  # a single client's never changes its bits
