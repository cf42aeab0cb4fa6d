"""Commands of a deployment's authority: who may take part."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedal.cli.deploy import FederationFile, need_deploy
from fedal.errors import ConfigError

certs_app = typer.Typer(help="Make the certificates of a federation.", no_args_is_help=True)

Folder = Annotated[Path, typer.Option("--out", help="The folder of the authority.")]
Days = Annotated[int, typer.Option(min=1, max=3650, help="How long the certificate is valid.")]
Hours = Annotated[float, typer.Option(min=0.01, max=8760, help="How long the token may be used.")]
PublicOf = Annotated[Path | None, typer.Option("--config", help="Puts the public set's hash into it.")]


@certs_app.command("init")
def certs_init(
    federation: Annotated[str, typer.Option(help="Its name, the same as in the config.")] = "fedal",
    out: Folder = Path("certs"),
) -> None:
    """Make a private authority. Keep ca.key offline: whoever has it can let sites in."""
    need_deploy()
    from fedal.deploy.pki.authority import init

    init(out, federation)
    print(f"authority of {federation}: {out}")


@certs_app.command("server")
def certs_server(
    host: Annotated[list[str], typer.Option(help="Name or address by which sites reach it; repeatable.")],
    out: Folder = Path("certs"),
    days: Days = 90,
) -> None:
    """Make the server's certificate."""
    need_deploy()
    from fedal.deploy.pki.authority import issue_server

    print(f"server: {issue_server(out, host, days)}")


@certs_app.command("client")
def certs_client(site: str, out: Folder = Path("certs"), config: PublicOf = None, days: Days = 90) -> None:
    """Make the invitation of a site: authority, certificate, key, and the hash of the public set."""
    need_deploy()
    from fedal.deploy.pki.authority import issue_client

    print(f"invitation of {site}: {issue_client(out, site, _public_sha256(config), days)}")


@certs_app.command("token")
def certs_token(
    site: str, out: Folder = Path("certs"), config: PublicOf = None, hours: Hours = 72, days: Days = 90
) -> None:
    """Make a one-time token, with which a site asks for a certificate for a key of its own."""
    need_deploy()
    from fedal.deploy.pki.enrolment import make_token

    print(f"token of {site}: {make_token(out, site, _public_sha256(config), hours, days)}")


@certs_app.command("request")
def certs_request(
    token: Path,
    out: Annotated[
        Path | None, typer.Option(help="The folder of this site's key.", show_default="the site's name")
    ] = None,
) -> None:
    """At a site: make a key, and from the operator's token a request for its certificate."""
    need_deploy()
    from fedal.deploy.pki.authority import REQUEST
    from fedal.deploy.pki.enrolment import make_request

    folder = make_request(token, out)
    print(f"send to the operator: {folder / REQUEST}; put what comes back here: {folder / 'cert.pem'}")


@certs_app.command("enrol")
def certs_enrol(request: Path, out: Folder = Path("certs")) -> None:
    """Spend a token: make the certificate that a site requests."""
    need_deploy()
    from fedal.deploy.pki.enrolment import enrol

    site, certificate = enrol(out, request)
    print(f"certificate of {site}: {certificate}; send it to the site")


@certs_app.command("all")
def certs_all(
    config: FederationFile,
    host: Annotated[list[str], typer.Option(help="Name or address by which sites reach the server; repeatable.")],
    out: Folder = Path("certs"),
    days: Days = 90,
    tokens: Annotated[bool, typer.Option("--tokens", help="Sites make their own keys: tokens for them.")] = False,
) -> None:
    """Make authority (unless there is one), server, operator and an invitation for every site of the roster."""
    need_deploy()
    from fedal.deploy.pki import authority as certs
    from fedal.deploy.pki import enrolment
    from fedal.deploy.plan import plan_federation
    from fedal.deploy.settings import load_federation

    plan = plan_federation(*load_federation(config))
    federation, sha256 = plan.deployment.federation, plan.public_sha256
    if not (out / "ca.key").exists():
        certs.init(out, federation)
    elif (found := certs.federation_of(out)) != federation:
        raise ConfigError(f"{out} is the authority of {found}, not of {federation}. Choose another --out.")
    print(f"server: {certs.issue_server(out, host, days)}")
    for site in plan.config.client_names:
        if tokens:
            print(f"token of {site}: {enrolment.make_token(out, site, sha256, days=days)}")
        else:
            print(f"invitation of {site}: {certs.issue_client(out, site, sha256, days)}")
    print(f"invitation of {certs.OPERATOR}: {certs.issue_client(out, certs.OPERATOR, sha256, days)}")


@certs_app.command("revoke")
def certs_revoke(name: str, out: Folder = Path("certs")) -> None:
    """Void every certificate and token made for a site so far. A running server heeds the list once it has it."""
    need_deploy()
    from fedal.deploy.pki.authority import REVOKED, revoke, serials_of
    from fedal.deploy.pki.enrolment import void_tokens

    if tokens := void_tokens(out, name):
        print(f"{tokens} unused of {name}: no longer good")
        if not serials_of(out, name):
            return
    count = len(revoke(out, name))
    print(f"{count} of {name}: {out / 'server' / REVOKED} (on another machine: copy it to the server's certificates)")


def _public_sha256(config: Path | None) -> str | None:
    if config is None:
        return None
    from fedal.deploy.plan import plan_federation
    from fedal.deploy.settings import load_federation

    return plan_federation(*load_federation(config)).public_sha256
