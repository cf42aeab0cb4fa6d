"""Soft labels in a few bits: the constrained quantiser of CFD (arXiv 2012.00632) and a codec that packs bytes.

A code of b bits is K integers that sum to m = 2^b - 1: a point of the simplex in steps of 1/m. There are
C(m+K-1, K-1) of them; each has an index (its codeword), written with the fewest bits that suffice for all. With delta
coding, both ends keep the last code of every public sample. A sample seen before costs one bit, which states whether
its code changed, and the new codeword if so; a sample seen for the first time costs its codeword.
32 bits mean no quantiser: the values are sent unchanged. Bits are packed in Python: bytes and codes are on the CPU,
whatever device the soft labels are on.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from math import comb

from fedal.errors import NonFiniteError, WireError
from fedal.lazy import Tensor, torch
from fedal.learners.base import State
from fedal.messages import LARGEST
from fedal.seeding import Indices

UNQUANTISED = 32


def quantise(probs: Tensor, bits: int) -> Tensor:
    """The codes of soft labels: rounded, then corrected where the rounding error is largest until each sums to m.

    With one bit this is the one-hot argmax.  (B, K) -> (B, K) int64, rows sum to m
    """
    m, n_classes = 2**bits - 1, probs.shape[-1]
    exact = m * (probs.double() / probs.double().sum(-1, keepdim=True))
    rounded = exact.round()
    missing = m - rounded.sum(-1, keepdim=True)
    place = (exact - rounded).argsort(dim=-1, descending=True, stable=True).argsort()  # 0: rounded down the most
    corrected: Tensor = rounded + (place < missing).double() - (place >= n_classes + missing).double()
    return corrected.long()


def dequantise(codes: Tensor, bits: int, dtype: torch.dtype) -> Tensor:
    """The soft labels that the codes represent.  (B, K) -> (B, K)"""
    labels: Tensor = codes.double() / (2**bits - 1)
    return labels.to(dtype)


def codeword_bits(bits: int, n_classes: int) -> int:
    """The number of bits of a codeword: ceil(log2 C(m+K-1, K-1))."""
    return (comb(2**bits + n_classes - 2, n_classes - 1) - 1).bit_length()


@lru_cache(maxsize=4096)  # one-bit labels have only K codewords
def codeword(code: tuple[int, ...]) -> int:
    """The index of a code: its K - 1 running sums, made distinct, in the combinatorial number system."""
    return sum(comb(total + i, i + 1) for i, total in enumerate(accumulate(code[:-1])))


@lru_cache(maxsize=4096)
def code_of(word: int, n_classes: int, m: int) -> tuple[int, ...]:
    """The inverse of `codeword` among the codes that sum to m."""
    if word >= comb(m + n_classes - 1, n_classes - 1):
        raise WireError(f"codeword {word} is not a soft label of {n_classes} classes.")
    code, total = [], m  # from the last class to the first; total: the running sum up to the current one
    for i in reversed(range(n_classes - 1)):
        place = _largest_place(word, i + 1, total + i + 1)
        word -= comb(place, i + 1)
        code.append(total - (place - i))
        total = place - i
    return (total, *reversed(code))


def _largest_place(word: int, size: int, limit: int) -> int:
    """The largest place below `limit` with C(place, size) <= word."""
    return bisect_right(range(limit), word, key=lambda place: comb(place, size)) - 1


class LabelCodec:
    """One end of one direction between the server and one client. With `delta`, both ends keep the same codes."""

    def __init__(self, bits: int, n_samples: int, n_classes: int, *, delta: bool) -> None:
        self._bits, self._n_classes = bits, n_classes
        self._word_bits = codeword_bits(bits, n_classes) if bits != UNQUANTISED else 0
        self._last: Tensor | None = None  # the last code of each public sample; all zeros: none yet
        if delta and bits != UNQUANTISED:
            self._last = torch.zeros(
                n_samples, n_classes, dtype=torch.uint8 if bits <= 8 else torch.int32, device="cpu"
            )

    def encode(self, labels: Tensor, ids: Indices) -> Tensor:
        """Soft labels of the public samples `ids` as bytes.  (B, K), (B,) -> (bytes,) uint8"""
        if not torch.isfinite(labels).all():
            raise NonFiniteError("the soft labels to send contain non-finite values. A smaller lr usually helps.")
        if self._bits == UNQUANTISED:
            return labels.contiguous().view(-1).view(torch.uint8).to("cpu", copy=True)
        codes = quantise(labels, self._bits).tolist()
        stream = "".join(self._as_bits(code, last) for code, last in zip(codes, self._last_codes(ids), strict=True))
        self._remember(ids, codes)
        whole = -(-len(stream) // 8)
        packed = list(int(stream.ljust(8 * whole, "0"), 2).to_bytes(whole, "big"))
        return torch.tensor(packed, dtype=torch.uint8, device="cpu")

    def decode(self, packed: Tensor, ids: Indices, dtype: torch.dtype, device: torch.device | str) -> Tensor:
        """The soft labels that the other end encoded; raises WireError for malformed bytes.  -> (B, K)"""
        codes = self._parsed(packed, ids, dtype, known=True)
        if isinstance(codes, torch.Tensor):
            return codes.to(device)
        self._remember(ids, codes)
        return dequantise(torch.tensor(codes, device=device), self._bits, dtype)

    def refuse_malformed(self, packed: Tensor, ids: Indices, dtype: torch.dtype, *, begins: bool) -> None:
        """Raises WireError for bytes that `decode` would refuse, after a `reset` if it `begins`. Changes nothing."""
        self._parsed(packed, ids, dtype, known=not begins)

    def _parsed(
        self, packed: Tensor, ids: Indices, dtype: torch.dtype, *, known: bool
    ) -> Tensor | Sequence[Sequence[int]]:
        """The code of each sample; the soft labels themselves if there is no quantiser. `known`: codes were kept."""
        if self._bits == UNQUANTISED:
            size = len(ids) * self._n_classes * dtype.itemsize
            if len(packed) != size:
                raise WireError(f"soft labels arrived as {len(packed)} bytes; expected {size}.")
            labels = packed.clone().view(dtype).view(len(ids), self._n_classes)
            if not torch.isfinite(labels).all():  # the wire sees only bytes
                raise NonFiniteError("received soft labels contain non-finite values.")
            if labels.abs().max() > LARGEST:
                raise WireError(f"received soft labels hold values beyond {LARGEST:g}.")
            return labels
        bits, m = _BitReader(packed), 2**self._bits - 1
        codes = [
            last if last is not None and not bits.take(1) else code_of(bits.take(self._word_bits), self._n_classes, m)
            for last in (self._last_codes(ids) if known else [None] * len(ids))
        ]
        bits.finish()
        return codes

    def reset(self) -> None:
        """Discards all codes, as if no sample had been sent yet."""
        if self._last is not None:
            self._last.zero_()

    def state_dict(self) -> State:
        return {} if self._last is None else {"last": self._last.clone()}

    def load_state_dict(self, state: State) -> None:
        if self._last is not None:
            self._last.copy_(state["last"])

    def _as_bits(self, code: Sequence[int], last: Sequence[int] | None) -> str:
        if code == last:
            return "0"
        return ("" if last is None else "1") + f"{codeword(tuple(code)):0{self._word_bits}b}"

    def _last_codes(self, ids: Indices) -> list[list[int] | None]:
        """The code of each sample before this batch; None for a sample without one."""
        if self._last is None:
            return [None] * len(ids)
        return [code if any(code) else None for code in self._last[ids].tolist()]

    def _remember(self, ids: Indices, codes: Sequence[Sequence[int]]) -> None:
        """Stores the codes. A sample that occurs twice in the batch keeps its second code, at both ends."""
        if self._last is not None:
            self._last.numpy()[ids] = codes  # numpy: the last of repeated indices wins


class _BitReader:
    """Reads integers from a stream of bits; the last byte is padded with zeros."""

    def __init__(self, packed: Tensor) -> None:
        self._stream = "".join(f"{byte:08b}" for byte in packed.tolist())
        self._at = 0

    def take(self, n_bits: int) -> int:
        self._at += n_bits
        if self._at > len(self._stream):
            raise WireError(f"soft labels arrived as {len(self._stream) // 8} bytes: too few for the batch.")
        return int(self._stream[self._at - n_bits : self._at], 2)

    def finish(self) -> None:
        rest = self._stream[self._at :]
        if len(rest) >= 8 or "1" in rest:
            raise WireError(f"soft labels arrived as {len(self._stream) // 8} bytes: too many for the batch.")
