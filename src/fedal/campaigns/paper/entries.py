"""The paper's tables and figures as data, each with its settings and the numbers printed in the paper.

The paper is FedAL, arXiv 2311.16584. Labels are those of its LaTeX source; numbers are (mean, std) as printed.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from fedal.data import describe
from fedal.data.source import BY_ALPHA
from fedal.errors import ConfigError

Kind = Literal["scores", "iterations", "seconds", "bytes", "variances", "outputs", "data"]
"""What the entry shows: final accuracies, accuracy against an axis, gradient variances, outputs or the data split."""

Number = tuple[float, float]  # mean and std as printed in the paper

FIGURE_ONLY = "figure only"

PARTITION_NOTE = (
    "partition dirichlet-client-k (alpha / K per class, class shares kept, the rest unassigned): the paper does not "
    "say which form of the Dirichlet partition it used, see docs/partitions.md"
)
FEDPROTO_NOTE = "the paper's FedProto is its adaptation to unlabelled public data, here fedproto-public"
TAU_NOTE = "the paper does not state tau for CFD, FCCL, FCCL+, FedAvg, FD and FedMD-LF; the config column shows ours"


@dataclass(frozen=True)
class Column:
    """One column of an entry: its name, its settings, and the paper's number for each method."""

    name: str
    settings: Mapping[str, Any]
    paper: Mapping[str, Number | str] = field(default_factory=dict)
    methods: tuple[str, ...] = ()  # empty: those of the entry


@dataclass(frozen=True)
class SmallScale:
    """The small-scale version of an entry, which takes minutes on two cores."""

    settings: Mapping[str, Any]
    seeds: int
    run_s: float  # approximate core time of one run: measured on digits and svhn, extrapolated elsewhere
    public_share: float = 1.0  # of the paper's public set
    client_share: float = 0.25  # of the paper's clients, where the columns vary their number
    words: str = ""  # what else differs


@dataclass(frozen=True)
class PaperEntry:
    """One table or figure of the paper."""

    name: str
    label: str  # in the LaTeX source
    title: str
    kind: Kind
    dataset: str
    methods: tuple[str, ...]
    columns: tuple[Column, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)  # of all columns
    notes: tuple[str, ...] = ()
    small_scale: SmallScale | None = None  # on its own dataset, where the default would show nothing

    def methods_in(self, column: Column) -> tuple[str, ...]:
        return column.methods or self.methods

    def small_on(self, dataset: str) -> SmallScale:
        """Its small-scale version on its own dataset or on a substitute."""
        own = self.small_scale if dataset == self.dataset else None
        return own or SMALL_SCALES[dataset]


WIDE_RESNETS = {"clients": 4, "iterations": 100, "models": ("wrn-10-1", "wrn-16-1"), "eval_samples": 200}
SVHN = SmallScale(
    {**WIDE_RESNETS, "accept_unverified": True}, seeds=1, run_s=110, words="without the widest WideResNet"
)
SVHN_WITH_INTERVALS = replace(SVHN, seeds=3)
SMALL_SCALES = {
    "digits": SmallScale(
        {"clients": 10, "iterations": 300, "min_samples": 2}, seeds=3, run_s=15, public_share=0.3,
        words="8x8 digits and small models",
    ),
    "mnist": SmallScale({"clients": 10, "iterations": 300}, seeds=1, run_s=100),
    "svhn": SVHN,
    "cifar10": SmallScale(WIDE_RESNETS, seeds=1, run_s=110, words="WideResNets instead of ResNets"),
    "cinic10": SmallScale(WIDE_RESNETS, seeds=1, run_s=110, words="WideResNets instead of ResNets"),
    "celeba": SmallScale({"clients": 4, "iterations": 150, "min_samples": 2}, seeds=1, run_s=225),
}  # fmt: skip
# Share of a small-scale run spent on pretraining. FCCL's 1000 iterations are a tenth to a third of the paper's runs but
# longer than a whole small-scale run.
PRETRAIN_SHARE = 0.2
STAND_IN = "digits"  # replaces a dataset that is not installed in small-scale runs; the table says so
FULL_SEEDS = 3  # the paper does not state its number of seeds

BLACK_BOX = ("fedal", "fedmd", "cfd", "fccl", "fccl+")


def _alphas(**paper: tuple[Number, Number, Number]) -> tuple[Column, ...]:
    """Columns for alpha 5, 2 and 1 with 3000, 5000 and 7000 iterations; `paper` has a number for each."""
    return tuple(
        Column(
            f"alpha {alpha:g}",
            {"alpha": alpha, "iterations": iterations},
            {_method(name): numbers[place] for name, numbers in paper.items()},
        )
        for place, (alpha, iterations) in enumerate(BY_ALPHA.items())
    )


def _method(keyword: str) -> str:
    return keyword.replace("fccl_plus", "fccl+").replace("_", "-")


ENTRIES: tuple[PaperEntry, ...] = (
    PaperEntry(
        "fig-output-matrix", "fig:fdal_com", "Mean outputs of every client on test samples of class 3", "outputs",
        "svhn", ("fedmd", "fedal"), _alphas(),
        notes=(PARTITION_NOTE, "the paper does not state the alphas of this figure; here 5, 2 and 1"),
        # After the usual 100 iterations the models have hardly learned: the matrices would be nearly uniform.
        small_scale=SmallScale(
            {"clients": 4, "iterations": 300, "models": "same", "eval_samples": 200, "accept_unverified": True},
            seeds=1, run_s=190, words="the smallest WideResNet for all clients",
        ),
    ),
    PaperEntry(
        "fig-data", "fig:svhn_data", "Data split: clients x classes", "data",
        "svhn", ("partition",), _alphas(),
        notes=(PARTITION_NOTE, "the chart shows ten clients, like the paper's; the numbers cover all clients"),
    ),
    PaperEntry(
        "fig-gradient-variance", "fig:grad", "Variance of the stochastic gradients of each loss", "variances",
        "svhn", ("fedal",),
        # From the text of section Results: all are below 60, those of the new losses (u, rl, rg, n) below 3.
        (Column("alpha 1", {"alpha": 1.0, "iterations": 7000},
                {"l": "< 60", "k": "< 60", "u": "< 3", "rl": "< 3", "rg": "< 3", "n": "< 3"}),),
        settings={"instruments": ("gradients",)},
        notes=(PARTITION_NOTE, "the paper does not state the alpha of this figure; here 1",
               "ours is the largest value recorded during a run, mean over clients; docs/theory.md has the formula"),
    ),
    PaperEntry(
        "fig-mnist", "fig:mnist", "MNIST, accuracy against time", "seconds",
        "mnist", ("fedal", "fedmd", "fedproto-public", "fedavg"), _alphas(),
        settings={"models": "same"},
        notes=(PARTITION_NOTE, FEDPROTO_NOTE, TAU_NOTE, "the paper's times are from ten Raspberry Pis on WiFi, "
               "ours from this machine; the paper does not state the iterations, here those of its other figures"),
    ),
    PaperEntry(
        "fig-svhn", "fig:svhn", "SVHN, accuracy against iterations", "iterations",
        "svhn", BLACK_BOX, _alphas(), notes=(PARTITION_NOTE, TAU_NOTE),
    ),
    PaperEntry(
        "fig-cifar", "fig:cifar", "CIFAR-10, accuracy against iterations", "iterations",
        "cifar10", (*BLACK_BOX, "fedproto-public"), _alphas(), notes=(PARTITION_NOTE, FEDPROTO_NOTE, TAU_NOTE),
    ),
    PaperEntry(
        "fig-svhn-shareable", "fig:svhndf", "SVHN with shared parameters, accuracy against iterations", "iterations",
        "svhn", ("feddf", "feddf-al"), _alphas(), notes=(PARTITION_NOTE,),
    ),
    PaperEntry(
        "fig-communication", "fig:svhncomm", "SVHN, accuracy against uploaded bytes, one architecture", "bytes",
        "svhn", (*BLACK_BOX, "fedproto-public", "fedavg"), _alphas(),
        settings={"models": "same"},
        notes=(PARTITION_NOTE, FEDPROTO_NOTE, TAU_NOTE),
    ),
    PaperEntry(
        "table-celeba", "tab:rst_celeba", "CelebA, 10,000 iterations", "scores",
        "celeba", ("fedproto-public", "fedmd", "cfd", "fccl", "fccl+", "fedal"),
        (
            Column("N 20", {"clients": 20}, {
                "fedproto-public": (0.51, 0.005), "fedmd": (0.51, 0.02), "cfd": (0.49, 0.09),
                "fccl": (0.49, 0.08), "fccl+": (0.53, 0.10), "fedal": (0.56, 0.03)}),
            Column("N 50", {"clients": 50}, {
                "fedproto-public": (0.53, 0.02), "fedmd": (0.64, 0.01), "cfd": (0.53, 0.15),
                "fccl": (0.57, 0.13), "fccl+": (0.54, 0.13), "fedal": (0.69, 0.02)}),
            Column("N 100", {"clients": 100}, {
                "fedproto-public": (0.52, 0.008), "fedmd": (0.66, 0.01), "cfd": (0.55, 0.17),
                "fccl": (0.56, 0.15), "fccl+": (0.54, 0.13), "fedal": (0.70, 0.01)}),
        ),
        settings={"iterations": 10_000, "partition": "by-user"},
        notes=("the clients are the users of LEAF", FEDPROTO_NOTE, TAU_NOTE),
    ),
    PaperEntry(
        "table-cinic", "tab:rst_cinic10", "CINIC-10, 10,000 iterations", "scores",
        "cinic10", ("fedproto-public", "fedmd", "cfd", "fccl", "fccl+", "fedal"),
        _alphas(
            fedproto_public=((0.43, 0.02), (0.34, 0.03), (0.25, 0.02)),
            fedmd=((0.54, 0.02), (0.43, 0.02), (0.31, 0.04)),
            cfd=((0.49, 0.04), (0.38, 0.03), (0.29, 0.01)),
            fccl=((0.37, 0.05), (0.29, 0.04), (0.25, 0.03)),
            fccl_plus=((0.41, 0.05), (0.31, 0.03), (0.27, 0.01)),
            fedal=((0.56, 0.02), (0.45, 0.03), (0.35, 0.05)),
        ),
        settings={"iterations": 10_000},
        notes=(PARTITION_NOTE, FEDPROTO_NOTE, TAU_NOTE),
    ),
    PaperEntry(
        "table-fd-svhn", "tab:rst_fd", "FD on SVHN", "scores",
        "svhn", ("fd", "fedmd", "fedal"),
        _alphas(
            fd=((0.16, 0.01), (0.14, 0.005), (0.12, 0.004)),
            fedmd=((0.76, 0.006), (0.73, 0.0009), (0.71, 0.0008)),
            fedal=((0.78, 0.003), (0.75, 0.0003), (0.75, 0.0009)),
        ),
        notes=(PARTITION_NOTE, TAU_NOTE),
    ),
    PaperEntry(
        "table-fd-cifar", "tab:rst_fd_cifar10", "FD on CIFAR-10", "scores",
        "cifar10", ("fd", "fedproto-public", "fedmd", "fedal"),
        _alphas(
            fd=((0.15, 0.02), (0.17, 0.007), (0.17, 0.02)),
            fedproto_public=((0.38, 0.009), (0.28, 0.01), (0.22, 0.02)),
            fedmd=((0.49, 0.02), (0.40, 0.02), (0.35, 0.01)),
            fedal=((0.51, 0.008), (0.44, 0.01), (0.41, 0.01)),
        ),
        notes=(PARTITION_NOTE, FEDPROTO_NOTE, TAU_NOTE),
    ),
    PaperEntry(
        "table-ablation", "tab:ablation", "Ablation of the loss components, SVHN", "scores",
        "svhn", ("fedmd", "fedmd-lf", "fedal"),
        (Column("alpha 2", {"alpha": 2.0, "iterations": 5000},
                {"fedmd": (0.722, 0.005), "fedmd-lf": (0.732, 0.004), "fedal": (0.744, 0.007)}),
         Column("alpha 2, tau 5", {"alpha": 2.0, "iterations": 5000, "tau": 5}, {"fedmd": "not in the paper"},
                methods=("fedmd",))),
        notes=(PARTITION_NOTE, TAU_NOTE,
               "the paper's FedMD has tau 1; with tau 5 all methods of the ablation have the same tau"),
        small_scale=SVHN_WITH_INTERVALS,
    ),
    PaperEntry(
        "table-public-size", "tab:ablation_pub", "The number of public samples, SVHN", "scores",
        "svhn", ("fedmd", "fedal"),
        tuple(
            Column(f"|P| {size}", {"alpha": 1.0, "iterations": 5000, "public_size": size},
                   {"fedmd": fedmd, "fedal": fedal})
            for size, fedmd, fedal in (
                (200, (0.35, 0.001), (0.43, 0.003)),
                (400, (0.54, 0.007), (0.57, 0.003)),
                (600, (0.60, 0.006), (0.64, 0.006)),
                (800, (0.65, 0.007), (0.72, 0.002)),
                (1000, (0.70, 0.006), (0.75, 0.002)),
            )
        ),
        notes=(PARTITION_NOTE, "alpha 1 as in the table's caption; the paper's text says 2, but its values fit 1"),
        small_scale=SVHN_WITH_INTERVALS,
    ),
)  # fmt: skip


def find(name: str) -> PaperEntry:
    """The entry with this name; raises ConfigError with the nearest name."""
    for entry in ENTRIES:
        if entry.name == name:
            return entry
    known = [*(entry.name for entry in ENTRIES), "table-related", "table-forgetting"]
    near = difflib.get_close_matches(name.lower().replace("_", "-"), known, n=1, cutoff=0.4)
    hint = f"Did you mean {near[0]}? " if near else ""
    raise ConfigError(f'there is no paper entry "{name}". {hint}`fedal paper list` shows all.')


def full_settings(entry: PaperEntry, column: Column) -> dict[str, Any]:
    """The paper's settings for one column."""
    paper = describe(entry.dataset).paper
    return {
        "preset": "paper",
        "dataset": entry.dataset,
        "clients": paper.clients,
        "partition": "dirichlet-client-k",
        "public_size": paper.public_size,
        **column.settings,
        **entry.settings,
    }


def small_settings(entry: PaperEntry, column: Column, dataset: str) -> dict[str, Any]:
    """The settings of the small-scale version, on the entry's own dataset or on a substitute."""
    small_scale, settings = entry.small_on(dataset), full_settings(entry, column)
    small = {**settings, **small_scale.settings, "dataset": dataset, "eval_after_local": False}
    small["public_size"] = round(small_scale.public_share * settings["public_size"])
    if entry.kind == "data":  # costs nothing, so it uses the paper's number of clients
        small["clients"] = settings["clients"]
    elif "clients" in column.settings:
        small["clients"] = round(small_scale.client_share * settings["clients"])
    if "models" in entry.settings:
        small["models"] = entry.settings["models"]
    if not describe(dataset).has_users:
        small["partition"] = "dirichlet-client-k"
    points = 4 if entry.kind == "variances" else 10  # measuring variances takes as long as many iterations
    small["eval_every"] = small["iterations"] // points
    return small
