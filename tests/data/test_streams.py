"""Batches as functions of the step, and samples that are views."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedal.data import streams
from fedal.data.dataset import normalise
from fedal.data.streams import PrivateData, PrivateStack, Samples
from fedal.seeding import BatchStream


def test_normalised_images_are_staged_without_a_copy() -> None:
    pixels = np.arange(2 * 3 * 4 * 5, dtype=np.uint8).reshape(2, 3, 4, 5)
    x = normalise(pixels, (0.5, 0.4, 0.3), (0.1, 0.2, 0.3))
    samples = Samples(x, torch.float32)
    assert samples._staged.data_ptr() == x.__array_interface__["data"][0]
    expected = (pixels / 255 - np.array([0.5, 0.4, 0.3])[:, None, None]) / np.array([0.1, 0.2, 0.3])[:, None, None]
    np.testing.assert_allclose(samples.take(torch.tensor([1, 0])).numpy(), expected[[1, 0]], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(3,), (2, 4, 4)])
@pytest.mark.parametrize("numbers", [1, 700, 2**20], ids=["one step", "some steps", "a round"])
def test_a_stack_draws_the_batches_of_its_members(
    shape: tuple[int, ...], numbers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "STAGED", numbers)
    generator = np.random.Generator(np.random.Philox(key=1))
    samples = Samples(generator.standard_normal((60, *shape), dtype=np.float32), torch.float32)
    labels, parts = torch.arange(60) % 5, np.split(np.arange(60), [13, 35])  # 3, 5 and 6 batches per epoch

    def members() -> list[PrivateData]:
        return [
            PrivateData(samples, labels, part, 5, BatchStream(len(part), 4, 0, "private", str(n)), tau=5)
            for n, part in enumerate(parts)
        ]

    stack, alone = PrivateStack(members()), members()
    for t, i in [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (1, 0), (1, 1), (3, 0), (3, 4), (2, 3), (3, 1)]:
        x, y = stack.batch(t, i)
        for n, member in enumerate(alone):
            expected_x, expected_y = member.batch(t, i)
            assert torch.equal(x[n], expected_x) and torch.equal(y[n], expected_y), (t, i)
