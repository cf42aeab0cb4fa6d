"""A private certificate authority (CA) for one federation: it issues the server's certificate and one for each site.

A certificate identifies a site: it holds the name `fedal://FEDERATION/SITE`, signed by the federation's own CA. An
invitation is the folder that a site receives: CA certificate, certificate, key, and what must not come from the server:
the federation's name, the hash of the public set and the contract. With `enrolment` a site creates its own key.
"""

from __future__ import annotations

import ipaddress
import json
import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedal.deploy.address import refuse_bad_host
from fedal.deploy.contract import Contract, read_contract
from fedal.durable import append, read_bounded, replacing, write_atomically
from fedal.errors import ConfigError
from fedal.records.folder import write_json

DAYS = 90
AUTHORITY_DAYS = 3650
SKEW = timedelta(days=1)  # clocks may be this late; the same for all, so that no certificate is older than its CA
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
OPERATOR = "operator"  # may request the status, but is not a site
PEMS = ("ca.pem", "cert.pem", "key.pem")
REVOKED = "crl.pem"
ISSUED = "issued.jsonl"
INVITATION = "invitation.json"
REQUEST = "request.json"  # written by a site that enrols
TAKEN = ("server", "tokens")  # folders that the CA itself uses
WARN_DAYS = 14
MAX_BYTES = 1 << 22  # of a certificate, a list, an invitation, a token or a request


class Pems(NamedTuple):
    authority: bytes
    certificate: bytes
    key: bytes


@dataclass(frozen=True)
class Invitation:
    """Everything a site needs besides its own model and data."""

    federation: str
    site: str
    public_sha256: str | None
    first: Pems  # as first read
    folder: Path | None = None
    contract: Contract | None = None  # what the site agrees to at its first join

    def pems(self) -> Pems:
        """The current files in the folder, so that the next connection uses a renewed certificate."""
        try:
            return self.first if self.folder is None else read_pems(self.folder)
        except ConfigError:  # perhaps a copy is in progress
            return self.first


def identity_uri(federation: str, site: str) -> str:
    return f"fedal://{federation}/{site}"


def init(folder: Path, federation: str) -> None:
    """Creates the CA of a federation; refuses to overwrite one."""
    _refuse_bad_name(federation, "federation")
    if (folder / "ca.key").exists():
        raise ConfigError(
            f"{folder} already holds a certificate authority; overwriting it would void its certificates. "
            "Choose another --out."
        )
    folder.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"fedal {federation}")])
    now = datetime.now(UTC)
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + timedelta(days=AUTHORITY_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    write_key(folder / "ca.key", key)
    (folder / "ca.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / "federation.json").write_text(json.dumps({"federation": federation}) + "\n")


def issue_server(folder: Path, hosts: list[str], days: int = DAYS) -> Path:
    """Issues the server's certificate for these host names and addresses, in `folder/server`."""
    refuse_bad_hosts(hosts)
    names: list[x509.GeneralName] = [_host(host) for host in hosts]
    return _issue(folder, "server", names, ExtendedKeyUsageOID.SERVER_AUTH, days)


def refuse_bad_hosts(hosts: list[str]) -> None:
    for host in hosts:
        refuse_bad_host(host, "--host", wildcard=True)


def issue_client(
    folder: Path, site: str, public_sha256: str | None, days: int = DAYS, contract: Contract | None = None
) -> Path:
    """Creates the invitation of a site, in `folder/SITE`."""
    refuse_bad_invitation(site, public_sha256)
    federation = federation_of(folder)
    out = _issue(folder, site, [_uri(federation, site)], ExtendedKeyUsageOID.CLIENT_AUTH, days)
    write_json(out / INVITATION, invitation_json(federation, site, public_sha256, contract))
    if (folder / REVOKED).exists():
        write_atomically(out / REVOKED, read_pem(folder / REVOKED))
    return out


def invitation_json(federation: str, site: str, public_sha256: str | None, contract: Contract | None) -> dict[str, Any]:
    """The content of an invitation besides certificates and key."""
    agreed = {"contract": contract.to_json()} if contract else {}
    return {"federation": federation, "site": site, "public_sha256": public_sha256, **agreed}


def sign_site(folder: Path, site: str, key: ec.EllipticCurvePublicKey, days: int) -> x509.Certificate:
    """Issues a certificate to a site that created its own key."""
    names: list[x509.GeneralName] = [_uri(federation_of(folder), site)]
    return _sign(folder, site, key, names, ExtendedKeyUsageOID.CLIENT_AUTH, days)


def refuse_bad_invitation(site: str, public_sha256: str | None) -> None:
    _refuse_bad_name(site, "site")
    if site in TAKEN:
        raise ConfigError(f'a site cannot be called "{site}": the certificate authority uses that folder itself.')
    if public_sha256 is not None and not re.fullmatch(r"[0-9a-f]{64}", public_sha256):
        raise ConfigError(f"public set {public_sha256!r}: expected the 64 hexadecimal digits of its sha256.")


def federation_of(folder: Path) -> str:
    return str(
        read_json(folder / "federation.json", "Create a certificate authority with `fedal certs init`.")["federation"]
    )


def read_invitation(folder: Path) -> Invitation:
    path = folder / INVITATION
    content = read_json(path, "Ask the federation's operator for your invitation folder.")
    try:
        federation, site, public_sha256 = (content[key] for key in ("federation", "site", "public_sha256"))
    except KeyError as error:
        raise ConfigError(f"{path}: {error} is missing.") from None
    contract = read_contract(content["contract"], str(path)) if "contract" in content else None
    return Invitation(str(federation), str(site), public_sha256, read_pems(folder), folder, contract)


def read_pem(path: Path) -> bytes:
    try:
        return read_bounded(path, MAX_BYTES)
    except OSError as error:
        advice = "`fedal certs` creates it."
        if path.name == "cert.pem" and path.with_name(REQUEST).exists():
            advice = f"Send {path.with_name(REQUEST)} to the operator and save the certificate you receive here."
        raise ConfigError(f"{path}: cannot be read ({error.strerror}). {advice}") from None


def read_pems(folder: Path) -> Pems:
    return Pems(*(read_pem(folder / name) for name in PEMS))


def check_pems(pems: Pems, folder: Path) -> str:
    """Refuses unusable files: not a certificate, a mismatched key, not valid today. Returns a warning or ""."""
    try:
        x509.load_pem_x509_certificate(pems.authority)
        certificate = x509.load_pem_x509_certificate(pems.certificate)
        key = serialization.load_pem_private_key(pems.key, password=None)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{folder}: not made by `fedal certs` ({error}). Copy the folder again.") from None
    if key.public_key() != certificate.public_key():
        raise ConfigError(f"{folder}: key.pem does not match cert.pem. Copy the folder again.")
    now, end = datetime.now(UTC), certificate.not_valid_after_utc
    if not certificate.not_valid_before_utc <= now <= end:
        raise ConfigError(
            f"{folder}: the certificate is valid from {certificate.not_valid_before_utc:%Y-%m-%d} to {end:%Y-%m-%d}; "
            f"this machine's clock says {now:%Y-%m-%d}. Ask the operator for a new one, or set the clock."
        )
    left = (end - now).days
    return f"the certificate in {folder} expires in {left} days" if left < WARN_DAYS else ""


def revoke(folder: Path, name: str) -> list[int]:
    """Revokes every certificate issued for this name, and writes the signed list to the folders of server and sites."""
    authority, key = _authority(folder)
    revoked, serials = _revocations(folder / REVOKED), serials_of(folder, name)
    if not serials:
        raise ConfigError(f"{folder}: no certificate was issued for {name!r}.")
    now = datetime.now(UTC)
    builder = x509.CertificateRevocationListBuilder().issuer_name(authority.subject).last_update(now)
    builder = builder.next_update(authority.not_valid_after_utc)  # valid until a newer list replaces it
    for serial in sorted({*revoked, *serials}):
        entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now).build()
        builder = builder.add_revoked_certificate(entry)
    content = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    (folder / "server").mkdir(exist_ok=True)
    for place in (folder, folder / "server", *(path.parent for path in folder.glob(f"*/{INVITATION}"))):
        write_atomically(place / REVOKED, content)
    return serials


def revoked_serials(path: Path, authority: bytes) -> frozenset[int]:
    """The serial numbers in a list that this CA has signed; empty without a list."""
    signer = x509.load_pem_x509_certificate(authority).public_key()
    return frozenset(_revocations(path, signer))


def _revocations(path: Path, signer: Any = None) -> list[int]:
    if not path.exists():
        return []
    try:
        found = x509.load_pem_x509_crl(read_bounded(path, MAX_BYTES))
        if signer is not None and not found.is_signature_valid(signer):
            raise ValueError("its signature is not from this certificate authority")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: not a list that `fedal certs revoke` made ({error}).") from None
    return [entry.serial_number for entry in found]


def serials_of(folder: Path, name: str) -> list[int]:
    """The serial numbers of all certificates issued for this name. A torn line belongs to one that was never sent."""
    path = folder / ISSUED
    rows = []
    for line in path.read_text().splitlines() if path.exists() else ():
        with suppress(ValueError):
            rows.append(json.loads(line))
    return [int(row["serial"]) for row in rows if row["name"] == name]


def _issue(folder: Path, name: str, names: list[x509.GeneralName], purpose: x509.ObjectIdentifier, days: int) -> Path:
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = _sign(folder, name, key.public_key(), names, purpose, days)
    out = folder / name
    out.mkdir(exist_ok=True)
    write_key(out / "key.pem", key)
    write_atomically(out / "cert.pem", certificate.public_bytes(serialization.Encoding.PEM))
    write_atomically(out / "ca.pem", read_pem(folder / "ca.pem"))
    return out


def _sign(
    folder: Path,
    name: str,
    key: ec.EllipticCurvePublicKey,
    names: list[x509.GeneralName],
    purpose: x509.ObjectIdentifier,
    days: int,
) -> x509.Certificate:
    """A certificate for this key, recorded before it is handed out: a certificate not on record cannot be revoked."""
    authority, authority_key = _authority(folder)
    now = datetime.now(UTC)
    usage = x509.KeyUsage(True, False, False, False, False, False, False, False, False)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(authority.subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW - timedelta(days=max(0, -days)))
        .not_valid_after(min(now + timedelta(days=days), authority.not_valid_after_utc))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    # as text: many JSON readers would round numbers of this size
    row = {"name": name, "serial": str(certificate.serial_number), "until": f"{certificate.not_valid_after_utc}"}
    append(folder / ISSUED, f"\n{json.dumps(row)}\n".encode())  # starts a new line even after a torn one
    return certificate


def _authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    try:
        return x509.load_pem_x509_certificate(read_pem(folder / "ca.pem")), read_key(folder / "ca.key")
    except ValueError as error:
        raise ConfigError(f"{folder}: cannot read the certificate authority ({error}).") from None


def read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(read_pem(path), password=None)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{path}: cannot be read as a key ({error}).") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{path}: not a key made by `fedal certs`.")
    return key


def _uri(federation: str, site: str) -> x509.GeneralName:
    return x509.UniformResourceIdentifier(identity_uri(federation, site))


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    content = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    write_secret(path, content)


def write_secret(path: Path, content: bytes) -> None:
    """Writes a file that only its owner can read, from the first byte. If writing fails, the older file stays."""
    with replacing(path, mode=0o600) as file:
        file.write(content)


def read_json(path: Path, advice: str) -> dict[str, Any]:
    try:
        content = json.loads(read_bounded(path, MAX_BYTES))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}). {advice}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not JSON ({error}). {advice}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: expected a JSON object. {advice}")
    return content


def _refuse_bad_name(name: str, what: str) -> None:
    if not NAME.fullmatch(name):
        raise ConfigError(f"{what} {name!r}: expected up to 63 lower-case letters, digits and dashes.")
