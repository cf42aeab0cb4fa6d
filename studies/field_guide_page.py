"""The generated part of docs/results/field-guide/README.md: decisions, tables and figures from data/NAME.csv."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedal import methods
from fedal.messages import OUTPUTS_ONLY, Leak, in_words
from fedal.methods.method import Method
from fedal.methods.table import needs_in_words
from fedal.records.numbers import NONE, count, size, with_spread
from fedal.records.statistics import mean
from fedal.records.tables import as_markdown
from studies.field_guide import Cell, Choice, FieldGuide, GuideStudy, Outcome, read_outcomes
from studies.results_page import write_between

BEGIN, END = "<!-- results: written by python -m studies field-guide -->", "<!-- end of results -->"
REFERENCE = "fedmd"  # times are ratios to its time
AS_GOOD = 0.01  # an accuracy this far below the best one counts as equal in the table of decisions


@dataclass(frozen=True)
class Line:
    """The finished runs of one method in one study."""

    name: str
    outcomes: Sequence[Outcome]

    @property
    def method(self) -> Method:
        return methods.get(self.name)

    @property
    def accuracy(self) -> float:
        return mean(each.accuracy for each in self.outcomes)

    @property
    def n_bytes(self) -> float:
        """Sent and received by a client."""
        return mean(each.up_bytes + each.down_bytes for each in self.outcomes)

    def seconds(self, seeds: set[int]) -> float:
        return mean(each.processor_seconds for each in self.outcomes if each.seed in seeds)


@dataclass(frozen=True)
class Situation:
    """A reader of the guide: what the situation is, and which methods it allows."""

    words: str
    allows: Callable[[Method], bool]


SITUATIONS = (
    Situation("models differ, only outputs on public data may leave a site", lambda m: not m.reveals & ~OUTPUTS_ONLY),
    Situation(
        "the same, and only some clients take part in each round",
        lambda m: not m.reveals & ~OUTPUTS_ONLY and "every-client" not in m.needs,
    ),
    Situation(
        "models differ, black-box; which public samples are like private ones may be known",
        lambda m: m.black_box and not m.reveals & ~(OUTPUTS_ONLY | Leak.PRIVATE_DENSITY),
    ),
    Situation("black-box, and there are no public data", lambda m: m.black_box and "public" not in m.needs),
    Situation("one exchange in the whole run", lambda m: {m.per.get(each) for each in (*m.up, *m.down)} == {"run"}),
    Situation(
        "one architecture, weights may be shared, no public data",
        lambda m: "public" not in m.needs and not m.black_box,
    ),
    Situation(
        "weights may be shared, architectures differ",
        lambda m: not m.black_box and "same-architecture" not in m.needs,
    ),
    Situation("one architecture, anything may be shared", lambda m: True),
)


def write_field_guide(guide: FieldGuide) -> Path:
    from studies.field_guide_figure import draw_front

    for study in complete(guide):
        draw_front(study.title, lines_of(guide, study), guide.folder / "figures" / study.name)
    return write_between(guide.folder / "README.md", BEGIN, END, field_guide_page(guide))


def field_guide_page(guide: FieldGuide) -> str:
    """The text between the markers."""
    found = {study: lines_of(guide, study) for study in complete(guide)}
    parts = [_completed(guide), _decisions({study.name: lines for study, lines in found.items()})]
    for study, lines in found.items():
        parts.append(f"## {study.title}\n\n{_spread_words(study)}")
        parts.append(
            f"![Test accuracy against bytes per client, with the front of the methods that none beats in both]"
            f"(figures/{study.name}.png)"
        )
        parts.append(_table(lines))
    parts.append(_requirements())
    parts += [_choice(choice, read_outcomes(guide.folder, name)) for name, choice in guide.choices.items()]
    return "\n\n".join(parts)


def complete(guide: FieldGuide) -> list[GuideStudy]:
    """The studies in which every method has run: a table of some methods would rank who happened to come first."""
    found = []
    for study in guide.studies.values():
        done = {each.cell for each in read_outcomes(guide.folder, study.name)}
        if {Cell(name, "{}", study.seeds[0]) for name in methods.MODULES} <= done:
            found.append(study)
    return found


def lines_of(guide: FieldGuide, study: GuideStudy) -> list[Line]:
    """The methods with a finished run, best first."""
    outcomes = read_outcomes(guide.folder, study.name)
    lines = [Line(name, [each for each in outcomes if each.method == name]) for name in methods.MODULES]
    return sorted((line for line in lines if line.outcomes), key=lambda line: -line.accuracy)


def front(lines: Sequence[Line]) -> list[Line]:
    """The methods that no other beats in accuracy with as few bytes, fewest bytes first."""
    kept: list[Line] = []
    for line in sorted(lines, key=lambda line: (line.n_bytes, -line.accuracy)):
        if not kept or line.accuracy > kept[-1].accuracy:
            kept.append(line)
    return kept


def _completed(guide: FieldGuide) -> str:
    rows = []
    for name in (*guide.studies, *guide.choices):
        done = len(read_outcomes(guide.folder, name))
        rows.append([name, str(done), str(len(guide.missing(name)))])
    words = "## Completed runs\n\nA study has its tables and its figure below once every method has run.\n\n"
    return words + as_markdown(["study", "finished", "missing"], rows)


def _decisions(found: dict[str, list[Line]]) -> str:
    heads = ["situation", "methods"]
    for name in found:
        heads += [f"{name}: most accurate", f"{name}: fewest bytes within a point of it"]
    rows = []
    for situation in SITUATIONS:
        allowed = [
            name for name in methods.MODULES if methods.get(name).exchanges and situation.allows(methods.get(name))
        ]
        row = [situation.words, str(len(allowed))]
        for lines in found.values():
            candidates = [line for line in lines if line.name in allowed]
            row += _advice(candidates) if candidates else [NONE, NONE]
        rows.append(row)
    return "## Which method for whom\n\n" + as_markdown(heads, rows)


def _advice(candidates: Sequence[Line]) -> list[str]:
    best = max(candidates, key=lambda line: line.accuracy)
    near = [line for line in candidates if line.accuracy >= best.accuracy - AS_GOOD]
    small = min(near, key=lambda line: line.n_bytes)
    return [f"{_linked(best.name)}: {best.accuracy:.3f}", f"{_linked(small.name)}: {size(small.n_bytes)}"]


def _spread_words(study: GuideStudy) -> str:
    seeds = ", ".join(map(str, study.seeds))
    words = f"Final models, whole test set. Mean over clients, then mean ± std over the seeds {seeds}."
    if len(study.seeds) == 1:
        words = f"Final models, whole test set. Mean over clients, seed {seeds}; one seed has no spread."
    if study.best:
        more = ", ".join(map(str, study.best_seeds))
        words += (
            f" The {study.best} methods with the highest validation accuracy also have the seeds {more}, and show "
            "mean ± std over all of theirs."
        )
    return words


def _table(lines: Sequence[Line]) -> str:
    reference = next((line for line in lines if line.name == REFERENCE), None)
    rows = []
    for line in lines:
        first = line.outcomes[0]
        time = NONE
        if reference is not None:
            shared = {each.seed for each in line.outcomes} & {each.seed for each in reference.outcomes}
            time = f"{line.seconds(shared) / reference.seconds(shared):.1f}" if shared else NONE
        rows.append(
            [
                _linked(line.name),
                with_spread([each.accuracy for each in line.outcomes]),
                str(len(line.outcomes)),
                f"{mean(each.worst for each in line.outcomes):.3f}",
                size(first.up_bytes),
                size(first.down_bytes),
                count(first.steps),
                time,
                "stack" if first.stacked else "single",
                line.method.evaluates,
            ]
        )
    heads = [
        "method",
        "test accuracy",
        "seeds",
        "worst client",
        "up / client",
        "down / client",
        "steps",
        "time / FedMD",
    ]
    return as_markdown([*heads, "trained as", "evaluated"], rows)


def _requirements() -> str:
    rows = []
    for name in methods.MODULES:
        method = methods.get(name)
        yes = {True: "yes", False: "no"}
        rows.append(
            [
                _linked(name),
                yes[method.black_box],
                in_words(method.reveals),
                yes["public" in method.needs],
                yes["same-architecture" in method.needs],
                yes["server-model" in method.needs],
                needs_in_words(method, without=("public", "same-architecture")),
            ]
        )
    heads = ["method", "black-box", "reveals", "public data", "one architecture", "server model", "also needs"]
    words = (
        "## What each reveals and needs\n\nComputed from the declarations of the methods, as in `fedal methods`.\n\n"
    )
    return words + as_markdown(heads, rows)


def _choice(choice: Choice, outcomes: Sequence[Outcome]) -> str:
    """The options of a choice, best first."""
    found = {
        options: [each for each in outcomes if each.options == options] for options in {o.options for o in outcomes}
    }
    scores = {
        options: [each.validation for each in each_of if each.validation is not None]
        for options, each_of in found.items()
    }
    ordered = sorted(scores, key=lambda options: (-mean(scores[options]), options))
    rows = [
        [
            f"`{options}`",
            with_spread(scores[options]),
            f"{mean(each.processor_seconds for each in found[options]):.1f} s",
        ]
        for options in ordered
    ]
    words = (
        f"## The defaults of {methods.shown(choice.name)}\n\nValidation accuracy, mean ± std over the seeds "
        f"{', '.join(map(str, choice.seeds))}, which no other run uses; test accuracy was not recorded.\n\n"
    )
    return words + as_markdown(["options", "validation accuracy", "processor time"], rows)


def _linked(name: str) -> str:
    """`[fd](../../methods/fd.md) (reconstruction)`: a reconstruction carries that word."""
    return methods.shown(name).replace(name, f"[{name}](../../methods/{name}.md)", 1)
