"""The server's certificate and its list of revoked certificates, reread when the files change.

So certificates can be renewed and revoked without a restart. If a new file is unusable, the previous one stays valid.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import grpc
from cryptography import x509

from fedal.deploy.channel import server_credentials
from fedal.deploy.pki.authority import PEMS, REVOKED, Pems, check_pems, read_pems, revoked_serials
from fedal.deploy.pki.pinning import Version, file_version
from fedal.deploy.refusals import Code, Refused
from fedal.errors import ConfigError

Log = Callable[..., None]


class ServerIdentity:
    """The folder of `fedal certs server`."""

    def __init__(self, folder: Path, log: Log) -> None:
        self._folder, self._log = folder, log
        self._list = os.path.join(folder, REVOKED)  # checked at every message: built once, without pathlib
        self._pems = read_pems(folder)
        if warning := check_pems(self._pems, folder):
            log("warning", text=f"{warning}.")
        self._pem_versions, self._list_version = self._versions(), file_version(self._list)
        self._revoked = revoked_serials(folder / REVOKED, self._pems.authority)

    def credentials(self) -> grpc.ServerCredentials:
        return server_credentials(self._pems, self._renewed)

    def refuse_revoked(self, serial: int) -> None:
        found = file_version(self._list)
        if found != self._list_version:
            self._list_version = found
            try:
                self._revoked = revoked_serials(self._folder / REVOKED, self._pems.authority)
                self._log("revocations", count=len(self._revoked))
            except ConfigError as error:
                self._log("warning", text=f"{error} The previous list stays in force.")
        if serial in self._revoked:
            raise Refused(Code.REVOKED, "the operator has revoked this certificate. Ask for a new invitation.")

    def _renewed(self) -> Pems | None:
        """The files if they have changed; called at every handshake."""
        found = self._versions()
        if found == self._pem_versions:
            return None
        try:
            pems = read_pems(self._folder)
            check_pems(pems, self._folder)
        except ConfigError as error:  # perhaps a copy is in progress: the next handshake retries
            self._log("warning", text=f"{error} The previous certificate stays in force.")
            return None
        self._pems, self._pem_versions = pems, found
        self._log("certificate renewed")
        return pems

    def _versions(self) -> tuple[Version | None, ...]:
        return tuple(file_version(os.path.join(self._folder, name)) for name in PEMS)


def serial_of(certificate: bytes) -> int:
    return x509.load_pem_x509_certificate(certificate).serial_number
