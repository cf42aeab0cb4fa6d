"""The server's answers to callers: admission, the welcome message and the status."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fedal.deploy import fedal_pb2 as pb
from fedal.deploy.channel import PROTOCOL_MINOR
from fedal.deploy.journal import Journal
from fedal.deploy.plan import ServerPlan
from fedal.deploy.refusals import Code, Refused
from fedal.deploy.seats import Seat
from fedal.deploy.strikes import Strikes
from fedal.wire import Wire


@dataclass
class Callbacks:
    """Called by the gRPC server, from the network thread."""

    plan: ServerPlan
    feature_width: int
    seats: Mapping[str, Seat]
    wire: Wire
    journal: Journal
    strikes: Strikes
    log: Callable[..., None]
    state: str = "starting"  # for the operator

    def admit(self, hello: pb.Hello) -> None:
        """Raises Refused if the site cannot continue this run."""
        if self.strikes.is_quarantined(hello.site):
            raise quarantine(self.strikes, hello.site)
        committed = self.journal.committed
        if hello.run and hello.run != self.journal.run and not hello.restart:
            raise Refused(Code.OTHER_RUN, "this site holds the state of another run. Choose another --state folder.")
        held = committed == 0 or committed in hello.rounds_held or hello.restart or self.strikes.is_behind(hello.site)
        if not held and self.plan.deployment.policy == "wait":
            raise Refused(
                Code.STATE_LOST,
                f"this site has no state for round {committed}. Restore its --state folder, or start from scratch "
                "with --restart-from-scratch.",
            )
        if not hello.rounds_held and committed > 0 and not hello.restart:
            raise Refused(
                Code.STATE_LOST, "this site has lost its state. To start from scratch: --restart-from-scratch."
            )

    def strike(self, site: str, refused: Refused) -> None:
        """Counts a refused message of an admitted site. The operator decides about revoked ones."""
        if refused.code != Code.REVOKED:
            self.strikes.refused(site, str(refused))

    def welcome(self, site: str) -> pb.Welcome:
        return pb.Welcome(
            protocol_minor=PROTOCOL_MINOR,
            run=self.journal.run,
            settings=json.dumps(self.plan.config.for_sites()),
            dataset=self.plan.task.dataset,
            input_shape=self.plan.task.input_shape,
            n_classes=self.plan.task.n_classes,
            public_samples=len(self.plan.public_x),
            public_sha256=self.plan.public_sha256,
            total_rounds=self.plan.config.total_rounds,
            feature_width=self.feature_width,
            behind=self.strikes.is_behind(site),
        )

    def status(self) -> pb.StatusReply:
        reply = pb.StatusReply(
            federation=self.plan.deployment.federation,
            incarnation=self.journal.incarnation,
            round=self.journal.rounds,
            total_rounds=self.plan.config.total_rounds,
            state=self.state + self._stragglers(),
        )
        for name, seat in self.seats.items():
            up, down = self.wire.up_bytes[name], self.wire.down_bytes[name]
            reply.sites.add(site=name, connected=seat.connected, answer_ms=seat.answer_ms, up_bytes=up,
                            down_bytes=down, refused=seat.refused, strikes=self.strikes.count(name),
                            quarantined=self.strikes.is_quarantined(name))  # fmt: skip
        return reply

    def _stragglers(self) -> str:
        """The stragglers of the current exchange, for the operator."""
        waits = {name: seat.waited_s for name, seat in self.seats.items()}
        late = [f"{waited:.0f} s for {name}" for name, waited in waits.items() if waited >= 1]
        return f", waiting {', '.join(late)}" if late else ""


def quarantine(strikes: Strikes, site: str) -> Refused:
    """The refusal of a site in quarantine."""
    text = f"{site} is in quarantine; its newest strike: {strikes.reason(site)} The operator can run `fedal readmit`."
    return Refused(Code.QUARANTINED, text)
