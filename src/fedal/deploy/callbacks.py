"""The server's answers to callers: admission, the welcome message and the status."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from fedal.deploy import fedal_pb2 as pb
from fedal.deploy.channel import PROTOCOL_MINOR
from fedal.deploy.journal import Journal
from fedal.deploy.plan import ServerPlan
from fedal.deploy.refusal_log import RefusalLog
from fedal.deploy.refusals import Code, Refused
from fedal.deploy.seats import Seat
from fedal.deploy.strikes import Strikes
from fedal.wire import Wire

MOST_OUTSIDERS = 100


@dataclass
class Callbacks:
    """Called by the gRPC server, from the network thread."""

    plan: ServerPlan
    feature_width: int
    seats: Mapping[str, Seat]
    wire: Wire
    journal: Journal
    strikes: Strikes
    refusals: RefusalLog
    log: Callable[..., None]
    state: str = "starting"
    missing: Collection[str] = ()  # the sites that the server waits for

    def admit(self, hello: pb.Hello) -> None:
        """Raises Refused if the site cannot continue this run."""
        if self.strikes.is_quarantined(hello.site):
            raise quarantine(self.strikes, hello.site)
        committed = self.journal.committed
        if hello.run and hello.run != self.journal.run and not hello.restart:
            raise Refused(Code.OTHER_RUN, "this site holds the state of another run. Choose another --state folder.")
        common = set(self.journal.held).intersection(hello.rounds_held)
        held = committed == 0 or common or hello.restart or self.strikes.is_behind(hello.site)
        if not held and self.plan.deployment.policy == "wait":
            raise state_lost(hello.rounds_held, self.journal.held)
        if not hello.rounds_held and committed > 0 and not hello.restart:
            raise state_lost(hello.rounds_held, self.journal.held)

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
            schema_sha256=self.plan.schema_sha256 or "",
            behind=self.strikes.is_behind(site),
        )

    def status(self, site: str | None = None) -> pb.StatusReply:
        """What the operator sees, or what one site sees: its own line, and about the others only how many there are."""
        reply = pb.StatusReply(
            federation=self.plan.deployment.federation,
            incarnation=self.journal.incarnation,
            round=self.journal.rounds,
            total_rounds=self.plan.config.total_rounds,
            state=self.state + self._waits(site),
            connected=sum(seat.connected for seat in self.seats.values()),
            roster=len(self.seats),
        )
        counts = dict(self.refusals.counts)
        for name in self.seats if site is None else [site]:
            seat, up, down = self.seats[name], self.wire.up_bytes[name], self.wire.down_bytes[name]
            reply.sites.add(site=name, connected=seat.connected, answer_ms=seat.answer_ms, up_bytes=up,
                            down_bytes=down, refused=counts.get(name, 0), strikes=self.strikes.count(name),
                            quarantined=self.strikes.is_quarantined(name))  # fmt: skip
        if site is None:
            outsiders = sorted((name for name in counts if name not in self.seats), key=lambda name: -counts[name])
            for name in outsiders[:MOST_OUTSIDERS]:
                reply.outsiders.add(name=name, refused=counts[name])
        return reply

    def _waits(self, site: str | None) -> str:
        """The sites that are missing, and the stragglers of the current exchange. A site is told no other's name."""
        missing = f" for {', '.join(self.missing) if site is None else f'{len(self.missing)} sites'}"
        waits = {name: seat.waited_s for name, seat in self.seats.items() if site in (None, name)}
        late = [f"{waited:.0f} s for {name}" for name, waited in waits.items() if waited >= 1]
        return (missing if self.missing else "") + (f", waiting {', '.join(late)}" if late else "")


def state_lost(held: Collection[int], committed: Collection[int]) -> Refused:
    """The refusal of a site that cannot return to a committed round."""

    def rounds(found: Collection[int]) -> str:
        return f"after round {' and '.join(map(str, sorted(found)[-3:]))}" if found else "of no round"

    text = f"this site can verify its state {rounds(held)}; the federation can return to its state {rounds(committed)}."
    return Refused(
        Code.STATE_LOST, f"{text} Restore its --state folder, or start it from scratch with --restart-from-scratch."
    )


def quarantine(strikes: Strikes, site: str) -> Refused:
    """The refusal of a site in quarantine."""
    text = f"{site} is in quarantine; its newest strike: {strikes.reason(site)} The operator can run `fedal readmit`."
    return Refused(Code.QUARANTINED, text)
