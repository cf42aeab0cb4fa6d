"""Batches as functions of the step, and samples that are views."""

from __future__ import annotations

import numpy as np
import torch

from fedal.data.dataset import normalise
from fedal.data.streams import Samples


def test_normalised_images_are_staged_without_a_copy() -> None:
    pixels = np.arange(2 * 3 * 4 * 5, dtype=np.uint8).reshape(2, 3, 4, 5)
    x = normalise(pixels, (0.5, 0.4, 0.3), (0.1, 0.2, 0.3))
    samples = Samples(x, torch.float32)
    assert samples._staged.data_ptr() == x.__array_interface__["data"][0]
    expected = (pixels / 255 - np.array([0.5, 0.4, 0.3])[:, None, None]) / np.array([0.1, 0.2, 0.3])[:, None, None]
    np.testing.assert_allclose(samples.take(torch.tensor([1, 0])).numpy(), expected[[1, 0]], rtol=1e-5, atol=1e-5)
