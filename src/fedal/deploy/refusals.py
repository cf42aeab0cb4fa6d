"""Reasons for refusing a message or a site: stable codes, listed with cause and remedy in docs/errors.md."""

from __future__ import annotations

import enum

from fedal.errors import FedalError
from fedal.printable import printable


class Code(enum.StrEnum):
    """Stable codes for tests and scripts; the texts may change."""

    PROTOCOL_MAJOR = "FEDAL-E101"
    WRONG_FEDERATION = "FEDAL-E102"
    NOT_IN_ROSTER = "FEDAL-E103"
    WRONG_IDENTITY = "FEDAL-E104"
    IN_USE = "FEDAL-E105"
    STATE_LOST = "FEDAL-E106"
    OTHER_RUN = "FEDAL-E107"
    REVOKED = "FEDAL-E108"
    NOT_A_MESSAGE = "FEDAL-E109"
    UNEXPECTED = "FEDAL-E110"
    WRONG_INCARNATION = "FEDAL-E111"
    WRONG_ROUND = "FEDAL-E112"
    WRONG_EXCHANGE = "FEDAL-E113"
    WRONG_BATCH = "FEDAL-E114"
    NOT_SAVED = "FEDAL-E115"
    OUT_OF_STEP = "FEDAL-E116"
    UNDECLARED = "FEDAL-E120"
    WRONG_FIELDS = "FEDAL-E121"
    WRONG_DTYPE = "FEDAL-E122"
    WRONG_SHAPE = "FEDAL-E123"
    WRONG_LENGTH = "FEDAL-E124"
    NOT_FINITE = "FEDAL-E125"
    OUT_OF_RANGE = "FEDAL-E126"
    WRONG_METRICS = "FEDAL-E127"
    CONTENT = "FEDAL-E128"
    PUBLIC_SET = "FEDAL-E130"
    NAMES_CODE = "FEDAL-E131"
    SETTINGS = "FEDAL-E132"
    NOT_ALLOWED = "FEDAL-E133"
    CONTRACT = "FEDAL-E134"
    COHORT_TOO_SMALL = "FEDAL-E140"
    UNREACHABLE = "FEDAL-E142"
    QUARANTINED = "FEDAL-E143"
    BUSY = "FEDAL-E144"
    NOT_FINISHED = "FEDAL-E145"
    UNTRAINED = "FEDAL-E146"


class Refused(FedalError):
    """A message or a site was rejected, and it changed nothing. The text may quote the other side."""

    def __init__(self, code: str, text: str) -> None:
        code, text = printable(code), printable(text)
        super().__init__(f"{code}: {text}")
        self.code, self.text = code, text
