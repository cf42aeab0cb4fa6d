"""Commands of a deployment: `certs`, `serve`, `join`, `status`, `export-sites`."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedal.cli.app import Settings, _config, _print_table, _StopOnce, app
from fedal.errors import ConfigError, FedalError, Stopped

if TYPE_CHECKING:
    from fedal.deploy.pki.authority import Invitation

certs_app = typer.Typer(help="Make the certificates of a federation.", no_args_is_help=True)
app.add_typer(certs_app, name="certs")

Folder = Annotated[Path, typer.Option("--out", help="The folder of the authority.")]
Days = Annotated[int, typer.Option(min=1, max=3650, help="How long the certificate is valid.")]
Hours = Annotated[float, typer.Option(min=0.01, max=8760, help="How long the token may be used.")]
PublicOf = Annotated[Path | None, typer.Option("--config", help="Puts the public set's hash into it.")]
FederationFile = Annotated[Path, typer.Option("--config", help="The federation's TOML file.")]
Server = Annotated[str, typer.Option(help="HOST:PORT")]
Insecure = Annotated[bool, typer.Option("--insecure", help="Plain text, on loopback addresses only.")]
InvitationFolder = Annotated[Path | None, typer.Option("--invitation", help="The folder of `fedal certs client`.")]


@certs_app.command("init")
def certs_init(
    federation: Annotated[str, typer.Option(help="Its name, the same as in the config.")] = "fedal",
    out: Folder = Path("certs"),
) -> None:
    """Make a private authority. Keep ca.key offline: whoever has it can let sites in."""
    _need_deploy()
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
    _need_deploy()
    from fedal.deploy.pki.authority import issue_server

    print(f"server: {issue_server(out, host, days)}")


@certs_app.command("client")
def certs_client(
    site: str,
    out: Folder = Path("certs"),
    config: PublicOf = None,
    days: Days = 90,
) -> None:
    """Make the invitation of a site: authority, certificate, key, and the hash of the public set."""
    _need_deploy()
    from fedal.deploy.pki.authority import issue_client

    print(f"invitation of {site}: {issue_client(out, site, _public_sha256(config), days)}")


@certs_app.command("token")
def certs_token(
    site: str, out: Folder = Path("certs"), config: PublicOf = None, hours: Hours = 72, days: Days = 90
) -> None:
    """Make a one-time token, with which a site asks for a certificate for a key of its own."""
    _need_deploy()
    from fedal.deploy.pki.enrolment import make_token

    print(f"token of {site}: {make_token(out, site, _public_sha256(config), hours, days)}")


@certs_app.command("request")
def certs_request(
    token: Path,
    out: Annotated[Path | None, typer.Option(help="The folder of this site's key. [default: the site's name]")] = None,
) -> None:
    """At a site: make a key, and from the operator's token a request for its certificate."""
    _need_deploy()
    from fedal.deploy.pki.authority import REQUEST
    from fedal.deploy.pki.enrolment import make_request

    folder = make_request(token, out)
    print(f"send to the operator: {folder / REQUEST}; put what comes back here: {folder / 'cert.pem'}")


@certs_app.command("enrol")
def certs_enrol(request: Path, out: Folder = Path("certs")) -> None:
    """Spend a token: make the certificate that a site requests."""
    _need_deploy()
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
    _need_deploy()
    from fedal.deploy.settings import load_federation

    run, deployment = load_federation(config)

    from fedal.deploy.codec import manifest
    from fedal.deploy.pki import authority as certs
    from fedal.deploy.pki import enrolment
    from fedal.deploy.service import plan_federation

    sha256 = manifest(plan_federation(run, deployment).public_x)
    if not (out / "ca.key").exists():
        certs.init(out, deployment.federation)
    elif (found := certs.federation_of(out)) != deployment.federation:
        raise ConfigError(f"{out} is the authority of {found}, not of {deployment.federation}. Choose another --out.")
    print(f"server: {certs.issue_server(out, host, days)}")
    for site in run.client_names:
        if tokens:
            print(f"token of {site}: {enrolment.make_token(out, site, sha256, days=days)}")
        else:
            print(f"invitation of {site}: {certs.issue_client(out, site, sha256, days)}")
    print(f"invitation of {certs.OPERATOR}: {certs.issue_client(out, certs.OPERATOR, sha256, days)}")


@certs_app.command("revoke")
def certs_revoke(name: str, out: Folder = Path("certs")) -> None:
    """Void every certificate and token made for a site so far. A running server heeds the list once it has it."""
    _need_deploy()
    from fedal.deploy.pki.authority import REVOKED, revoke, serials_of
    from fedal.deploy.pki.enrolment import void_tokens

    if tokens := void_tokens(out, name):
        print(f"{tokens} unused of {name}: no longer good")
        if not serials_of(out, name):
            return
    count = len(revoke(out, name))
    print(f"{count} of {name}: {out / 'server' / REVOKED} (on another machine: copy it to the server's certificates)")


@app.command()
def serve(config: FederationFile, insecure: Insecure = False) -> None:
    """Serve a federation to its sites until its last round; the same command continues after any stop."""
    _need_deploy()
    from fedal.deploy.settings import load_federation

    run, deployment = load_federation(config)

    from fedal.deploy.service import log_line, plan_federation
    from fedal.deploy.service import serve as play

    stop = _StopOnce(lambda text: log_line("stopping", text=text))
    signal.signal(signal.SIGTERM, stop._interrupt)
    try:
        play(plan_federation(run, deployment), insecure=insecure, should_stop=stop.requested)
    except Stopped as stopped:
        log_line("stopped", text=str(stopped))
        raise typer.Exit(130) from None


@app.command()
def join(
    server: Server,
    name: Annotated[str, typer.Option(help="The name of this site in the roster.")],
    data: Annotated[Path, typer.Option(help="Private data: an .npz file with x and y. It is never sent.")],
    model: Annotated[str, typer.Option(help="A name of `fedal models`, package.module:factory, or auto.")] = "auto",
    invitation: InvitationFolder = None,
    state: Annotated[Path | None, typer.Option(help="Where this site keeps its state. [default: NAME-state]")] = None,
    save: Annotated[Path | None, typer.Option(help="Write the trained weights here (safetensors).")] = None,
    share_metrics: Annotated[bool, typer.Option("--share-metrics", help="Send own test accuracy.")] = False,
    restart: Annotated[
        bool, typer.Option("--restart-from-scratch", help="This site lost its state: let it begin anew.")
    ] = False,
    patience: Annotated[float, typer.Option(help="Seconds to wait for a server out of reach.")] = 600.0,
    federation: Annotated[str, typer.Option(help="With --insecure: its name.")] = "fedal",
    insecure: Insecure = False,
) -> None:
    """Take part in a federation with an own model and own data; the same command continues after any stop."""
    _need_deploy()
    found = _invitation(invitation or Path(name), insecure, name)

    from fedal.deploy.entering import SitePlan
    from fedal.deploy.site import join as play

    play(
        SitePlan(
            server, name, data, state or Path(f"{name}-state"), model, found, federation, save, share_metrics, restart,
            patience,
        )
    )  # fmt: skip


@app.command()
def status(server: Server, invitation: InvitationFolder = None, insecure: Insecure = False) -> None:
    """Ask a server who is connected, which round it is, and what has been sent."""
    _need_deploy()
    import grpc

    from fedal.deploy.channel import ask_status, open_channel, reason_of

    found = _invitation(invitation or Path("operator"), insecure)
    try:
        with open_channel(server, found) as channel:
            reply = ask_status(channel, timeout_s=5.0)
    except grpc.RpcError as error:
        raise FedalError(f"no answer from {server}: {reason_of(error)}") from None
    print(f"{reply.federation}: round {reply.round} of {reply.total_rounds}, {reply.state}")
    rows = [
        [s.site, "yes" if s.connected else "no", f"{s.answer_ms:.1f} ms", str(s.up_bytes), str(s.down_bytes),
         str(s.refused)]
        for s in reply.sites
    ]  # fmt: skip
    _print_table("Sites", ["site", "connected", "last answer", "up bytes", "down bytes", "refused"], rows)


@app.command("export-sites")
def export_sites(
    config: FederationFile,
    out: Annotated[Path, typer.Option(help="A folder for one .npz file per client.")],
    settings: Settings = None,
) -> None:
    """Write the private data that each client of `fedal run` would have: for rehearsing a deployment."""
    checked = _config(config, {}, settings)
    from fedal.simulate.export import export_sites as export

    for path in export(checked, out):
        print(path)


def _public_sha256(config: Path | None) -> str | None:
    if config is None:
        return None
    from fedal.deploy.codec import manifest
    from fedal.deploy.service import plan_federation
    from fedal.deploy.settings import load_federation

    return manifest(plan_federation(*load_federation(config)).public_x)


def _invitation(folder: Path, insecure: bool, site: str | None = None) -> Invitation | None:
    if insecure:
        return None
    from fedal.deploy.pki.authority import check_pems, read_invitation

    found = read_invitation(folder)
    if site is not None and found.site != site:
        raise ConfigError(f"{folder} is the invitation of {found.site}, not of {site}.")
    if warning := check_pems(found.pems(), folder):
        print(f"warning: {warning}. Ask the operator for a new one.", file=sys.stderr)
    return found


def _need_deploy() -> None:
    import fedal.deploy  # noqa: F401 - comes first: it decides what gRPC allows

    try:
        import cryptography  # noqa: F401
        import grpc  # noqa: F401
    except ImportError:
        raise ConfigError("a deployment needs more packages. Type: pip install 'fedal[deploy]'") from None
