"""Parameter averaging among clients with the same architecture: the step that FedAvg, FedDF and FedDF-AL share.

At the start, all members of a group take the weights of its first member, since averaging different random
initialisations would destroy them. A client alone in its group gets its own weights back, bit for bit, and keeps its
optimizer. Members of larger groups reset theirs, because the moments of a replaced model are meaningless.
If each round has a cohort, its members fetch the last average before they train (McMahan et al. 2017, Algorithm 1):
one that sat out holds weights from before the averages that it missed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, cast

from pydantic import Field

from fedal.aggregate import WeightRule, average_weights
from fedal.lazy import Tensor
from fedal.learners.base import State, WeightLearner, copied
from fedal.messages import MAX_SAMPLES, Message, Weights
from fedal.methods.client import ClientLogic, ClientRound, ClientSetup
from fedal.methods.consensus import TRIM
from fedal.methods.options import MethodOptions
from fedal.methods.server import Replies, ServerLogic, ServerRound, ServerSetup, Uploads

Weighting = Literal["samples", "uniform"]


class GroupOptions(MethodOptions):
    weighting: Weighting = Field("samples", description="weight of a member: its private samples, or equal for all")
    aggregate: WeightRule = Field(
        "mean", description="how weights (and outputs, if sent) are combined; median, trimmed: members count equally"
    )
    trim: float = TRIM


class GroupClient(ClientLogic):
    """A client that shares its weights at the start of the run and at the end of every round."""

    learner: WeightLearner

    def __init__(self, setup: ClientSetup) -> None:
        super().__init__(setup)
        self._fetches = setup.partial

    def group_step(self) -> ClientRound:
        """Sends the weights and loads those that come back."""
        down = yield Weights(self.learner.weights(), len(self.private))
        self.learner.load_weights(down.values)
        if down.members > 1:
            self.learner.reset_optimizer()

    def common_start(self, t: int) -> ClientRound:
        """The exchange in round 0 that gives a group common initial weights. Later rounds have none, unless each has
        a cohort, which fetches the last average: its request holds no weights."""
        if t == 0:
            yield from self.group_step()
        elif self._fetches:
            down = yield Weights({}, len(self.private))
            self.learner.load_weights(down.values)
            self.learner.reset_optimizer()


class GroupServer(ServerLogic):
    """A server that averages the weights of each group."""

    def __init__(self, setup: ServerSetup) -> None:
        super().__init__(setup)
        self._architectures = dict(setup.architectures)
        self._partial = setup.partial
        self._average: dict[str, Tensor] = {}  # the last one, if later cohorts fetch it
        model = next(iter(self._architectures.values()), "<none>")
        if setup.partial and setup.make_learner is not None and not model.startswith("<"):
            self.learner = setup.make_learner(model, None)  # the average, evaluated next to clients that lack it

    def state_dict(self) -> State:
        return super().state_dict() | ({"average": copied(self._average, self.device)} if self._partial else {})

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        if self._partial:
            self._keep(copied(state["average"], self.device))

    def expected_batch(self, t: int, i: int) -> str | None:
        """As in the base class; the exchange of `common_start` comes before those about public batches."""
        if t == 0 or self._partial:
            i -= 1
        return super().expected_batch(t, i) if i >= 0 else None

    def groups(self, clients: Sequence[str], up: Uploads) -> list[list[str]]:
        """The present clients by architecture, in roster order."""
        found: dict[Any, list[str]] = {}
        for n in clients:
            if n in up:
                shapes = tuple((name, tuple(value.shape)) for name, value in up[n].values.items())
                found.setdefault((self._architectures.get(n), shapes), []).append(n)
        return list(found.values())

    def common_start(self, t: int, clients: Sequence[str]) -> ServerRound:
        """The exchange in round 0 that gives all members of a group the first one's weights. Later rounds have none,
        unless each has a cohort, which fetches the last average."""
        if t > 0 and not self._partial:
            return None
        up = yield None
        if t > 0:
            return {n: Weights(self._average, up[n].samples, len(up)) for n in up}
        return {
            n: Weights(up[group[0]].values, up[n].samples, len(group))
            for group in self.groups(clients, up)
            for n in group
        }

    def average_of_each(self, clients: Sequence[str], up: Uploads) -> Replies:
        """The average of each group, as the reply to each of its members."""
        replies: dict[str, Message] = {}
        for group in self.groups(clients, up):
            shares = [up[n].samples if self.hp.weighting == "samples" else 1 for n in group]
            average = average_weights([up[n].values for n in group], shares, self.hp.aggregate, self.hp.trim)
            total = min(sum(up[n].samples for n in group), MAX_SAMPLES)
            replies |= {n: Weights(average, total, len(group)) for n in group}
        return replies

    def published(self, replies: Replies) -> Replies:
        """The replies that end a round; if later cohorts fetch the average, it is kept for them."""
        if self._partial:
            self._keep(cast("Weights", next(iter(replies.values()))).values)
        return replies

    def _keep(self, average: dict[str, Tensor]) -> None:
        self._average = average
        if self.learner is not None and average:
            cast("WeightLearner", self.learner).load_weights(average)
