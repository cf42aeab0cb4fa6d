"""Defines every number in the report: its model, its data, its average and its meaning.

Accuracies are top-1 in evaluation mode. A measure is a column of the rows at the end of a round, or derived here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from fedal.records.observed import COLUMNS, NAME
from fedal.records.statistics import Row, round_ends
from fedal.report.collect import Record


@dataclass(frozen=True)
class Measure:
    """One column of the record and its meaning."""

    key: str
    name: str
    model: str
    data: str
    average: str
    sentence: str
    unit: Literal["share", "points", "number"] = "share"  # a fraction, a difference of fractions, any number
    higher_is_better: bool = True


TESTS = "global test set (during training: a fixed stratified part of it)"
CHECKS = "validation set: training samples of all classes that belong to no client (during training: a fixed part)"
UPLOADS = "the outputs on public batches uploaded in the round"
OWN_TESTS = "each site's own test data, which never leave it"
OVER_ALL = "mean over clients, then over seeds"

ACCURACY = Measure(
    "test_accuracy", "test accuracy", "each client's own", TESTS, OVER_ALL,
    "How often the clients are right on data of all classes, including classes missing from their own data.",
)  # fmt: skip
WORST = Measure(
    "test_accuracy_min", "worst client", "the least accurate client's", TESTS, "lowest client, then mean over seeds",
    "How well the federation serves its least accurate client.",
)  # fmt: skip
HONEST = Measure(
    "honest_test_accuracy", "honest clients", "each honest client's own", TESTS,
    "mean over the clients that are not attackers, then over seeds",
    "How often the honest clients are right in a simulation with attackers.",
)  # fmt: skip
HONEST_WORST = Measure(
    "honest_test_accuracy_min", "worst honest client", "the least accurate honest client's", TESTS,
    "lowest honest client, then mean over seeds",
    "How well the least accurate client fares that is not an attacker.",
)  # fmt: skip
SPREAD = Measure(
    "test_accuracy_std", "std over clients", "each client's own", TESTS,
    "standard deviation over clients, then mean over seeds",
    "How unequal the clients are; 0 means that all are equally accurate.", "points",
)  # fmt: skip
SERVER = Measure(
    "server_test_accuracy", "server's model", "the server's", TESTS, "mean over seeds",
    "How often the server's own model is right, if the method trains one.",
)  # fmt: skip
VALIDATION = Measure(
    "validation_accuracy", "validation accuracy", "each client's own", CHECKS, OVER_ALL,
    "What settings are chosen by, so that the test set remains a fair judge. Recorded if `validation` is set.",
)  # fmt: skip
VALIDATION_WORST = Measure(
    "validation_accuracy_min", "worst client in validation", "the least accurate client's", CHECKS,
    "lowest client, then mean over seeds", "The validation accuracy of the client for which it is lowest.",
)  # fmt: skip
OWN_VALIDATION = Measure(
    "own_validation_accuracy", "accuracy on own held-out data", "each client's own",
    "samples of the client that it does not train on", OVER_ALL,
    "How well a client does on data like its own. It sees little of the others' knowledge: most clients lack classes.",
)  # fmt: skip
OWN = Measure(
    "own_test_accuracy", "accuracy on local test data", "each site's own", OWN_TESTS,
    "mean over the sites that share it, then over seeds",
    "How often the models are right on data like their own site's. In a deployment nothing else is known: the server "
    "has no test data.",
)  # fmt: skip
OWN_WORST = Measure(
    "own_test_accuracy_min", "worst site", "the least accurate site's", OWN_TESTS,
    "lowest of the sites that share it, then mean over seeds",
    "How well the federation serves the site whose model is least accurate on its own data.",
)  # fmt: skip
OWN_SPREAD = Measure(
    "own_test_accuracy_std", "std over sites", "each site's own", OWN_TESTS,
    "standard deviation over the sites that share their accuracy, then mean over seeds",
    "How unequal the sites are; their test data also differ.", "points",
)  # fmt: skip
PARTICIPANTS = Measure(
    "participants", "participants", "-", "the recorded round", "mean over seeds",
    "How many clients completed the round; the others keep their weights and return in the next.",
    "number",
)  # fmt: skip
DISAGREEMENT = Measure(
    "disagreement", "disagreement", "each client's own", UPLOADS,
    "mean of KL(p_n || mean probability) in nats over clients and samples, then over seeds",
    "How far apart the clients' outputs are (the paper's zeta); 0 means that all agree, right or wrong.",
    "number",
)  # fmt: skip
DISCRIMINATOR = Measure(
    "discriminator_accuracy", "discriminator accuracy", "the server's discriminator", UPLOADS,
    "mean over outputs, before each of its steps, then over seeds",
    "How often it identifies the client that an output came from. At 1/N it guesses: the clients' outputs are "
    "indistinguishable, or it has not learned yet.",
)  # fmt: skip
ADVERSARIAL = Measure(
    "adversarial_grad_norm", "adversarial gradient", "the server's discriminator", UPLOADS,
    "mean norm per output, then mean over seeds",
    "How strongly the discriminator pulls on the outputs. The distillation gradient per output can reach 1.4; a pull "
    "of a few thousandths has almost no effect.", "number",
)  # fmt: skip
STEP_SIZE = Measure(
    "discriminator_lr", "discriminator step size", "the server's discriminator", UPLOADS,
    "after the round, mean over seeds",
    "The step size that discriminator_rule = balance has reached. It rises while the discriminator guesses.", "number",
)  # fmt: skip
GAIN = Measure(
    "transfer_gain", "gain from the transfer", "each client's own", TESTS,
    "accuracy after the transfer minus accuracy after the local training of the same round, mean over clients and "
    "seeds",
    "What the transfer of others' knowledge adds in a round. Once the curves are flat, local training forgets about "
    "as much.", "points",
)  # fmt: skip
FORGOTTEN_GLOBAL = Measure(
    "local_change", "change from local training", "each client's own", TESTS,
    "accuracy after the local training minus before it, mean over clients and seeds",
    "Below 0, training on its own data makes a client forget the others' classes.", "points",
)  # fmt: skip
FORGOTTEN_OWN = Measure(
    "own_change", "change on private data", "each client's own", "each client's private training data",
    "accuracy after the transfer minus before it, mean over clients and seeds",
    "Below 0, learning from others makes a client forget its own data.", "points",
)  # fmt: skip
BIAS = Measure(
    "test_bias", "bias", "each client's own", TESTS,
    "total variation distance between a client's mean probabilities and the class frequencies, mean over clients and "
    "seeds",
    "How much the models prefer some classes, often those of their own data; at 0 they predict each class as often as "
    "it occurs.", "number",
)  # fmt: skip
ENSEMBLE = Measure(
    "test_ensemble_accuracy", "ensemble", "the mean of the evaluated clients' logits", TESTS, "mean over seeds",
    "What the clients know together: how often the mean of their outputs is right.",
)  # fmt: skip
GAP = Measure(
    "test_gap", "gap to the ensemble", "the mean of the evaluated clients' logits and each client's own", TESTS,
    "accuracy of the ensemble minus the mean over clients, then mean over seeds",
    "What the clients know together and have not taken over.", "points",
)  # fmt: skip

CURVES: Sequence[Measure] = (
    ACCURACY, WORST, HONEST, HONEST_WORST, VALIDATION, VALIDATION_WORST, OWN_VALIDATION, OWN, OWN_WORST, SERVER, GAIN,
    FORGOTTEN_GLOBAL, FORGOTTEN_OWN, BIAS, ENSEMBLE, GAP, DISAGREEMENT, DISCRIMINATOR, ADVERSARIAL, STEP_SIZE,
    PARTICIPANTS,
)  # fmt: skip

UPLOADED = Measure(
    "up_bytes", "uploaded", "-", "payload of all messages to the server", "per client, mean over clients and seeds",
    "Bytes that a client sends in the whole run, without protocol overhead.", "number",
)  # fmt: skip
DOWNLOADED = Measure(
    "down_bytes", "downloaded", "-", "payload of all messages to the clients",
    "per client, mean over clients and seeds", "Bytes that a client receives in the whole run.", "number",
)  # fmt: skip
TIME = Measure(
    "seconds", "time", "-", "the whole run, evaluations included", "wall-clock, mean over seeds",
    "How long the simulation took on its machine; runs in parallel slow each other down.",
    "number",
)  # fmt: skip

ALL: Sequence[Measure] = (*CURVES, SPREAD, OWN_SPREAD, UPLOADED, DOWNLOADED, TIME)


MAX_OBSERVED = 50


def observed(records: Iterable[Record]) -> list[Measure]:
    """One measure for each further column, in the order of the record: numbers that a method observed."""
    known = COLUMNS | {measure.key for measure in ALL}
    found = dict.fromkeys(key for record in records for row in round_ends(record.rows) for key in row)
    return [
        Measure(
            key, key, "-", "-", "the server's number, or the mean over the clients that observed it; then over seeds",
            "A number that the method itself observes in each round.", "number",
        )
        for key in found if key not in known and NAME.fullmatch(key)
    ][:MAX_OBSERVED]  # fmt: skip


def derive(record: Record) -> None:
    """Adds the differences between phases to the rows at the end of each round."""
    after_local = {row["iteration"]: row for row in record.rows if row["phase"] == "after_local"}
    for row in round_ends(record.rows):
        if not row["final"] and row.get("up_bytes"):  # without messages there is no transfer
            local = after_local.get(row["iteration"], {})
            _subtract(row, GAIN.key, row, ACCURACY.key, local, ACCURACY.key)
        _subtract(row, FORGOTTEN_GLOBAL.key, row, "global_after_local", row, "global_before_local")
        _subtract(row, FORGOTTEN_OWN.key, row, "own_after_transfer", row, "own_before_transfer")


def _subtract(into: Row, name: str, later: Row, after: str, earlier: Row, before: str) -> None:
    if after in later and before in earlier:
        into[name] = later[after] - earlier[before]
