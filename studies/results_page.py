"""The generated part of docs/results/README.md: completed runs, a table and a figure per study, the differences."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedal.durable import write_atomically
from fedal.errors import ConfigError
from fedal.records.differences import Difference, correct, paired_difference
from fedal.records.numbers import DIFFERENCE_HEADS, NONE, count, shown_shortfall, with_spread
from fedal.records.statistics import mean
from fedal.records.tables import as_markdown
from studies.result_files import Result, read_results
from studies.results_plan import Arm, Claim, ResultsPlan, Study
from studies.study_figures import draw_study

BEGIN, END = "<!-- results: written by python -m studies collect -->", "<!-- end of results -->"


@dataclass(frozen=True)
class StudyResults:
    """A study and its finished runs."""

    study: Study
    results: Mapping[str, Mapping[int, Result]]  # arm -> seed -> result

    def accuracies(self, arm: str) -> dict[int, float]:
        return {seed: float(result.final[self.study.measure]) for seed, result in self.results.get(arm, {}).items()}

    @property
    def has_runs(self) -> bool:
        return any(self.results.values())

    @property
    def has_bottlenecks(self) -> bool:
        """Whether bias and gap were recorded, by the instrument `bottlenecks`."""
        return any(f"{self.study.measured_on}_gap" in r.final for runs in self.results.values() for r in runs.values())

    @property
    def best_first(self) -> list[Arm]:
        """Arms by mean accuracy; those without a run come last, in the order of the plan."""
        return sorted(self.study.arms, key=lambda arm: -mean(self.accuracies(arm.name).values() or [-1.0]))


def write_page(plan: ResultsPlan, folder: Path) -> Path:
    """Writes the figures, and the tables between the markers of README.md."""
    for each in _read(plan, folder):
        if each.has_runs:
            draw_study(each.study, each.results, plan.arm_names, folder / "figures" / each.study.name)
    return write_between(folder / "README.md", BEGIN, END, generate(plan, folder))


def write_between(page: Path, begin: str, end: str, text: str) -> Path:
    """Replaces what stands between two lines of a page."""
    old = page.read_text(encoding="utf-8")
    if old.count(begin) != 1 or old.count(end) != 1:
        raise ConfigError(f"{page}: expected the lines {begin} and {end} once each; tables go between them.")
    before, after = old.split(begin)[0], old.split(end)[1]
    write_atomically(page, f"{before}{begin}\n{text}\n{end}{after}".encode())
    return page


def generate(plan: ResultsPlan, folder: Path) -> str:
    """The text between the markers."""
    studies = _read(plan, folder)
    tested = _tested(plan.claims, studies)
    parts = [_completed_runs(studies)]
    for each in studies:
        if each.has_runs:
            parts += [_show_study(each, folder), *tested[each.study.name]]
    parts += [_answer(question.text, question.pairs, studies) for question in plan.questions]
    return "\n\n".join(part for part in parts if part)


def read_study(study: Study, folder: Path) -> StudyResults:
    return StudyResults(study, {arm.name: read_results(folder, study, arm) for arm in study.arms})


def _read(plan: ResultsPlan, folder: Path) -> list[StudyResults]:
    return [read_study(study, folder) for study in plan.studies]


def _completed_runs(studies: Sequence[StudyResults]) -> str:
    rows = []
    for each in studies:
        missing = [
            f"{arm.name} (seed {', '.join(str(seed) for seed in absent)})"
            for arm in each.study.arms
            if (absent := [seed for seed in each.study.seeds if seed not in each.results[arm.name]])
        ]
        planned = len(each.study.arms) * len(each.study.seeds)
        done = sum(len(results) for results in each.results.values())
        words = ", ".join(missing) if each.has_runs else "all"
        rows.append([each.study.title, f"{done} of {planned}", words or "none"])
    return "## Completed runs\n\n" + as_markdown(["study", "runs", "missing"], rows)


def _show_study(found: StudyResults, folder: Path) -> str:
    study = found.study
    n_clients = len(study.config(study.arms[0], study.seeds[0]).client_names)
    heads = ["arm", "seeds", f"{study.measured_on} accuracy", "worst client", "steps", "ensemble"]
    heads += ["bias", "gap"] if found.has_bottlenecks else []
    heads += [f"discriminator accuracy (chance {1 / n_clients:.3g})", "adversarial gradient norm"]
    heads += ["fresh discriminator", "disagreement", "options of `fedal run --config`"]
    rows = [_show_arm(found, arm) for arm in found.best_first]
    setting = f"[configs/{study.config_file.name}]({os.path.relpath(study.config_file, folder).replace(os.sep, '/')})"
    return f"## {study.title}\n\n{setting}\n\n{as_markdown(heads, rows)}\n\n![{study.title}](figures/{study.name}.png)"


def _show_arm(found: StudyResults, arm: Arm) -> list[str]:
    study, results = found.study, list(found.results[arm.name].values())
    words, data = f"`{' '.join(arm.words)}`", study.measured_on
    bottlenecks = [f"{data}_bias", f"{data}_gap"] if found.has_bottlenecks else []
    if not results:
        return [arm.name, "0", "not run yet", *[NONE] * (7 + len(bottlenecks)), words]
    config = study.config(arm, study.seeds[0])
    return [
        arm.name,
        str(len(results)),
        with_spread(list(found.accuracies(arm.name).values())),
        f"{mean(float(result.final[f'{study.measure}_min']) for result in results):.3f}",
        count(config.method_object().steps(config.options, config.total_rounds)),
        _mean_of([result.ensemble(data) for result in results], 4),
        *(_at_the_end(results, key) for key in bottlenecks),
        _along(results, "discriminator_accuracy", lambda value: f"{value:.3f}"),
        _along(results, "adversarial_grad_norm", lambda value: f"{value:.4f}"),
        _mean_of([result.fresh for result in results], 3),
        _at_the_end(results, "disagreement"),
        words,
    ]


def _along(results: Sequence[Result], key: str, show: Callable[[float], str]) -> str:
    """Mean and largest value along the runs; a dash for a method without the key."""
    curves = [result.curve[key] for result in results if key in result.curve]
    if not curves:
        return NONE
    return f"{show(mean(mean(curve) for curve in curves))} (up to {show(max(max(curve) for curve in curves))})"


def _at_the_end(results: Sequence[Result], key: str) -> str:
    return _mean_of([result.final.get(key) for result in results], 3)


def _mean_of(values: Sequence[float | None], digits: int) -> str:
    """The mean of the values that are known; a dash if none is."""
    known = [value for value in values if value is not None]
    return f"{mean(known):.{digits}f}" if known else NONE


def _answer(text: str, pairs: Iterable[tuple[str, str]], studies: Sequence[StudyResults]) -> str:
    """The table of one question: the differences in all studies that have both arms of a pair.

    The p values are corrected over this table.
    """
    found = {
        (f"{first} − {second}", each.study.name): difference
        for first, second in pairs
        for each in studies
        if (difference := paired_difference(each.accuracies(first), each.accuracies(second))) is not None
    }
    if not found:
        return ""
    shown = correct(found)
    heads = ["difference", "study", "seeds", f"{studies[0].study.measured_on} accuracy", *DIFFERENCE_HEADS, "verdict"]
    table = as_markdown(heads, [[*names, *_show_difference(each)] for names, each in shown.items()])
    lack = shown_shortfall({f"{pair} in {study}": each for (pair, study), each in shown.items()})
    return "\n\n".join(part for part in (f"## {text}", table, lack) if part)


def _tested(claims: Iterable[Claim], studies: Sequence[StudyResults]) -> dict[str, list[str]]:
    """Study -> one sentence for each claim of the paper that it tests. The p values are corrected over all studies."""
    sentences: dict[str, list[str]] = {each.study.name: [] for each in studies}
    for claim in claims:
        first, second = claim.pair
        found = {
            each.study.name: difference
            for each in studies
            if (difference := paired_difference(each.accuracies(first), each.accuracies(second))) is not None
        }
        for name, difference in correct(found).items():
            sentences[name].append(f"The paper's claim that {claim.text} is {_outcome(difference)}.")
    return sentences


def _outcome(found: Difference) -> str:
    if found.corrected is None:
        return f"not tested here yet: one seed has no spread ({found.mean:+.4f})"
    words = {"higher": "confirmed here", "lower": "contradicted here"}
    verdict = words.get(found.verdict, "neither confirmed nor contradicted here: the two are not distinguishable")
    return f"{verdict} ({found.mean:+.4f}, p (Holm) {found.corrected:.3f} over all studies of this page)"


def _show_difference(found: Difference) -> list[str]:
    numbers = [str(found.seeds), f"{found.mean:+.4f}"]
    if found.low is None or found.high is None or found.p_value is None or found.corrected is None:
        return [*numbers, NONE, NONE, NONE, found.verdict]
    interval = f"{found.low:+.4f} to {found.high:+.4f}"
    return [*numbers, interval, f"{found.p_value:.3f}", f"{found.corrected:.3f}", found.verdict]
