"""Commands of a deployment's certificate authority (CA), which decides who may take part."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedal.cli.deploy import FederationFile, need_deploy
from fedal.cli.printing import warn
from fedal.errors import ConfigError

if TYPE_CHECKING:
    from fedal.deploy.contract import Contract

certs_app = typer.Typer(help="Create the certificates of a federation.", no_args_is_help=True)

Folder = Annotated[Path, typer.Option("--out", help="Folder of the certificate authority (CA).")]
Days = Annotated[int, typer.Option(min=1, max=3650, help="Days for which the certificate is valid.")]
Hours = Annotated[float, typer.Option(min=0.01, max=8760, help="Hours for which the token is valid.")]
ContractOf = Annotated[
    Path | None, typer.Option("--config", help="Federation config; adds its contract and the hash of its public set.")
]


@certs_app.command("init")
def certs_init(
    federation: Annotated[str, typer.Option(help="Name of the federation, as in the config.")] = "fedal",
    out: Folder = Path("certs"),
) -> None:
    """Create a private certificate authority (CA). Keep ca.key offline: anyone with it can admit sites."""
    need_deploy()
    from fedal.deploy.pki.authority import init

    init(out, federation)
    print(f"certificate authority of {federation}: {out}")


@certs_app.command("server")
def certs_server(
    host: Annotated[list[str], typer.Option(help="Name or address at which sites reach the server; repeatable.")],
    out: Folder = Path("certs"),
    days: Days = 90,
) -> None:
    """Create the server's certificate."""
    need_deploy()
    from fedal.deploy.pki.authority import issue_server

    print(f"server: {issue_server(out, host, days)}")


@certs_app.command("client")
def certs_client(site: str, out: Folder = Path("certs"), config: ContractOf = None, days: Days = 90) -> None:
    """Create a site's invitation: CA certificate, its own certificate and key, contract, hash of the public set."""
    need_deploy()
    from fedal.deploy.pki.authority import issue_client

    sha256, contract = _pinned(config, f"the invitation of {site}")
    print(f"invitation of {site}: {issue_client(out, site, sha256, days, contract)}")


@certs_app.command("token")
def certs_token(
    site: str, out: Folder = Path("certs"), config: ContractOf = None, hours: Hours = 72, days: Days = 90
) -> None:
    """Create a one-time token, with which a site requests a certificate for its own key."""
    need_deploy()
    from fedal.deploy.pki.enrolment import make_token

    sha256, contract = _pinned(config, f"the token of {site}")
    print(f"token of {site}: {make_token(out, site, sha256, hours, days, contract)}")


@certs_app.command("request")
def certs_request(
    token: Path,
    out: Annotated[
        Path | None, typer.Option(help="Folder for this site's key.", show_default="the site's name")
    ] = None,
) -> None:
    """At a site: create a key and, from the operator's token, a certificate request."""
    need_deploy()
    from fedal.deploy.pki.authority import REQUEST
    from fedal.deploy.pki.enrolment import make_request

    folder = make_request(token, out)
    print(f"send to the operator: {folder / REQUEST}; save the certificate you receive as {folder / 'cert.pem'}")


@certs_app.command("enrol")
def certs_enrol(request: Path, out: Folder = Path("certs")) -> None:
    """Spend a token: issue the certificate that a site requests."""
    need_deploy()
    from fedal.deploy.pki.enrolment import enrol

    site, certificate = enrol(out, request)
    print(f"certificate of {site}: {certificate}; send it to the site")


@certs_app.command("all")
def certs_all(
    config: FederationFile,
    host: Annotated[list[str], typer.Option(help="Name or address at which sites reach the server; repeatable.")],
    out: Folder = Path("certs"),
    days: Days = 90,
    tokens: Annotated[
        bool, typer.Option("--tokens", help="Create tokens instead of invitations: sites create their own keys.")
    ] = False,
) -> None:
    """Create the CA (unless it exists), the server's certificate, and an invitation for the operator and each site."""
    need_deploy()
    from fedal.deploy.pki import authority as certs
    from fedal.deploy.pki import enrolment
    from fedal.deploy.plan import plan_federation
    from fedal.deploy.settings import load_federation

    certs.refuse_bad_hosts(host)
    plan = plan_federation(*load_federation(config))
    federation, sha256, contract = plan.deployment.federation, plan.public_sha256, plan.contract
    if not (out / "ca.key").exists():
        certs.init(out, federation)
    elif (found := certs.federation_of(out)) != federation:
        raise ConfigError(f"{out} is the certificate authority of {found}, not of {federation}. Choose another --out.")
    print(f"server: {certs.issue_server(out, host, days)}")
    for site in plan.config.client_names:
        if tokens:
            print(f"token of {site}: {enrolment.make_token(out, site, sha256, days=days, contract=contract)}")
        else:
            print(f"invitation of {site}: {certs.issue_client(out, site, sha256, days, contract)}")
    print(f"invitation of {certs.OPERATOR}: {certs.issue_client(out, certs.OPERATOR, sha256, days, contract)}")
    print(f"contract: {contract.name}")


@certs_app.command("revoke")
def certs_revoke(name: str, out: Folder = Path("certs")) -> None:
    """Revoke every certificate and token issued to a site. A running server applies the list once it has the file."""
    need_deploy()
    from fedal.deploy.pki.authority import REVOKED, revoke, serials_of
    from fedal.deploy.pki.enrolment import void_tokens

    if tokens := void_tokens(out, name):
        print(f"unused tokens of {name} voided: {tokens}")
        if not serials_of(out, name):
            return
    count = len(revoke(out, name))
    print(f"certificates of {name} revoked: {count}\nrevocation list: {out / 'server' / REVOKED}")
    print("If the server runs on another machine, copy the list to its certificates folder.")


def _pinned(config: Path | None, what: str) -> tuple[str | None, Contract | None]:
    """The public set and the contract that an invitation pins. Warns if it pins neither."""
    if config is None:
        warn(f"without --config, {what} pins no contract and no public set: at the site, only --allow binds.")
        return None, None
    from fedal.deploy.plan import plan_federation
    from fedal.deploy.settings import load_federation

    plan = plan_federation(*load_federation(config))
    return plan.public_sha256, plan.contract
