"""A private certificate authority for one federation: the server's certificate and one for each site.

A site is its certificate: the name is in it as `fedal://FEDERATION/SITE`, signed by the federation's own authority. An
invitation is the folder that a site is handed: authority, certificate, key, and what it must not learn from the server
itself: the name of the federation and the hash of the public set. With `enrolment` a site makes its key itself.
"""

from __future__ import annotations

import ipaddress
import json
import os
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

from fedal.durable import append, replacing, write_atomically
from fedal.errors import ConfigError
from fedal.records.folder import write_json

DAYS = 90
AUTHORITY_DAYS = 3650
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
OPERATOR = "operator"  # may ask for the status, is no site
PEMS = ("ca.pem", "cert.pem", "key.pem")
REVOKED = "crl.pem"
ISSUED = "issued.jsonl"
REQUEST = "request.json"  # of a site that enrols
TAKEN = ("server", "tokens")  # folders of the authority
WARN_DAYS = 14


class Pems(NamedTuple):
    authority: bytes
    certificate: bytes
    key: bytes


@dataclass(frozen=True)
class Invitation:
    """All that a site needs besides its own model and data."""

    federation: str
    site: str
    public_sha256: str | None
    first: Pems  # as they were when it was read
    folder: Path | None = None

    def pems(self) -> Pems:
        """As they are in the folder now, so that a renewed certificate is used from the next connection on."""
        try:
            return self.first if self.folder is None else read_pems(self.folder)
        except ConfigError:  # perhaps a copy under way
            return self.first


def identity_uri(federation: str, site: str) -> str:
    return f"fedal://{federation}/{site}"


def init(folder: Path, federation: str) -> None:
    """Makes the authority of a federation; refuses to overwrite one."""
    _refuse_bad_name(federation, "federation")
    if (folder / "ca.key").exists():
        raise ConfigError(f"{folder} holds an authority already. Choose another --out; overwriting it would void it.")
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
        .not_valid_before(now - timedelta(hours=1))
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
    """The server's certificate for these host names and addresses, in `folder/server`."""
    names: list[x509.GeneralName] = [_host(host) for host in hosts]
    return _issue(folder, "server", names, ExtendedKeyUsageOID.SERVER_AUTH, days)


def issue_client(folder: Path, site: str, public_sha256: str | None, days: int = DAYS) -> Path:
    """The invitation of a site, in `folder/SITE`."""
    refuse_bad_invitation(site, public_sha256)
    federation = federation_of(folder)
    out = _issue(folder, site, [_uri(federation, site)], ExtendedKeyUsageOID.CLIENT_AUTH, days)
    write_json(out / "invitation.json", {"federation": federation, "site": site, "public_sha256": public_sha256})
    return out


def sign_site(folder: Path, site: str, key: ec.EllipticCurvePublicKey, days: int) -> x509.Certificate:
    """The certificate of a site that has made its key itself."""
    names: list[x509.GeneralName] = [_uri(federation_of(folder), site)]
    return _sign(folder, site, key, names, ExtendedKeyUsageOID.CLIENT_AUTH, days)


def refuse_bad_invitation(site: str, public_sha256: str | None) -> None:
    _refuse_bad_name(site, "site")
    if site in TAKEN:
        raise ConfigError(f'a site cannot be called "{site}": that folder holds something else.')
    if public_sha256 is not None and not re.fullmatch(r"[0-9a-f]{64}", public_sha256):
        raise ConfigError(f"public set {public_sha256!r}: expected the 64 hexadecimal digits of its sha256.")


def federation_of(folder: Path) -> str:
    return str(read_json(folder / "federation.json", "Make an authority with `fedal certs init`.")["federation"])


def read_invitation(folder: Path) -> Invitation:
    content = read_json(folder / "invitation.json", "Ask the federation's operator for your invitation folder.")
    try:
        federation, site, public_sha256 = (content[key] for key in ("federation", "site", "public_sha256"))
        return Invitation(str(federation), str(site), public_sha256, read_pems(folder), folder)
    except KeyError as error:
        raise ConfigError(f"{folder / 'invitation.json'}: {error} is missing.") from None


def read_pem(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        advice = "`fedal certs` makes such files."
        if path.name == "cert.pem" and path.with_name(REQUEST).exists():
            advice = f"Send {path.with_name(REQUEST)} to the operator and put the certificate that comes back here."
        raise ConfigError(f"{path}: cannot be read ({error.strerror}). {advice}") from None


def read_pems(folder: Path) -> Pems:
    return Pems(*(read_pem(folder / name) for name in PEMS))


def check_pems(pems: Pems, folder: Path) -> str:
    """Refuses what cannot be used: no certificates, a key of another one, not valid today. Gives a warning or ""."""
    try:
        x509.load_pem_x509_certificate(pems.authority)
        certificate = x509.load_pem_x509_certificate(pems.certificate)
        key = serialization.load_pem_private_key(pems.key, password=None)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{folder}: not what `fedal certs` makes ({error}). Copy the folder again.") from None
    if key.public_key() != certificate.public_key():
        raise ConfigError(f"{folder}: key.pem does not belong to cert.pem. Copy the folder again.")
    now, end = datetime.now(UTC), certificate.not_valid_after_utc
    if not certificate.not_valid_before_utc <= now <= end:
        raise ConfigError(
            f"{folder}: the certificate is valid from {certificate.not_valid_before_utc:%Y-%m-%d} to {end:%Y-%m-%d}; "
            f"this machine's clock says {now:%Y-%m-%d}. Ask the operator for a new one, or set the clock."
        )
    left = (end - now).days
    return f"the certificate in {folder} expires in {left} days" if left < WARN_DAYS else ""


def revoke(folder: Path, name: str) -> list[int]:
    """Every certificate made for this name so far is no longer good; the signed list goes into `folder/server`."""
    authority, key = _authority(folder)
    revoked, serials = _revocations(folder / REVOKED), serials_of(folder, name)
    if not serials:
        raise ConfigError(f"{folder}: no certificate was made for {name!r}.")
    now = datetime.now(UTC)
    builder = x509.CertificateRevocationListBuilder().issuer_name(authority.subject).last_update(now)
    builder = builder.next_update(authority.not_valid_after_utc)  # it counts until a newer list is there
    for serial in sorted({*revoked, *serials}):
        entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now).build()
        builder = builder.add_revoked_certificate(entry)
    content = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    (folder / "server").mkdir(exist_ok=True)
    for place in (folder, folder / "server"):
        write_atomically(place / REVOKED, content)
    return serials


def revoked_serials(path: Path, authority: bytes) -> frozenset[int]:
    """The numbers in a list that this authority has signed; none without a list."""
    signer = x509.load_pem_x509_certificate(authority).public_key()
    return frozenset(_revocations(path, signer))


def _revocations(path: Path, signer: Any = None) -> list[int]:
    if not path.exists():
        return []
    try:
        found = x509.load_pem_x509_crl(path.read_bytes())
        if signer is not None and not found.is_signature_valid(signer):
            raise ValueError("its signature is not of this authority")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: not a list that `fedal certs revoke` made ({error}).") from None
    return [entry.serial_number for entry in found]


def serials_of(folder: Path, name: str) -> list[int]:
    """Of every certificate made for this name. A torn line is of one that nobody got."""
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
    """A certificate for this key, noted down before anybody gets it: what is not in the list cannot be revoked."""
    authority, authority_key = _authority(folder)
    now = datetime.now(UTC)
    usage = x509.KeyUsage(True, False, False, False, False, False, False, False, False)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(authority.subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=max(0, -days) + 1))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    # JSON would round numbers of the size of a serial
    row = {"name": name, "serial": str(certificate.serial_number), "until": f"{certificate.not_valid_after_utc}"}
    append(folder / ISSUED, f"\n{json.dumps(row)}\n".encode())  # on a line of its own also after a torn one
    return certificate


def _authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    try:
        return x509.load_pem_x509_certificate(read_pem(folder / "ca.pem")), read_key(folder / "ca.key")
    except ValueError as error:
        raise ConfigError(f"{folder}: the authority cannot be read ({error}).") from None


def read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(read_pem(path), password=None)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{path}: cannot be read as a key ({error}).") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{path}: not a key that `fedal certs` made.")
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
    """Readable by its owner alone from the first byte on; when it can not be written, an older one stays."""
    with replacing(path) as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(content)


def read_json(path: Path, advice: str) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}). {advice}") from None
    except ValueError as error:
        raise ConfigError(f"{path}: is not JSON ({error}). {advice}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: expected a table. {advice}")
    return content


def _refuse_bad_name(name: str, what: str) -> None:
    if not NAME.fullmatch(name):
        raise ConfigError(f"{what} {name!r}: expected up to 63 lower-case letters, digits and dashes.")
