"""Who may call the server: decided at the first byte of every call, before any message is read.

A call is admitted if its certificate is not revoked and names a site of the roster, or the operator, and if fewer than
QUOTA calls with that certificate are open. So whatever one certificate does, the others find their places free. A
refusal is a gRPC status, which no flow control can hold back: a refused caller holds nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc

from fedal.deploy.pki.authority import OPERATOR, identity_uri
from fedal.deploy.pki.identity import ServerIdentity, serial_of
from fedal.deploy.refusal_log import RefusalLog
from fedal.deploy.refusals import Code, Refused

QUOTA = 4  # a stream, the one that it replaces, the public set, the status


@dataclass(frozen=True)
class Caller:
    """The other end of a call, as its certificate says. On plain-text loopback no caller has a name."""

    name: str | None = None
    serial: int = 0
    identity: ServerIdentity | None = None

    @property
    def is_operator(self) -> bool:
        return self.name in (None, OPERATOR)

    def refuse_revoked(self) -> None:
        """Raises Refused once the operator has revoked the certificate."""
        if self.identity is not None:
            self.identity.refuse_revoked(self.serial)

    @property
    def is_revoked(self) -> bool:
        try:
            self.refuse_revoked()
        except Refused:
            return True
        return False


class Admission:
    """Lives in the network thread."""

    def __init__(
        self, federation: str, roster: Collection[str], identity: ServerIdentity | None, refusals: RefusalLog
    ) -> None:
        self._prefix, self._roster, self._identity = identity_uri(federation, ""), roster, identity
        self._refusals = refusals
        self._quota = QUOTA if identity is not None else QUOTA * (len(roster) + 2)
        self._open: Counter[int] = Counter()  # calls, by the serial number of their certificate

    @asynccontextmanager
    async def admitted(self, context: Any, *, sites_only: bool = False) -> AsyncIterator[Caller]:
        """Holds one place of the caller's quota. Ends the call with the code of what is refused, also in the block."""
        try:
            caller = self._caller(context, sites_only)
            self._open[caller.serial] += 1
            try:
                yield caller
            finally:
                self._open[caller.serial] -= 1
                if not self._open[caller.serial]:
                    del self._open[caller.serial]
        except Refused as refused:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(refused))

    def _caller(self, context: Any, sites_only: bool) -> Caller:
        if self._identity is None:
            caller, shown = Caller(), ""
        else:
            (certificate,) = context.auth_context()["x509_pem_cert"]
            caller = Caller(self._name(context), serial_of(certificate), self._identity)
            shown = caller.name or f"certificate {caller.serial:x}"
        try:
            self._refuse(caller, sites_only)
        except Refused as refused:
            self._refusals.add(shown, refused)
            raise
        return caller

    def _refuse(self, caller: Caller, sites_only: bool) -> None:
        caller.refuse_revoked()
        if caller.name == "":
            raise Refused(Code.WRONG_IDENTITY, "the certificate names no site of this federation.")
        if caller.name not in (None, *self._roster) and (sites_only or not caller.is_operator):
            raise Refused(Code.NOT_IN_ROSTER, "this site is not in the roster of the federation.")
        if self._open[caller.serial] >= self._quota:
            raise Refused(Code.BUSY, f"{self._quota} calls with this certificate are open, which is the limit.")

    def _name(self, context: Any) -> str:
        """The one name of this federation in the certificate; empty without one."""
        found = context.auth_context().get("x509_subject_alternative_name", [])
        names = [name.decode(errors="replace") for name in found]
        ours = [name.removeprefix(self._prefix) for name in names if name.startswith(self._prefix)]
        return ours[0] if len(ours) == 1 and re.fullmatch(r"[a-z0-9-]{1,63}", ours[0]) else ""
