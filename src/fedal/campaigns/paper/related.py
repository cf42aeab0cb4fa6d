"""The paper's two tables of related work, with what the declarations of our methods say next to what is printed.

Labels tab:related-work and tab:related-work-lf of its LaTeX source. Nothing is run. A row whose cells differ states
why; a test fails if a difference has no reason, or a reason no difference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fedal import methods
from fedal.methods.method import Method

YES, NO, NONE = "yes", "no", "N/A"


@dataclass(frozen=True)
class RelatedWork:
    """One method of a table: the printed cells by column, and why ours differ, if they do."""

    method: str  # its name here
    printed: str  # its name in the paper
    cells: Mapping[str, str]
    why: str = ""

    def declared(self) -> Method:
        return methods.get(self.method)

    def computed(self) -> dict[str, str]:
        """The cells that follow from the declaration."""
        ours = {name: of(self.declared()) for name, of in COMPUTED.items()}
        return {name: value for name, value in ours.items() if name in self.cells}

    def differences(self) -> list[str]:
        return [name for name, value in self.computed().items() if value != self.cells[name]]


@dataclass(frozen=True)
class RelatedTable:
    """A table of related work."""

    name: str
    label: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[RelatedWork, ...]
    notes: tuple[str, ...] = field(default=())

    def heads(self) -> list[str]:
        return ["paper's name", "method", *self.columns, "faithfulness", "why they differ"]

    def lines(self) -> list[list[str]]:
        """Cells as text: `yes`, or `no (paper: yes)` where ours differs; quoted where nothing is computed."""
        found = []
        for row in self.rows:
            ours = row.computed()
            cells = [
                row.cells[name]
                if ours.get(name, row.cells[name]) == row.cells[name]
                else f"{ours[name]} (paper: {row.cells[name]})"
                for name in self.columns
            ]
            found.append([row.printed, row.method, *cells, row.declared().faithfulness, row.why])
        return found


HETEROGENEOUS, BLACK_BOX, BOUND, CONVERGENCE = "heterogeneous", "black-box", "bound*", "convergence*"
LOSS, PUBLIC, REFERENCE = "loss*", "public data", "reference model*"

COMPUTED: dict[str, Callable[[Method], str]] = {
    HETEROGENEOUS: lambda method: (
        NO
        if "same-architecture" in method.needs
        else "of equal feature width"
        if "same-features" in method.needs
        else YES
    ),
    BLACK_BOX: lambda method: YES if method.black_box else NO,
    PUBLIC: lambda method: YES if "public" in method.needs else NO,
}


def _kd(method: str, printed: str, marks: str, why: str = "") -> RelatedWork:
    """A row of Table I; `marks` has its four cells: y, n or - (not applicable)."""
    words = {"y": YES, "n": NO, "-": NONE}
    columns = (HETEROGENEOUS, BLACK_BOX, BOUND, CONVERGENCE)
    return RelatedWork(method, printed, dict(zip(columns, (words[mark] for mark in marks), strict=True)), why)


WIDTH = "the paper's last column says so: only models of one feature width are comparable"
RELATED = RelatedTable(
    "table-related",
    "tab:related-work",
    "Table I: related federated distillation",
    (HETEROGENEOUS, BLACK_BOX, BOUND, CONVERGENCE),
    (
        _kd("fedmd", "FedMD", "yynn"),
        _kd("cfd", "CFD", "yynn"),
        _kd("mhat", "MHAT", "yynn"),
        _kd("fccl", "FCCL", "yynn"),
        _kd("fccl+", "FCCL+", "yynn"),
        _kd("fd", "FD", "yynn"),
        _kd("hfd", "HFD", "yynn"),
        _kd("fedproto", "FedProto", "yyny", WIDTH),
        _kd(
            "fedgkt",
            "FedGKT",
            "yynn",
            "its head at the server takes features of one width; black-box here, but it sends features and labels",
        ),
        _kd("perfed-ckt", "PerFed-CKT", "yyyy"),
        _kd("fedzkt", "FedZKT", "ynnn"),
        _kd("fedavg", "FedAvg", "nnny"),
        _kd("feddf", "FedDF", "ynyn"),
        _kd("fedgen", "FedGen", "nnyn"),
        _kd("feddistill+", "FedDistill+", "ynnn", "only its class means take different models, not its weights"),
        _kd("fedftg", "FedFTG", "nnnn"),
        _kd("fedgkd", "FedGKD", "nnny"),
        _kd(
            "fedcvae",
            "FedCVAE",
            "--nn",
            "the paper leaves both open: clients train no classifier. They upload decoders and get one model",
        ),
        _kd("fedal", "FedAL", "yyyy"),
    ),
    ("* as printed: theory is not computed from declarations",),
)


def _lf(method: str, printed: str, marks: str, loss: str, reference: str, why: str = "") -> RelatedWork:
    """A row of Table II; `marks`: whether it is black-box and whether it uses public data, y or n."""
    black_box, public = (YES if mark == "y" else NO for mark in marks)
    return RelatedWork(method, printed, {BLACK_BOX: black_box, LOSS: loss, PUBLIC: public, REFERENCE: reference}, why)


OUTPUTS, BOTH = "KD between local and global model output", "local and global models"
FORGETTING = RelatedTable(
    "table-forgetting",
    "tab:related-work-lf",
    "Table II: less-forgetting regularisation",
    (BLACK_BOX, LOSS, PUBLIC, REFERENCE),
    (
        _lf("fedlsd", "FedLSD", "nn", OUTPUTS, "global model"),
        _lf("fedntd", "FedLSD (v2: FedNTD)", "nn", OUTPUTS, "global model"),
        _lf("fedrad", "FedRAD", "nn", "relational KD between local and global model outputs", BOTH),
        _lf(
            "fedssd",
            "FedSSD",
            "ny",
            "MSE of class-weighted local and global model outputs",
            "global model",
            "its public data is labelled; here no labels are public, and clients count on private batches",
        ),
        _lf("fedreg", "FedReg", "nn", "MSE between local and global model outputs", "global model"),
        _lf("dfrd", "DFRD", "nn", OUTPUTS, "global model"),
        _lf("flashback", "Flashback", "ny", OUTPUTS, BOTH),
        _lf("kim-2024", "Kim et al.", "nn", f"{OUTPUTS}, and different local model outputs", BOTH),
        _lf("fedbr", "FedBR", "nn", "KD between different intermediate features", BOTH),
        _lf("pfedsd", "pFedSD", "nn", "KD between personalised and current local model outputs", "personal model"),
        _lf(
            "fedcurv",
            "FedCurv",
            "yn",
            "FIM weighted local model update",
            "local models",
            "it sends weights, the Fisher information u and u * theta, which gives theta away",
        ),
        _lf(
            "fccl",
            "FCCL",
            "yn",
            f"{OUTPUTS}, and between current and optimal local model outputs",
            "optimal and instantaneous local models",
            "its correlation with the others' outputs is on public data",
        ),
        _lf("fccl+", "FCCL+", "yy", f"{OUTPUTS}, and feature similarity", "local models"),
    ),
    (
        "* as printed; what ours computes is on each method's page. FedReg: the authors' code projects gradients of a "
        "soft cross-entropy, there is no MSE. Kim et al.: experts of other clients are left out",
    ),
)

TABLES = {table.name: table for table in (RELATED, FORGETTING)}
