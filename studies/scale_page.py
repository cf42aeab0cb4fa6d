"""The generated part of docs/scale.md: tables and a figure from docs/results/scale/costs.json."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fedal.figures.canvas import INK, SOFT, beside, blank, label, legend_below, look, save
from fedal.records.numbers import size
from fedal.records.tables import as_markdown
from studies.results_page import write_between
from studies.results_plan import ROOT
from studies.scale_costs import COSTS, Costs, read_costs
from studies.scale_model import Outcome, World, largest_cohort, server_bytes, server_seconds, simulated

PAGE = ROOT / "docs" / "scale.md"
FIGURE = COSTS.parent / "scale"
BEGIN, END = "<!-- tables: written by python -m studies scale -->", "<!-- end of tables -->"
SIZES = (10**3, 10**4, 10**5, 10**6)
COHORTS = (10, 100, 1000, 10_000)
TAUS = (1, 5, 20)
BATCHES = (32, 128, 512)
SEEDS = range(5)  # rounds that are drawn; tables show their means
CROWD = 10**5  # from so many clients on, one drawn round is as good as five
TITLES = {"fedal": "FedAL, exact", "fedal in groups": "FedAL, 32 groups", "fedmd": "FedMD"}
LIMITS = (0.1, 1.0, 10.0)


def write_scale_page() -> Path:
    costs = read_costs()
    _draw(costs)
    return write_between(PAGE, BEGIN, END, scale_page(costs))


def scale_page(costs: Costs, world: World | None = None) -> str:
    """The text between the markers."""
    world = world or World()
    parts = [_measured(costs), _bytes(costs), _server(costs), _rounds(costs, world), _batches(costs, world)]
    return "\n\n".join(parts)


def _measured(costs: Costs) -> str:
    return (
        f"Measured ({costs.machine}; processor time): a client's iteration {costs.client_ms:.1f} ms (LeNet5, batch 32, "
        f"alone); transport at a deployed server {costs.transport_ms:.2f} ms per client and exchange; an upload "
        f"{costs.up_bytes:,} bytes, a reply {costs.down_bytes:,}, with framing; the weights {costs.weight_bytes:,}."
    )


def _bytes(costs: Costs) -> str:
    rows = []
    for clients in SIZES:
        fedavg = 2 * clients * costs.weight_bytes / 5
        every = server_bytes(costs, clients)
        rows.append([f"{clients:,}", size(every), size(1000 * every), size(fedavg), _seconds(8 * every / 1e9)])
    heads = ["clients in a round", "per iteration", "per 1,000 iterations", "FedAvg, tau 5, per iteration"]
    return "### Bytes at the server\n\n" + as_markdown([*heads, "FedAL's iteration on 1 Gbit/s"], rows)


def _server(costs: Costs) -> str:
    rows = [
        [f"{n:,}", _seconds(n * costs.transport_ms / 1e3), *(_seconds(costs.server(m, n) / 1e3) for m in TITLES)]
        for n in (10, 100, *SIZES)
    ]
    table = as_markdown(["clients in a round", "transport", *TITLES.values()], rows)
    most = [[f"{limit:g} s", *(f"{largest_cohort(costs, method, limit):,}" for method in TITLES)] for limit in LIMITS]
    fits = as_markdown(["one core, per iteration", *TITLES.values()], most)
    return (
        "### Server\n\nSeconds of one core per iteration; beyond 1,000 clients extrapolated.\n\n"
        f"{table}\n\nThe largest cohort that a server with one core for transport and computation can serve:\n\n{fits}"
    )


def mean_outcome(costs: Costs, world: World, cohort: int, tau: int, batch: int = 32) -> tuple[float, float, float]:
    """Mean seconds per iteration, those of waiting for clients, and the share that completes the round."""
    seeds = SEEDS if cohort < CROWD else SEEDS[:1]
    found: list[Outcome] = [simulated(costs, world, "fedal in groups", cohort, tau, batch, seed) for seed in seeds]
    total = sum(each.iteration.total for each in found), sum(each.iteration.clients for each in found)
    return total[0] / len(found), total[1] / len(found), sum(each.left for each in found) / len(found)


def _rounds(costs: Costs, world: World) -> str:
    rows = []
    for patience in (0.0, world.patience):
        policy = "waits for all" if not patience else f"{patience:g} medians"
        for cohort in (*COHORTS, *SIZES[2:]):
            cells = []
            for tau in TAUS:
                total, _, left = mean_outcome(costs, replace(world, patience=patience), cohort, tau)
                cells.append(f"{_seconds(total)}, {left:.0%}")
            rows.append([policy, f"{cohort:,}", *cells])
    heads = ["deadline of an exchange", "clients in a round", *(f"tau {tau}" for tau in TAUS)]
    return (
        "### Stragglers and churn\n\nFedAL in groups: seconds per iteration, and the share of the cohort that "
        f"completes the round; means of {len(SEEDS)} drawn rounds, one from {CROWD:,} clients on.\n\n"
        + as_markdown(heads, rows)
    )


def _batches(costs: Costs, world: World) -> str:
    rows = []
    for cohort in COHORTS:
        cells = []
        for batch in BATCHES:
            total, waited, _ = mean_outcome(costs, world, cohort, 5, batch)
            cells.append(f"{batch / total:,.0f} ({waited / total:.0%})")
        rows.append([f"{cohort:,}", *cells])
    heads = ["clients in a round", *(f"batch {batch}" for batch in BATCHES)]
    return (
        "### Batch size\n\nPublic samples that each client learns from per second, and the share of the time in which "
        "clients compute (tau 5, with the deadline).\n\n" + as_markdown(heads, rows)
    )


def _draw(costs: Costs) -> None:
    figure, (load, left) = blank(9.5, 4.2, 2)
    sizes = [10 ** (1 + i / 4) for i in range(21)]
    for place, (method, title) in enumerate(TITLES.items()):
        load.plot(sizes, [server_seconds(costs, method, n) for n in sizes], label=title, **look(place))
    load.axhline(1, color=SOFT, linewidth=0.8)
    beside(load, "one second", (10, 1), (2, 4), size=8)
    load.set_xscale("log")
    load.set_yscale("log")
    label(load, "Server: one core per iteration", "clients in a round", "seconds")
    world = World()
    for place, patience in enumerate((0.0, world.patience)):
        found = [mean_outcome(costs, replace(world, patience=patience), n, 5) for n in COHORTS]
        name = "waits for all" if not patience else f"deadline of {patience:g} medians"
        left.plot(COHORTS, [each[0] for each in found], marker="o", label=name, **look(place + 3))
        for n, (total, _, share) in zip(COHORTS, found, strict=True):
            beside(left, f"{share:.0%}", (n, total), (0, 7 if not patience else -14), size=8, ha="center")
    left.set_xscale("log")
    left.set_yscale("log")
    left.set_yticks([0.2, 0.5, 1, 2, 5], ["0.2", "0.5", "1", "2", "5"])
    left.set_yticks([], minor=True)
    left.margins(0.1, 0.2)
    left.legend(frameon=False, fontsize=8, labelcolor=INK)
    title = "Iteration with stragglers and churn, tau 5;\nshare of clients that complete the round"
    label(left, title, "clients in a round", "seconds")
    legend_below(figure, load)
    save(figure, FIGURE)


def _seconds(value: float) -> str:
    return f"{value * 1e3:.2g} ms" if value < 0.1 else f"{value:.2g} s" if value < 100 else f"{value:,.0f} s"
