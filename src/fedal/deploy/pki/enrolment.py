"""Enrolment with one-time tokens: a site creates its own key and never shares it.

The operator gives a site a token. The site answers with a request: its public key and a proof that it has the token's
secret. The operator spends the token on a certificate for that key. All three are files, so that the CA's key can stay
on a machine without a network. Only the token is confidential: without its secret, a request cannot be rewritten for
another key, and a certificate is public. A thief can spend a token once, and the site notices, because its own request
is then refused.
"""

from __future__ import annotations

import hmac
import json
import math
import os
import re
import secrets
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedal.deploy.contract import Contract, read_contract
from fedal.deploy.pki import authority as certs
from fedal.deploy.pki.authority import INVITATION, REQUEST
from fedal.durable import sync_folder, write_atomically
from fedal.errors import ConfigError
from fedal.records.folder import write_json

HOURS = 72
LEDGER = "tokens"
SPENT = ".spent"
NUMBER = re.compile(r"[0-9a-f]{32}")
ASK = "Ask the operator for a new token."


@dataclass(frozen=True)
class Token:
    """The operator's token for a site: an invitation without key and certificate, plus the secret."""

    federation: str
    site: str
    public_sha256: str | None
    authority: str
    number: str
    secret: str
    contract: dict[str, Any] | None = None  # as `Contract.to_json`; older tokens have none


@dataclass(frozen=True)
class Entry:
    """The operator's record of a token, in a file named after site and number; the suffix marks a spent token.

    So a site can be revoked and get a new token even if the file is damaged.
    """

    path: Path
    secret: str
    until: float  # seconds since 1970
    days: int

    @property
    def site(self) -> str:
        return _site_of(self.path)


def make_token(
    folder: Path,
    site: str,
    public_sha256: str | None,
    hours: float = HOURS,
    days: int = certs.DAYS,
    contract: Contract | None = None,
) -> Path:
    """Creates a token in `folder/SITE.token`, valid for one certificate. Voids the site's older tokens."""
    certs.refuse_bad_invitation(site, public_sha256)
    if not math.isfinite(hours):  # such a token would never expire
        raise ConfigError(f"--hours {hours:g}: expected a finite number of hours, for instance --hours 72.")
    federation, authority = certs.federation_of(folder), certs.read_pem(folder / "ca.pem").decode()
    number, secret = secrets.token_hex(16), secrets.token_hex(32)
    agreed = contract.to_json() if contract else None
    token = Token(federation, site, public_sha256, authority, number, secret, agreed)
    ledger = folder / LEDGER
    ledger.mkdir(mode=0o700, exist_ok=True)
    void_tokens(folder, site)
    content = {"secret": token.secret, "until": time.time() + 3600 * hours, "days": days}
    write_json(ledger / f"{site}.{token.number}.json", content)
    path = folder / f"{site}.token"
    certs.write_secret(path, json.dumps(asdict(token), indent=1).encode())
    return path


def make_request(token_file: Path, out: Path | None = None) -> Path:
    """At the site: creates a key and a certificate request, in the folder that becomes its invitation.

    An existing key is kept, so the request renews its certificate without disturbing a running site.
    """
    token = read_token(token_file)
    out = out or Path(token.site)
    contract = contract_of_token(token, token_file)
    content = certs.invitation_json(token.federation, token.site, token.public_sha256, contract)
    _refuse_other_invitation(out, content)
    out.mkdir(parents=True, exist_ok=True)
    if (out / "key.pem").exists():
        key = certs.read_key(out / "key.pem")
    else:
        key = ec.generate_private_key(ec.SECP256R1())
        certs.write_key(out / "key.pem", key)
    asked = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
    pem = asked.public_bytes(serialization.Encoding.PEM)
    write_atomically(out / "ca.pem", token.authority.encode())
    write_json(out / INVITATION, content)
    request = {"number": token.number, "request": pem.decode(), "proof": _proof(token.secret, pem)}
    write_json(out / REQUEST, request)
    return out


def enrol(folder: Path, request_file: Path) -> tuple[str, Path]:
    """Spends the token; returns the site's name and its certificate, `folder/SITE.cert.pem`.

    The token is spent before the certificate is written: a crash in between costs a token, never a second certificate.
    """
    request = certs.read_json(request_file, f"Ask the site for the {REQUEST} of `fedal certs request`.")
    number, pem, proof = (request.get(key) for key in ("number", "request", "proof"))
    if not (isinstance(number, str) and isinstance(pem, str) and isinstance(proof, str) and NUMBER.fullmatch(number)):
        raise ConfigError(
            f"{request_file}: expected the strings number, request and proof. Ask the site to send it again."
        )
    entry = _entry(folder, number, request_file)
    if not hmac.compare_digest(proof.encode(), _proof(entry.secret, pem.encode()).encode()):
        raise ConfigError(
            f"{request_file}: it was not made with the token for {entry.site}, or it was changed in transit. "
            "The token is still valid. Ask the site to send its request again."
        )
    if time.time() > entry.until:
        end = time.strftime("%Y-%m-%d %H:%M", time.gmtime(entry.until))
        raise ConfigError(
            f"{request_file}: the token for {entry.site} expired at {end} UTC. "
            f"Create a new one: fedal certs token {entry.site}"
        )
    key = _requested_key(pem, request_file)
    _spend(entry.path, request_file)
    certificate = certs.sign_site(folder, entry.site, key, entry.days)
    path = folder / f"{entry.site}.cert.pem"
    write_atomically(path, certificate.public_bytes(serialization.Encoding.PEM))
    return entry.site, path


def void_tokens(folder: Path, site: str) -> int:
    """Voids all unused tokens of this site; returns how many there were."""
    unused = [*(folder / LEDGER).glob(f"{site}.*.json")]
    for path in unused:
        _spend(path, path)
    return len(unused)


def read_token(path: Path) -> Token:
    found = certs.read_json(path, ASK)
    names = set(Token.__dataclass_fields__)
    texts = all(isinstance(found.get(name), str) for name in names - {"public_sha256", "contract"})
    if set(found) | {"contract"} != names or not texts:
        raise ConfigError(f"{path}: not a token made by `fedal certs token`. {ASK}")
    token = Token(**found)
    certs.refuse_bad_invitation(token.site, token.public_sha256)
    try:
        x509.load_pem_x509_certificate(token.authority.encode())
    except ValueError as error:
        raise ConfigError(f"{path}: the CA certificate in it cannot be read ({error}). {ASK}") from None
    return token


def contract_of_token(token: Token, path: Path) -> Contract | None:
    """The contract that the site agrees to, if the token names one."""
    return read_contract(token.contract, str(path)) if token.contract is not None else None


def _refuse_other_invitation(out: Path, content: dict[str, Any]) -> None:
    path = out / INVITATION
    if not path.exists():
        return
    found = certs.read_json(path, "Choose another --out.")
    if any(found.get(key) != content[key] for key in ("federation", "site")):
        raise ConfigError(
            f"{out} is the invitation of {found.get('site')} in {found.get('federation')}; the token is for "
            f"{content['site']} in {content['federation']}. Choose another --out."
        )


def _entry(folder: Path, number: str, request_file: Path) -> Entry:
    certs.federation_of(folder)  # raises if the folder holds no CA
    found = [*(folder / LEDGER).glob(f"*.{number}.*")]
    if not found:
        raise ConfigError(
            f"{request_file}: {folder} did not make its token. Is it for another certificate authority (--out)?"
        )
    path = found[0]
    if path.suffix == SPENT:
        raise _already_spent(path, request_file)
    advice = f"Create a new one: fedal certs token {_site_of(path)}"
    content = certs.read_json(path, advice)
    try:
        return Entry(path, str(content["secret"]), float(content["until"]), int(content["days"]))
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path}: damaged ({type(error).__name__}: {error}). {advice}") from None


def _site_of(path: Path) -> str:
    return path.name.partition(".")[0]


def _spend(path: Path, request_file: Path) -> None:
    """Spends a token by a single rename: of two concurrent attempts, only one succeeds."""
    try:
        os.rename(path, path.with_suffix(SPENT))
    except FileNotFoundError:
        raise _already_spent(path, request_file) from None
    sync_folder(path.parent)


def _already_spent(path: Path, request_file: Path) -> ConfigError:
    site = _site_of(path)
    return ConfigError(
        f"{request_file}: its token for {site} is already spent or void; a token is valid for one certificate. If "
        f"{path.parent.parent / f'{site}.cert.pem'} is not for the site's own key, the token was stolen: "
        f"fedal certs revoke {site}. Create a new one: fedal certs token {site}"
    )


def _requested_key(pem: str, request_file: Path) -> ec.EllipticCurvePublicKey:
    """The public key in the request, whose owner signed it. All other content is ignored."""
    try:
        asked = x509.load_pem_x509_csr(pem.encode())
        key = asked.public_key()
        signed = asked.is_signature_valid
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{request_file}: not a certificate request ({error}).") from None
    if not signed or not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.key_size < 256:
        raise ConfigError(
            f"{request_file}: expected a signed elliptic-curve key of at least 256 bits. "
            "Create the request with `fedal certs request`."
        )
    return key


def _proof(secret: str, pem: bytes) -> str:
    return hmac.digest(secret.encode(), pem, "sha256").hex()
