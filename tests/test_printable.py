"""Text from another party cannot command a terminal."""

from __future__ import annotations

from fedal.deploy.refusals import Code, Refused
from fedal.printable import MAX_LENGTH, printable


def test_ordinary_text_is_unchanged() -> None:
    for text in ("", "no state for round 7: restore it, or use --restart.", "Zürich ± 3 µs, 東京"):
        assert printable(text) == text


def test_control_characters_become_escapes() -> None:
    assert printable("\x1b[2J\x07a\nb\r\tc\x9b1m\x7f") == r"\x1b[2J\x07a\nb\r\tc\x9b1m\x7f"
    assert printable("\u202edetsurt \u2028\ufeff\udc80") == r"\u202edetsurt \u2028\ufeff\udc80"


def test_a_long_text_is_cut() -> None:
    assert printable("x" * MAX_LENGTH) == "x" * MAX_LENGTH
    assert printable("\n" * 10**6) == r"\n" * MAX_LENGTH + " ... (1000000 characters)"


def test_a_refusal_is_printable_whatever_it_quotes() -> None:
    assert str(Refused("\x1b[2J", "\x9bowned\n")) == r"\x1b[2J: \x9bowned\n"
    refused = Refused(Code.REVOKED, "revoked.")
    assert (refused.code, refused.text) == (Code.REVOKED, "revoked.")
