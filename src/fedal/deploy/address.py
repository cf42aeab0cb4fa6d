"""Network addresses as people type them: refused before a socket or a certificate is made from a wrong one."""

from __future__ import annotations

import ipaddress
import re

from fedal.errors import ConfigError

LABEL = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"  # container networks also use underscores
HOST_NAME = re.compile(rf"(?=.{{1,253}}$){LABEL}(\.{LABEL})*\.?")
MAX_PORT = 65535


def refuse_bad_host(host: str, what: str, *, wildcard: bool = False) -> None:
    """Raises ConfigError unless `host` is a host name or an IP address; `wildcard` also allows `*.example.org`."""
    name = host.removeprefix("*.") if wildcard else host
    if _is_ip(host) or (HOST_NAME.fullmatch(name) and not re.fullmatch(r"[\d.]+", name)):
        return
    bare = host.rpartition(":")[0]
    advice = f" Leave out the port: {bare}." if bare and (_is_ip(bare.strip("[]")) or HOST_NAME.fullmatch(bare)) else ""
    raise ConfigError(
        f"{what} {host!r}: not a host name or an IP address. Expected letters, digits, dashes and dots, such as "
        f"fedal.example.org or 192.0.2.7.{advice}"
    )


def refuse_bad_address(address: str, what: str) -> None:
    """Raises ConfigError unless `address` is HOST:PORT; an IPv6 address needs brackets, as in [::1]:7443."""
    host, colon, port = address.rpartition(":")
    if not colon or not re.fullmatch(r"[0-9]{1,5}", port) or not 1 <= int(port) <= MAX_PORT:
        found = f"the port {port!r}" if colon else "no port"
        raise ConfigError(
            f"{what} {address!r}: {found}. Expected HOST:PORT with a port from 1 to {MAX_PORT}, such as localhost:7443."
        )
    bracketed = host.startswith("[") and host.endswith("]")
    if ":" in host and not bracketed:
        raise ConfigError(f"{what} {address!r}: write an IPv6 address in brackets, such as [::1]:7443.")
    refuse_bad_host(host[1:-1] if bracketed else host, what)


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
