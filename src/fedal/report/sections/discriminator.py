"""Whether FedAL's discriminator has learned, and whether its gradient has an effect."""

from __future__ import annotations

import math

from fedal.records.numbers import share, short
from fedal.report.groups import Group, Overview
from fedal.report.markup import Markup, definitions, element
from fedal.report.measures import ADVERSARIAL, DISCRIMINATOR

CHANCE = "discriminator_chance"  # recorded where it is not 1 / N: with absent clients, or groups of clients


def section(overview: Overview) -> Markup:
    found = [group for group in overview.groups if group.finals(DISCRIMINATOR.key)]
    if not found:
        return element("p", "No finished run here has a discriminator.")
    return definitions((overview.named(group), _pull(group)) for group in found)


def _pull(group: Group) -> str:
    accuracy, norm = group.mean(DISCRIMINATOR.key), group.mean(ADVERSARIAL.key)
    chance = group.mean(CHANCE) if group.finals(CHANCE) else 1 / group.client_count if group.client_count else math.nan
    words = f"Discriminator accuracy {share(accuracy, 3)} (chance {chance:.3f}), adversarial gradient {short(norm)}. "
    if accuracy < 1.5 * chance and norm < 0.02:
        words += (
            "It guesses and hardly pulls: this result owes little to the adversarial term. A higher discriminator_lr "
            "makes it learn faster."
        )
    elif accuracy < 1.5 * chance:
        words += "It guesses, but it pulls: the clients' outputs have become hard to tell apart."
    else:
        words += "It tells the clients apart, so the adversarial term carries information."
    found = {record.seed: record.analysis.get("equilibrium") for record in group.records}
    verdicts = {seed: part["verdict"] for seed, part in found.items() if isinstance(part, dict) and "verdict" in part}
    return words + "".join(f" Seed {seed}, by fedal analyse: {verdict}." for seed, verdict in verdicts.items())
