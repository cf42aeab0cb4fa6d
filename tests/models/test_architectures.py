"""The architectures: sizes counted by hand, shapes, features, gradients."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from fedal.models import MODELS, build
from fedal.models.wide_resnet import WideResNet

SHAPES = {
    "mlp-small": (1, 8, 8),
    "cnn-small": (1, 8, 8),
    "cnn-small-bn": (1, 8, 8),
    "lenet5": (1, 28, 28),
    "wrn-10-1": (3, 32, 32),
    "wrn-10-2": (3, 32, 32),
    "wrn-16-1": (3, 32, 32),
    "resnet18": (3, 32, 32),
    "resnet34": (3, 32, 32),
    "celeba-cnn": (3, 84, 84),
}


def n_parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def bn(width: int) -> int:
    return 2 * width


def wide_block(width_in: int, width: int) -> int:
    shortcut = width_in * width if width_in != width else 0
    return bn(width_in) + 9 * width_in * width + bn(width) + 9 * width * width + shortcut


def basic_block(width_in: int, width: int) -> int:
    shortcut = width_in * width + bn(width) if width_in != width else 0
    return 9 * width_in * width + bn(width) + 9 * width * width + bn(width) + shortcut


def test_every_model_of_the_table_is_tested_here():
    assert set(SHAPES) == set(MODELS)


@pytest.mark.parametrize("shape", [(1, 28, 28), (1, 32, 32)])
def test_lenet5_has_the_known_number_of_parameters(shape):
    by_hand = (25 * 6 + 6) + (25 * 6 * 16 + 16) + (25 * 16 * 120 + 120) + (120 * 84 + 84) + (84 * 10 + 10)
    assert n_parameters(build("lenet5", shape, 10)) == by_hand == 61_706


def test_wide_resnets_have_the_known_number_of_parameters():
    wrn_10_1 = 27 * 16 + wide_block(16, 16) + wide_block(16, 32) + wide_block(32, 64) + bn(64) + 650
    wrn_10_2 = 27 * 16 + wide_block(16, 32) + wide_block(32, 64) + wide_block(64, 128) + bn(128) + 1290
    wrn_16_1 = wrn_10_1 + wide_block(16, 16) + wide_block(32, 32) + wide_block(64, 64)
    assert n_parameters(build("wrn-10-1", (3, 32, 32), 10)) == wrn_10_1 == 77_850
    assert n_parameters(build("wrn-10-2", (3, 32, 32), 10)) == wrn_10_2
    assert n_parameters(build("wrn-16-1", (3, 32, 32), 10)) == wrn_16_1


def test_resnets_have_the_known_number_of_parameters():
    def by_hand(blocks: tuple[int, ...]) -> int:
        widths = (64, 64, 128, 256, 512)
        groups = sum(
            basic_block(before, width) + (n - 1) * basic_block(width, width)
            for n, before, width in zip(blocks, widths[:-1], widths[1:], strict=True)
        )
        return 27 * 64 + bn(64) + groups + 512 * 10 + 10

    assert n_parameters(build("resnet18", (3, 32, 32), 10)) == by_hand((2, 2, 2, 2)) == 11_173_962
    assert n_parameters(build("resnet34", (3, 32, 32), 10)) == by_hand((3, 4, 6, 3)) == 21_282_122


def test_celeba_cnn_has_the_1152_features_of_leaf_at_84():
    model = build("celeba-cnn", (3, 84, 84), 2)
    assert model.feature_width == 1152
    assert n_parameters(model) == 27 * 32 + 3 * 9 * 32 * 32 + 4 * bn(32) + 1152 * 2 + 2


def test_small_models_have_the_documented_size():
    conv = 9 * 16 + 9 * 16 * 32
    rest = (32 * 2 * 2 * 64 + 64) + 650
    assert n_parameters(build("mlp-small", (64,), 10)) == 64 * 64 + 64 + 650
    assert n_parameters(build("cnn-small", (1, 8, 8), 10)) == conv + 16 + 32 + rest
    assert n_parameters(build("cnn-small-bn", (1, 8, 8), 10)) == conv + bn(16) + bn(32) + rest


@pytest.mark.parametrize(
    ("name", "width"),
    [
        ("mlp-small", 64),
        ("cnn-small", 64),
        ("cnn-small-bn", 64),
        ("lenet5", 120),
        ("wrn-10-1", 64),
        ("wrn-10-2", 128),
        ("wrn-16-1", 64),
        ("resnet18", 512),
        ("resnet34", 512),
        ("celeba-cnn", 1152),
    ],
)
def test_features_have_the_declared_width(name, width):
    assert build(name, SHAPES[name], 10).feature_width == width


@pytest.mark.parametrize("name", SHAPES)
def test_logits_are_the_head_on_the_features(name):
    torch.manual_seed(0)
    model = build(name, SHAPES[name], 7).eval()
    x = torch.randn(3, *SHAPES[name])
    with torch.no_grad():
        features = model.features(x)
        logits = model(x)
        assert features.shape == (3, model.feature_width)
        assert logits.shape == (3, 7)
        assert torch.equal(model.classify(features), logits)


@pytest.mark.parametrize("name", SHAPES)
def test_gradients_reach_every_parameter_and_passes_can_be_backpropagated_together(name):
    torch.manual_seed(0)
    model = build(name, SHAPES[name], 10)
    first, second = (model(torch.randn(4, *SHAPES[name])) for _ in range(2))  # both pending before any backward
    torch.autograd.backward([first, second], [torch.randn(4, 10), torch.randn(4, 10)])
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


@pytest.mark.parametrize("name", SHAPES)
def test_no_model_draws_random_numbers_when_it_is_used(name):
    model = build(name, SHAPES[name], 10)
    before = torch.get_rng_state()
    model(torch.zeros(2, *SHAPES[name]))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", SHAPES)
def test_the_memory_layout_does_not_change_the_features(name):
    torch.manual_seed(0)
    model = build(name, SHAPES[name], 10).eval()
    x = torch.randn(2, *SHAPES[name])
    fast = copy.deepcopy(model).to(memory_format=torch.channels_last)
    with torch.no_grad():
        torch.testing.assert_close(
            fast.features(x.contiguous(memory_format=torch.channels_last)), model.features(x), rtol=1e-3, atol=1e-4
        )


def test_lenet5_pads_28_to_32_with_zeros():
    torch.manual_seed(0)
    framed, plain = build("lenet5", (1, 28, 28), 10), build("lenet5", (1, 32, 32), 10)
    plain.load_state_dict(framed.state_dict())
    x = torch.randn(2, 1, 28, 28)
    torch.testing.assert_close(framed(x), plain(nn.functional.pad(x, (2, 2, 2, 2))))


@pytest.mark.parametrize("name", ["mlp-small", "cnn-small", "cnn-small-bn"])
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 7, 5), (1, 28, 28), (3, 32, 32), (2, 3, 40)])
def test_small_models_adapt_to_the_image(name, shape):
    assert build(name, shape, 4).eval()(torch.zeros(2, *shape)).shape == (2, 4)


@pytest.mark.parametrize("shape", [(1,), (20,), (5, 6), (2, 3, 4, 5)])
def test_the_small_mlp_takes_any_rank(shape):
    assert build("mlp-small", shape, 3)(torch.zeros(2, *shape)).shape == (2, 3)


def test_wide_resnet_convolutions_are_he_normal():
    torch.manual_seed(0)
    model = build("wrn-10-2", (3, 32, 32), 10)
    largest = max((m for m in model.modules() if isinstance(m, nn.Conv2d)), key=lambda m: m.weight.numel())
    assert largest.weight.std().item() == pytest.approx((2 / (9 * 128)) ** 0.5, rel=0.02)


@pytest.mark.parametrize("depth", [4, 11, 15])
def test_a_wide_resnet_of_impossible_depth_is_refused(depth):
    with pytest.raises(ValueError, match="6n"):
        WideResNet(depth, 1, (3, 32, 32), 10)


@pytest.mark.parametrize("name", ["mlp-small", "cnn-small", "cnn-small-bn"])
def test_small_models_learn_digits_in_400_steps(name):
    from sklearn.datasets import load_digits

    digits = load_digits()
    x, y = torch.tensor(digits.images / 16, dtype=torch.float32)[:, None], torch.tensor(digits.target)
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(x), generator=generator)
    train, test = order[:1400], order[1400:]
    torch.manual_seed(0)
    model = build(name, (1, 8, 8), 10)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(400):
        batch = train[torch.randint(len(train), (32,), generator=generator)]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        assert (model(x[test]).argmax(1) == y[test]).float().mean() > 0.92
