"""Commands of a deployment: `serve`, `join`, `status`, `export-sites`."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedal.cli.interrupt import stop_on_request
from fedal.cli.options import Assignments, GivenSettings
from fedal.cli.printing import print_table, warn
from fedal.config import parse_assignments
from fedal.config.local_settings import own_settings
from fedal.errors import ConfigError, FedalError, Stopped
from fedal.printable import printable

if TYPE_CHECKING:
    from fedal.deploy.pki.authority import Invitation

FederationFile = Annotated[Path, typer.Option("--config", help="The federation's TOML file.")]
Server = Annotated[str, typer.Option(help="HOST:PORT of the server.")]
Insecure = Annotated[bool, typer.Option("--insecure", help="Plain text, on loopback addresses only.")]
InvitationFolder = Annotated[Path | None, typer.Option("--invitation", help="Invitation folder made by `fedal certs`.")]

OwnMethod = Annotated[
    str | None,
    typer.Option("--method", help="The only method that this site runs, also your own: package.module:METHOD."),
]


def serve(config: FederationFile, insecure: Insecure = False) -> None:
    """Serve a federation until its last round; rerun the same command to resume after any stop."""
    need_deploy()
    from fedal.deploy.plan import plan_federation
    from fedal.deploy.settings import load_federation

    plan = plan_federation(*load_federation(config))

    from fedal.deploy.service import log_line
    from fedal.deploy.service import serve as run_server

    should_stop = stop_on_request(lambda text: log_line("stopping", text=text), (signal.SIGINT, signal.SIGTERM))
    try:
        run_server(plan, insecure=insecure, should_stop=should_stop)
    except Stopped as stopped:
        log_line("stopped", text=str(stopped))
        raise typer.Exit(130) from None


def join(
    server: Server,
    name: Annotated[str, typer.Option(help="Name of this site in the roster.")],
    data: Annotated[Path, typer.Option(help="Private data, never sent: CSV, Parquet, .npz or folder of images.")],
    model: Annotated[str, typer.Option(help="Name from `fedal models`, package.module:factory, or auto.")] = "auto",
    invitation: InvitationFolder = None,
    state: Annotated[Path | None, typer.Option(help="Folder for this site's state.", show_default="NAME-state")] = None,
    save: Annotated[Path | None, typer.Option(help="File for the trained weights (safetensors).")] = None,
    share_metrics: Annotated[
        bool, typer.Option("--share-metrics", help="Send this site's metrics on its own test data to the server.")
    ] = False,
    restart: Annotated[
        bool, typer.Option("--restart-from-scratch", help="Start this site from scratch after it lost its state.")
    ] = False,
    patience: Annotated[float, typer.Option(help="Seconds to wait for an unreachable server.")] = 600.0,
    allow: Annotated[
        list[str] | None,
        typer.Option(help="What may leave this site besides outputs on public data; repeat it, or use commas."),
    ] = None,
    accept: Annotated[
        str | None, typer.Option(help="Hash of a changed contract that you agree to, see `fedal contract`.")
    ] = None,
    method: OwnMethod = None,
    schema_file: Annotated[
        Path | None, typer.Option(help="Schema of the federation's data, made by `fedal schema`.")
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="How this site trains, such as lr=1e-2; see docs/learners.md."),
    ] = None,
    own_validation: Annotated[
        float, typer.Option(help="Share of the training data to hold out, by which this site judges the run.")
    ] = 0.0,
    keep_best: Annotated[
        str | None,
        typer.Option(
            metavar="METRIC",
            help="Also save this site's best model, by this metric of docs/metrics.md on its --own-validation data.",
        ),
    ] = None,
    federation: Annotated[str, typer.Option(help="Name of the federation, for --insecure only.")] = "fedal",
    insecure: Insecure = False,
) -> None:
    """Join a federation with your own model and data; rerun the same command to resume after any stop."""
    need_deploy()
    from fedal.deploy.address import refuse_bad_address

    refuse_bad_address(server, "--server")
    found = _invitation(invitation or Path(name), insecure, name)

    from fedal import methods
    from fedal.data.schema import load_schema
    from fedal.deploy.consent import parse_allowance
    from fedal.deploy.contract import parse_hash
    from fedal.deploy.entering import SitePlan
    from fedal.deploy.site import join as run_site

    allowed = parse_allowance(word.strip() for words in allow or [] for word in words.split(","))
    accepted = parse_hash(accept) if accept is not None else None
    if method is not None:
        methods.get(method)  # a mistake is found before the start
    if schema_file is not None:
        load_schema(schema_file)
    if keep_best is not None:
        _check_keep_best(keep_best, own_validation, save)
    run_site(
        SitePlan(
            server, name, data, state or Path(f"{name}-state"), model, found, federation, save, share_metrics, restart,
            patience, allowed, accepted, method, schema_file, own_validation, keep_best,
            local=own_settings(parse_assignments(assignments or [])),
        )
    )  # fmt: skip


def _check_keep_best(metric: str, own_validation: float, save: Path | None) -> None:
    from fedal.metrics.table import METRICS

    if metric not in METRICS:
        raise ConfigError(f"--keep-best {metric}: no such metric; expected one of {', '.join(METRICS)}.")
    if not own_validation:
        raise ConfigError(f"--keep-best {metric}: needs data to choose by. Try --own-validation 0.2.")
    if save is None:
        raise ConfigError(f"--keep-best {metric}: needs a file to save to. Add --save FILE.")


def status(server: Server, invitation: InvitationFolder = None, insecure: Insecure = False) -> None:
    """Show a server's current round, connected sites and traffic."""
    need_deploy()
    import grpc

    from fedal.deploy.address import refuse_bad_address
    from fedal.deploy.channel import ask_status, open_channel, reason_of

    refuse_bad_address(server, "--server")
    found = _invitation(invitation or Path("operator"), insecure)
    try:
        with open_channel(server, found) as channel:
            reply = ask_status(channel, timeout_s=5.0)
    except grpc.RpcError as error:
        raise FedalError(f"no answer from {server}: {reason_of(error)}") from None
    federation, state = printable(reply.federation), printable(reply.state)
    print(f"{federation}: round {reply.round} of {reply.total_rounds}, {state}")
    print(f"connected: {reply.connected} of {reply.roster} sites")
    rows = [
        [printable(s.site), "yes" if s.connected else "no", f"{s.answer_ms:.1f} ms", str(s.up_bytes), str(s.down_bytes),
         str(s.refused), f"{s.strikes}, in quarantine" if s.quarantined else str(s.strikes)]
        for s in reply.sites
    ]  # fmt: skip
    print_table("Sites", ["site", "connected", "last answer", "up bytes", "down bytes", "refused", "strikes"], rows)
    for caller in reply.outsiders:
        name = printable(caller.name) or "a caller without a name"
        print(f"refused, not in the roster: {name}, {caller.refused} times")


def readmit(site: Annotated[str, typer.Argument(help="Name of the site.")], config: FederationFile) -> None:
    """Readmit a site that is in quarantine; run it on the server's machine, whether or not the server runs."""
    need_deploy()
    from fedal.deploy.settings import load_federation
    from fedal.deploy.strikes import readmission
    from fedal.durable import write_atomically

    run, deployment = load_federation(config)
    if site not in run.client_names:
        raise ConfigError(f'{config}: "{site}" is not in the roster; expected one of {", ".join(run.client_names)}.')
    folder = Path(deployment.folder)
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder. Run this on the server's machine, where `fedal serve` runs.")
    write_atomically(readmission(folder, site), b"")
    print(f"{site} is readmitted when it joins again.")


def export_sites(
    config: FederationFile,
    out: Annotated[Path, typer.Option(help="Folder for one .npz file per client.")],
    assignments: Assignments = None,
) -> None:
    """Write each client's private data from `fedal run` to a file, to rehearse a deployment."""
    checked = GivenSettings.of(config, assignments).config()

    from fedal.simulate.export import export_sites as export

    for path in export(checked, out):
        print(path)


def _invitation(folder: Path, insecure: bool, site: str | None = None) -> Invitation | None:
    if insecure:
        return None
    from fedal.deploy.pki.authority import check_pems, read_invitation

    found = read_invitation(folder)
    if site is not None and found.site != site:
        raise ConfigError(f"{folder} is the invitation of {found.site}, not of {site}.")
    if warning := check_pems(found.pems(), folder):
        warn(f"{warning}. Ask the operator for a new one.")
    return found


def need_deploy() -> None:
    import fedal.deploy  # noqa: F401 - must come first: it sets which TLS versions gRPC allows

    try:
        import cryptography  # noqa: F401
        import grpc  # noqa: F401
    except ImportError:
        raise ConfigError("a deployment needs more packages. Run: pip install 'fedal[deploy]'") from None
