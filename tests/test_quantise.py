"""The quantiser stays on the simplex; the codec is lossless and writes as many bits as documented."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedal.errors import NonFiniteError, WireError
from fedal.quantise import LabelCodec, code_of, codeword, codeword_bits, dequantise, quantise
from fedal.seeding import Indices

FLOAT, CPU = torch.float32, "cpu"


def random_probs(samples: int, classes: int, seed: int = 0, scale: float = 3.0) -> Tensor:
    return torch.softmax(scale * torch.randn(samples, classes, generator=torch.Generator().manual_seed(seed)), -1)


def codes(bits: int, classes: int) -> list[tuple[int, ...]]:
    m = 2**bits - 1
    return [code for code in itertools.product(range(m + 1), repeat=classes) if sum(code) == m]


def pair(bits: int, samples: int = 40, classes: int = 10, delta: bool = True) -> tuple[LabelCodec, LabelCodec]:
    return LabelCodec(bits, samples, classes, delta=delta), LabelCodec(bits, samples, classes, delta=delta)


def ids(*samples: int) -> Indices:
    return np.array(samples, dtype=np.int64)


# the quantiser


def test_three_hand_cases_of_two_bits() -> None:
    """m = 3: plain rounding is right, one too few, or one too many."""
    probs = torch.tensor([[0.60, 0.35, 0.05], [0.46, 0.44, 0.10], [0.52, 0.24, 0.24]])
    assert (3 * probs).round().tolist() == [[2, 1, 0], [1, 1, 0], [2, 1, 1]]
    assert quantise(probs, 2).tolist() == [[2, 1, 0], [2, 1, 0], [1, 1, 1]]
    tie = torch.tensor([[0.5, 0.5, 0.0]])  # 1.5 and 1.5 round to 2 and 2: the last of the tied values is lowered
    assert quantise(tie, 2).tolist() == [[2, 1, 0]]


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 8, 16])
@pytest.mark.parametrize("classes", [2, 3, 10, 101])
def test_codes_are_points_of_the_simplex(bits: int, classes: int) -> None:
    for scale in (0.01, 1.0, 30.0):
        quantised = quantise(random_probs(200, classes, scale=scale), bits)
        assert (quantised >= 0).all()
        assert (quantised.sum(-1) == 2**bits - 1).all()


def test_one_bit_is_the_one_hot_argmax() -> None:
    probs = torch.cat([random_probs(500, 10), random_probs(100, 10, scale=0.001), torch.full((1, 10), 0.1)])
    assert torch.equal(quantise(probs, 1), torch.nn.functional.one_hot(probs.argmax(-1), 10))


@pytest.mark.parametrize("bits", [2, 4, 8, 16])
def test_no_value_changes_by_more_than_one_step(bits: int) -> None:
    probs = random_probs(300, 10)
    error = (dequantise(quantise(probs, bits), bits, FLOAT) - probs).abs().max()
    assert error <= 1 / (2**bits - 1) + 1e-6


# codewords


@pytest.mark.parametrize(("bits", "classes"), [(1, 2), (1, 10), (2, 2), (2, 4), (3, 3), (2, 10)])
def test_codewords_index_the_codes_without_gaps(bits: int, classes: int) -> None:
    if classes == 10:
        m = 2**bits - 1
        numbered = [code_of(word, classes, m) for word in range(math.comb(m + 9, 9))]
        assert len(set(numbered)) == len(numbered) and all(sum(code) == m for code in numbered)
        assert [codeword(code) for code in numbered] == list(range(len(numbered)))
    else:
        words = {codeword(code): code for code in codes(bits, classes)}
        assert sorted(words) == list(range(len(words)))
        assert all(code_of(word, classes, 2**bits - 1) == code for word, code in words.items())


def test_codeword_lengths_are_those_of_the_counts() -> None:
    """log2 of the number of codes for ten classes: 3.32, 7.78, 13.48, 20.32, 53.7, rounded up."""
    assert [codeword_bits(bits, 10) for bits in (1, 2, 3, 4, 8)] == [4, 8, 14, 21, 54]
    assert codeword_bits(1, 2) == 1


# the codec


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_encoding_and_decoding_are_inverse(data: st.DataObject) -> None:
    """For any sequence of batches, even with repeated samples inside a batch."""
    bits, classes = data.draw(st.sampled_from([1, 2, 3, 8, 16, 32])), data.draw(st.integers(2, 12))
    ends = pair(bits, 12, classes, delta=data.draw(st.booleans()))
    for seed in range(data.draw(st.integers(1, 5))):
        batch = np.array(data.draw(st.lists(st.integers(0, 11), min_size=1, max_size=9)))
        labels = random_probs(len(batch), classes, seed)
        decoded = ends[1].decode(ends[0].encode(labels, batch), batch, FLOAT, CPU)
        assert torch.equal(decoded, labels if bits == 32 else dequantise(quantise(labels, bits), bits, FLOAT))
    assert all(torch.equal(a, b) for a, b in zip(*(end.state_dict().values() for end in ends), strict=True))


def test_one_bit_of_ten_classes_is_16_bytes_for_32_samples() -> None:
    encoder, _ = pair(1, delta=False)
    for seed in range(3):
        assert len(encoder.encode(random_probs(32, 10, seed), np.arange(32))) == 16


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_32_bits_send_the_values_unchanged(dtype: torch.dtype) -> None:
    encoder, decoder = pair(32)
    logits = 100 * torch.randn(32, 10, dtype=dtype, generator=torch.Generator().manual_seed(0))
    packed = encoder.encode(logits, np.arange(32))
    assert len(packed) == 320 * dtype.itemsize
    assert torch.equal(decoder.decode(packed, np.arange(32), dtype, CPU), logits)


def test_a_new_sample_costs_a_codeword_and_a_known_one_a_bit_plus_changes() -> None:
    encoder, _ = pair(1)
    batch, labels = np.arange(32), random_probs(32, 10)
    assert len(encoder.encode(labels, batch)) == 16  # 32 codewords of 4 bits
    assert len(encoder.encode(labels, batch)) == 4  # 32 bits: unchanged
    changed = labels.clone()
    changed[:8] = labels[:8].roll(1, -1)
    assert len(encoder.encode(changed, batch)) == 8  # 32 bits and 8 codewords
    assert len(encoder.encode(changed.roll(1, -1), batch)) == 20  # the worst case: one bit per sample too many
    half_new = np.concatenate([batch[:16], [32, 33, 34, 35, 36, 37, 38, 39] * 2])
    assert len(encoder.encode(changed.roll(1, -1), half_new)) == 10  # 16 bits and 16 codewords


def test_a_reset_codec_treats_every_sample_as_new() -> None:
    encoder, decoder = pair(2)
    batch = np.arange(16)
    for _ in range(2):
        decoder.decode(encoder.encode(random_probs(16, 10), batch), batch, FLOAT, CPU)
        encoder.reset()
        decoder.reset()
    assert len(encoder.encode(random_probs(16, 10), batch)) == 16


def test_the_kept_codes_are_saved_and_restored() -> None:
    ends = pair(4)
    batch = np.arange(32)
    ends[1].decode(ends[0].encode(random_probs(32, 10), batch), batch, FLOAT, CPU)
    restored = pair(4)
    for end, new in zip(ends, restored, strict=True):
        new.load_state_dict(end.state_dict())
    labels = random_probs(32, 10, scale=2.9)
    packed = restored[0].encode(labels, batch)
    assert torch.equal(packed, ends[0].encode(labels, batch))
    assert torch.equal(restored[1].decode(packed, batch, FLOAT, CPU), ends[1].decode(packed, batch, FLOAT, CPU))


@pytest.mark.parametrize("bits", [1, 3, 32])
@pytest.mark.parametrize("damage", ["too few", "none", "too many"])
def test_a_wrong_number_of_bytes_is_refused(bits: int, damage: str) -> None:
    encoder, decoder = pair(bits)
    packed = encoder.encode(random_probs(32, 10), np.arange(32))
    wrong = {"too few": packed[:-1], "none": packed[:0], "too many": torch.cat([packed, packed[:1] * 0])}[damage]
    with pytest.raises(WireError, match="bytes"):
        decoder.decode(wrong, np.arange(32), FLOAT, CPU)


def test_an_invalid_codeword_is_refused() -> None:
    _, decoder = pair(1)
    with pytest.raises(WireError, match="codeword 15 is not a soft label of 10 classes"):
        decoder.decode(torch.tensor([0xFF], dtype=torch.uint8), ids(0, 1), FLOAT, CPU)
    with pytest.raises(WireError, match="too many"):  # the padding is not zero
        decoder.decode(torch.tensor([0x01], dtype=torch.uint8), ids(0), FLOAT, CPU)
    assert not decoder.state_dict()["last"].any(), "refused codes are not kept"


@pytest.mark.parametrize("bits", [1, 32])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_non_finite_labels_are_refused(bits: int, value: float) -> None:
    labels = random_probs(4, 10)
    labels[1, 2] = value
    with pytest.raises(NonFiniteError, match="soft labels"):
        pair(bits)[0].encode(labels, ids(0, 1, 2, 3))


def test_bytes_of_non_finite_values_are_refused() -> None:
    packed = torch.full((2, 10), math.nan).view(-1).view(torch.uint8)
    with pytest.raises(NonFiniteError, match="soft labels"):
        pair(32)[1].decode(packed, ids(0, 1), FLOAT, CPU)
