"""The generated part of docs/results/attacks/README.md: three tables and a figure from runs.csv."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fedal.figures.canvas import COLOURS, INK, SOFT, blank, label, legend_below, save
from fedal.records.numbers import NONE as NO_VALUE
from fedal.records.statistics import mean
from fedal.records.tables import as_markdown
from studies.attacks import ABSENT, NONE, AttackPlan, Cell, Grid, Outcome, read_outcomes
from studies.results_page import BEGIN, END, write_between

INSIDE_THE_HULL = "hips"
TITLES = {"digits": "digits", "mnist": "MNIST", "fedmd": "FedMD", "fedal": "FedAL"}
MARKERS = "osD^vP"

SECURITY_PAGE = Path(__file__).parent.parent / "docs" / "security.md"
BEGIN_SUMMARY, END_SUMMARY = "<!-- attacks: written by python -m studies attacks -->", "<!-- end of attacks -->"

Seeds = dict[int, float]  # seed -> accuracy


class Table:
    """The accuracies of all finished runs."""

    def __init__(self, outcomes: Iterable[Outcome], column: str = "accuracy") -> None:
        self._found: dict[Cell, Seeds] = {}
        for each in outcomes:
            value = getattr(each, column)
            if value is not None:
                self._found.setdefault(each.cell, {})[each.seed] = value

    def seeds(self, cell: Cell, grid: Grid) -> Seeds:
        return {s: value for s, value in self._found.get(cell, {}).items() if s in grid.seeds[cell.dataset]}

    def mean(self, cell: Cell, grid: Grid) -> float | None:
        found = self.seeds(cell, grid)
        return mean(found.values()) if found else None

    def gain(self, cell: Cell, other: Cell, grid: Grid) -> float | None:
        """The mean difference over the seeds of a grid that both cells have."""
        first, second = self.seeds(cell, grid), self.seeds(other, grid)
        both = [first[seed] - second[seed] for seed in first if seed in second]
        return mean(both) if both else None


def write_attacks_page(plan: AttackPlan) -> Path:
    outcomes = read_outcomes(plan.folder)
    _draw(plan.grids["attacks"], Table(outcomes), plan.folder / "figures" / "attacks")
    write_between(SECURITY_PAGE, BEGIN_SUMMARY, END_SUMMARY, attacks_summary(plan, outcomes))
    return write_between(plan.folder / "README.md", BEGIN, END, attacks_page(plan, outcomes))


def attacks_page(plan: AttackPlan, outcomes: Sequence[Outcome]) -> str:
    """The text between the markers."""
    table = Table(outcomes)
    parts = [
        _completed(plan, outcomes),
        "## Which aggregate?\n\nMean validation accuracy of the honest clients over both methods, five and ten clients "
        "and the seeds of this grid, on digits; no other grid uses these seeds.",
        _choice(plan.grids["choice"], Table(outcomes, "validation")),
        "## Six attacks\n\nTest accuracy of the honest clients, mean over seeds; two of ten clients attack.",
        *_attacks(plan.grids["attacks"], table),
        "![Test accuracy of the honest clients under six attacks, one colour per aggregate](figures/attacks.png)",
        "## The worst case of the recommended aggregate\n\nPoints that the honest clients gain or lose against the "
        "same federation in which the attackers are absent, mean over seeds. For each attack: the worst strength, 1 "
        "to 1e6. `hips` sends what honest clients sent, so nothing bounds it.",
        _bound(plan.grids["bound"], table),
        _cost(plan.grids["cost"], plan.grids["bound"], table),
    ]
    return "\n\n".join(part for part in parts if part)


def attacks_summary(plan: AttackPlan, outcomes: Sequence[Outcome]) -> str:
    """The worst values of each method, over datasets, numbers of clients, attacks and strengths."""
    table, bound, attacks, cost = Table(outcomes), plan.grids["bound"], plan.grids["attacks"], plan.grids["cost"]
    (recommended,) = _values(bound, "defence")
    methods = _values(bound, "method")

    def gains(grid: Grid, defence: str, other: Callable[[Cell], Cell]) -> dict[str, list[tuple[str, float | None]]]:
        """method -> the attacks of a grid, each with its gain against another cell."""
        return {
            method: [
                (cell.attack.split(":")[0], table.gain(cell, other(cell), grid))
                for cell in _where(grid, method=method, defence=defence)
            ]
            for method in methods
        }

    def row(words: str, found: Mapping[str, list[tuple[str, float | None]]], *left_out: str) -> list[str]:
        each = [_present(gain for attack, gain in found[method] if attack not in left_out) for method in methods]
        return [words, *(f"{100 * min(values):+.1f}" if values else NO_VALUE for values in each)]

    def absent(cell: Cell) -> Cell:
        return replace(cell, attack=ABSENT)

    attacked, paper = gains(bound, recommended, absent), gains(attacks, "mean", absent)
    alone = gains(cost, recommended, lambda cell: replace(cell, defence="mean"))
    inside = {method: [pair for pair in pairs if pair[0] == INSIDE_THE_HULL] for method, pairs in attacked.items()}
    rows = [
        row(f"`{recommended}`, any attack but `{INSIDE_THE_HULL}`", attacked, NONE, ABSENT, INSIDE_THE_HULL),
        row(f"`{recommended}`, `{INSIDE_THE_HULL}`: not bounded", inside),
        row("the paper's mean of logits, six attacks", paper, NONE, ABSENT),
        row(f"`{recommended}`, no attacker, against the mean of logits", alone),
    ]
    return as_markdown(["points, worst case", *(TITLES[method] for method in methods)], rows)


def _completed(plan: AttackPlan, outcomes: Sequence[Outcome]) -> str:
    known = {(each.cell, each.seed) for each in outcomes}
    rows = [
        [
            name,
            str(sum(run in known for run in grid.runs)),
            str(len(grid.runs)),
        ]
        for name, grid in plan.grids.items()
    ]
    return "## Completed runs\n\n" + as_markdown(["grid", "finished", "planned"], rows)


def _choice(grid: Grid, table: Table) -> str:
    """The aggregates, best worst case first."""
    attacks, defences = _values(grid, "attack"), _values(grid, "defence")
    means = {
        defence: {
            attack: mean(found)
            for attack in attacks
            if (found := _present(table.mean(cell, grid) for cell in _where(grid, defence=defence, attack=attack)))
        }
        for defence in defences
    }
    complete = [defence for defence in defences if len(means[defence]) == len(attacks)]
    ordered = sorted(complete, key=lambda defence: -min(means[defence].values()))
    rows = [[f"`{defence}`", *(f"{means[defence][attack]:.3f}" for attack in attacks)] for defence in ordered]
    return as_markdown(["aggregate", *(f"`{attack}`" for attack in attacks)], rows)


def _attacks(grid: Grid, table: Table) -> list[str]:
    parts = []
    for dataset, method in _panels(grid):
        cells = _where(grid, dataset=dataset, method=method)
        defences, attacks = _values(grid, "defence"), _values(grid, "attack")
        by = {(cell.attack, cell.defence): table.mean(cell, grid) for cell in cells}
        rows = [[f"`{attack}`", *(_shown(by[attack, defence]) for defence in defences)] for attack in attacks]
        if not any(value is not None for value in by.values()):
            continue
        parts.append(f"### {_title(dataset, method)}\n\n" + as_markdown(["attack", *defences], rows))
    return parts


def _bound(grid: Grid, table: Table) -> str:
    attacks = list(dict.fromkeys(attack.split(":")[0] for attack in _values(grid, "attack")))
    columns = list(dict.fromkeys((cell.dataset, cell.clients, cell.method) for cell in grid.cells))
    rows = []
    for attack in [each for each in attacks if each not in (NONE, ABSENT)]:
        row = [f"`{attack}`"]
        for dataset, clients, method in columns:
            cells = [
                cell
                for cell in _where(grid, dataset=dataset, clients=clients, method=method)
                if cell.attack.split(":")[0] == attack
            ]
            gains = {cell: table.gain(cell, replace(cell, attack=ABSENT), grid) for cell in cells}
            worst = (
                min((gain, cell.attack) for cell, gain in gains.items() if gain is not None) if _any(gains) else None
            )
            row.append(NO_VALUE if worst is None else f"{100 * worst[0]:+.1f}{_at(worst[1])}")
        rows.append(row)
    heads = [f"{_title(dataset, method)}, {clients} clients" for dataset, clients, method in columns]
    return as_markdown(["attack", *heads], rows)


def _cost(grid: Grid, bound: Grid, table: Table) -> str:
    """What the recommended aggregate costs without an attacker."""
    (recommended,) = _values(bound, "defence")
    rows = []
    for dataset, method in _panels(grid):
        for cell in _where(grid, dataset=dataset, method=method, attack=NONE, defence=recommended):
            gain = table.gain(cell, replace(cell, defence="mean"), grid)
            if gain is not None:
                rows.append([_title(dataset, method), str(cell.clients), f"{100 * gain:+.1f}"])
    if not rows:
        return ""
    words = (
        f"## What `{recommended}` costs without an attacker\n\nPoints against the mean of logits, mean over seeds.\n\n"
    )
    return words + as_markdown(["study", "clients", "points"], rows)


def _draw(grid: Grid, table: Table, path: Path) -> None:
    defences = _values(grid, "defence")
    attacks = [attack for attack in _values(grid, "attack") if attack not in (NONE, ABSENT)]
    attacked = {(c.dataset, c.method) for c in grid.cells if c.attack in attacks and table.mean(c, grid) is not None}
    panels = [panel for panel in _panels(grid) if panel in attacked]
    if not panels:
        return
    figure, axes = blank(2.9 * len(panels), 3.6, len(panels))
    for each, (dataset, method) in zip(axes, panels, strict=True):
        for place, defence in enumerate(defences):
            points = [
                (table.mean(cell, grid), attacks.index(cell.attack))
                for cell in _where(grid, dataset=dataset, method=method, defence=defence)
                if cell.attack in attacks
            ]
            shown = [(x, y) for x, y in points if x is not None]
            each.plot(
                [x for x, _ in shown],
                [y + 0.13 * (place - len(defences) / 2) for _, y in shown],
                linestyle="",
                marker=MARKERS[place],
                markersize=5,
                color=COLOURS[place],
                label=defence,
            )
        absent = _present(
            table.mean(cell, grid) for cell in _where(grid, dataset=dataset, method=method, attack=ABSENT)
        )
        if absent:
            each.axvline(max(absent), color=SOFT, linestyle="--", linewidth=0.8)
            each.annotate(
                "attackers absent",
                (max(absent), -0.75),
                (-3, 0),
                textcoords="offset points",
                size=7,
                color=SOFT,
                ha="right",
            )
        each.set_yticks(range(len(attacks)), attacks if each is axes[0] else [""] * len(attacks))
        each.set_xlim(0, 1)
        each.set_ylim(len(attacks) - 0.4, -1)
        label(each, _title(dataset, method), "test accuracy of honest clients")
    legend_below(figure, axes[0])
    figure.suptitle("Two of ten clients attack", fontsize=10, color=INK, x=0.01, ha="left")
    save(figure, path)


def _panels(grid: Grid) -> list[tuple[str, str]]:
    return list(dict.fromkeys((cell.dataset, cell.method) for cell in grid.cells))


def _values(grid: Grid, field: str) -> list[str]:
    return list(dict.fromkeys(getattr(cell, field) for cell in grid.cells))


def _where(grid: Grid, **values: object) -> list[Cell]:
    return [cell for cell in grid.cells if all(getattr(cell, name) == value for name, value in values.items())]


def _present(found: Iterable[float | None]) -> list[float]:
    return [each for each in found if each is not None]


def _any(gains: Mapping[Cell, float | None]) -> bool:
    return any(gain is not None for gain in gains.values())


def _shown(value: float | None) -> str:
    return NO_VALUE if value is None else f"{value:.3f}"


def _at(attack: str) -> str:
    _, _, strength = attack.partition(":")
    return f" (at {strength})" if strength else ""


def _title(dataset: str, method: str) -> str:
    return f"{TITLES[dataset]}, {TITLES[method]}"
