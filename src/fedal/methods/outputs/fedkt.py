"""FedKT (Li, He, Song, IJCAI 2021; arXiv 2010.01017): one exchange in a run, of hard votes on the whole public set.

Each client cuts its data into s partitions of T parts and trains a teacher on each part; per partition a student learns
the majority of its T teachers on public data. Students vote once; the server counts them, and every client trains a
fresh model on the labels that won.
From the authors' code, translated: their students travel as models, and the last one is trained at the server. One
learner takes all roles in turn, so a black box can take part. No noise is offered (docs/methods/fedkt.md says why).
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from fedal.aggregate import majority
from fedal.data.streams import PrivateData
from fedal.errors import NotApplicableError, WireError
from fedal.lazy import Tensor, torch
from fedal.learners.base import end_stage
from fedal.losses import d_cross_entropy
from fedal.messages import Message, PublicLabels, Votes
from fedal.methods.client import ClientLogic, ClientRound, ClientSetup
from fedal.methods.method import Method
from fedal.methods.options import LocalStagesOptions
from fedal.methods.server import ServerLogic, ServerRound, ServerSetup

MOST_CLASSES = 256  # a vote is one byte


class FedKTOptions(LocalStagesOptions):
    local_stages: int = Field(2, ge=1, le=2, description="2: as many steps per round as methods with a public stage")
    partitions: int = Field(1, ge=1, le=100, description="s: students, each from a partition of the data of its own")
    teachers: int = Field(1, ge=1, le=1000, description="T: teachers of a partition; 1: they vote themselves")
    teacher_iterations: int = Field(75, ge=1, description="iterations for all teachers of a client, one after another")
    student_iterations: int = Field(
        25, ge=1, description="iterations for all students of a client; none for teachers = 1"
    )
    consistent: bool = Field(True, description="count a client only where all its students agree; false: every vote")

    def role(self, t: int) -> tuple[str, int, int]:
        """Whose turn round t is, `teacher`, `student` or `final`: its number, and its own round."""
        of_teacher = -(-self.teacher_iterations // (self.tau * self.partitions * self.teachers))
        of_student = -(-self.student_iterations // (self.tau * self.partitions)) if self.teachers > 1 else 0
        later = t - self.partitions * self.teachers * of_teacher
        if later < 0:
            return ("teacher", *divmod(t, of_teacher))
        if later < self.partitions * of_student:
            return ("student", *divmod(later, of_student))
        return ("final", 0, later - self.partitions * of_student)


class FedKTServer(ServerLogic):
    def __init__(self, setup: ServerSetup) -> None:
        super().__init__(setup)
        self._n_classes = setup.n_classes

    def round(self, t: int, clients: Sequence[str]) -> ServerRound:
        if self.hp.role(t) != ("final", 0, 0):
            return None
        up = yield None
        votes = torch.stack([up[n].labels for n in clients if n in up])  # (N, s, P)
        labels = majority(votes, self._n_classes, consistent=self.hp.consistent).to(torch.uint8)
        return {n: PublicLabels(labels) for n in clients if n in up}

    def expected_batch(self, t: int, i: int) -> str | None:
        return None  # votes are about the whole public set

    def refuse_unfit(self, client_id: str, message: Message, t: int, i: int) -> None:
        assert isinstance(message, Votes) and self.public is not None
        if message.labels.shape[1] != len(self.public):
            raise WireError(
                f"Votes.labels has {message.labels.shape[1]} columns for {len(self.public)} public samples."
            )


class FedKTClient(ClientLogic):
    kept = ("_start", "_is", "_counts", "_votes", "_labels")

    def __init__(self, setup: ClientSetup) -> None:
        super().__init__(setup)
        hp, size = self.hp, len(self.public)
        if len(self.private) < hp.teachers:
            raise NotApplicableError(
                f'fedkt: teachers = {hp.teachers}, but client "{self.client_id}" has {len(self.private)} samples.'
            )
        self._start, self._is = self.learner.state_dict(), "teacher 0"  # what every model sets out from; whose turn
        self._counts = torch.zeros(hp.partitions, size, self.private.n_classes, dtype=torch.int32, device=self.device)
        self._votes = torch.zeros(hp.partitions, size, dtype=torch.uint8, device=self.device)
        self._labels = torch.zeros(0, dtype=torch.uint8, device=self.device)  # (P,) after the vote

    def round(self, t: int) -> ClientRound:
        role, number, r = self.hp.role(t)
        if self._is != f"{role} {number}":  # the model before has learnt all that it will learn
            self._ask()
            self.learner.load_state_dict(self._start)
            self._is = f"{role} {number}"
        if (role, r) == ("final", 0):
            self._labels = (yield Votes(self._votes)).labels
        if role == "student":
            self._learn(r, self._counts[number].argmax(-1))
        elif role == "final" and len(self._labels) == len(self.public):
            self._learn(r, self._labels)
        else:  # also if the client was absent when the votes were counted
            self.local_training(r, stages=self.hp.local_stages, data=self._part(number) if role == "teacher" else None)

    def _ask(self) -> None:
        """Keeps what the current model predicts: a teacher's vote in its partition, a student's in the federation."""
        role, number = self._is.split()
        partition = int(number) // (self.hp.teachers if role == "teacher" else 1)
        self._votes[partition] = torch.cat(
            [self.learner.predict(x).argmax(-1) for x in torch.split(self.public.everything(), 128)]
        ).to(torch.uint8)
        self._counts[partition] += torch.nn.functional.one_hot(self._votes[partition].long(), self.private.n_classes)

    def _part(self, index: int) -> PrivateData:
        partition, part = divmod(index, self.hp.teachers)
        if self.hp.partitions * self.hp.teachers == 1:
            return self.private
        return self.private.parts(self.hp.teachers, f"partition {partition}")[int(part)]

    def _learn(self, t: int, labels: Tensor) -> None:
        """One round of cross-entropy to hard labels of the public samples.  (P,)"""
        for stage in range(self.hp.local_stages * t, self.hp.local_stages * (t + 1)):
            for i in range(self.hp.tau):
                f = self.learner.logits(self.public.batch(stage, i))
                ids = torch.from_numpy(self.public.ids(stage, i)).to(self.device)
                self.step(cross_entropy=d_cross_entropy(f, labels[ids].long()))
            end_stage(self.learner)


METHOD = Method(
    name="fedkt",
    summary="one exchange in a run: clients vote on the public set and train a new model on the labels that win",
    options=FedKTOptions,
    client=FedKTClient,
    server=FedKTServer,
    up=(Votes,),
    down=(PublicLabels,),
    needs=frozenset({"public", "fixed-samples", "every-client"}),  # all roles change in the same rounds
    faithfulness="code",
    per={Votes: "run", PublicLabels: "run"},
    axes={"s": "partitions"},
    local_steps=lambda options: int(options.local_steps),
    transfer_steps=lambda options, t: 0,
    refuse=lambda options, n: f"a vote is one byte; {n} classes need more." if n > MOST_CLASSES else None,
)
