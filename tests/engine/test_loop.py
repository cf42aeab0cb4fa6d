"""The round loop: clients out of step, absent clients, and failures."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from fedal.engine.threads import ThreadWorkers, thread_workers
from fedal.errors import NonFiniteError, OutOfStepError, RunError, WireError
from fedal.learners.torch_learner import TorchLearner
from fedal.messages import Consensus, Guidance, Outputs
from fedal.methods.client import ClientLogic
from fedal.methods.method import Method
from fedal.methods.options import MethodOptions
from fedal.methods.server import ServerLogic, stack_outputs
from splits import InOrder, build_federation, conv_batch_norm, differing_clients, fingerprint, mlp, run_rounds

NETS = {"anna": mlp, "ben": conv_batch_norm, "cleo": mlp}
TAU = 2


class Options(MethodOptions):
    tau: int = TAU
    public_mode: str = "train"


class Server(ServerLogic):
    """Requests uploads `exchanges` times and replies with the mean."""

    exchanges = TAU

    def round(self, t: int, clients: Sequence[str]) -> Any:
        reply = None
        for _ in range(self.exchanges):
            up = yield reply
            present, f = stack_outputs(clients, up)
            reply = {n: Consensus(f.mean(0), len(present)) for n in present}
        return reply


class Client(ClientLogic):
    """Uploads `exchanges` times (per name if given) and steps towards zero."""

    exchanges = TAU
    resumed_after_end = False

    def round(self, t: int) -> Any:
        for i in range(self.exchanges):
            f = self.learner.logits(self.public.batch(t, min(i, TAU - 1)))
            down = yield Outputs(f)
            self.received(t, i, down)
            self.step(towards_zero=f / len(f))

    def received(self, t: int, i: int, down: Consensus) -> None: ...


def method(client: type[ClientLogic] = Client, server: type[ServerLogic] = Server, **changes: Any) -> Method:
    declaration = {"up": (Outputs,), "down": (Consensus,), "needs": frozenset({"public"}), **changes}
    return Method("test-method", "", Options, client, server, **declaration)


def only(client_id: str, base: type[ClientLogic], **attributes: Any) -> type[ClientLogic]:
    """A client class that behaves differently for one client."""

    class Special(base):  # type: ignore[misc, valid-type]
        def __init__(self, setup: Any) -> None:
            super().__init__(setup)
            if setup.client_id == client_id:
                vars(self).update(attributes)

    return Special


def pending(federation: Any) -> list[str]:
    """The clients whose learner still has a pending pass."""
    return [n for n, logic in federation.clients.items() if logic.learner._pending]


# out of step


def test_a_client_that_ends_early_is_named() -> None:
    federation = build_federation(method(only("ben", Client, exchanges=1)), nets=NETS)
    with pytest.raises(OutOfStepError, match='round 0: client "ben" ended after 1 exchanges; the server expects more'):
        federation.run_round(0)
    assert pending(federation) == []


def test_a_client_that_sends_too_much_is_named() -> None:
    federation = build_federation(method(only("cleo", Client, exchanges=3)), nets=NETS)
    with pytest.raises(OutOfStepError, match='client "cleo" still sends after 2 exchanges; the server is done'):
        federation.run_round(0)
    assert pending(federation) == []


def test_a_server_without_a_reply_for_a_client_is_out_of_step() -> None:
    class Forgetful(Server):
        def round(self, t: int, clients: Sequence[str]) -> Any:
            return super().round(t, [n for n in clients if n != "ben"])

    federation = build_federation(method(server=Forgetful), nets=NETS)
    with pytest.raises(OutOfStepError, match='round 0, exchange 0: the server has no reply for client "ben"'):
        federation.run_round(0)
    assert pending(federation) == []


def test_a_round_without_exchanges_is_fine() -> None:
    federation = build_federation("local", nets=NETS)
    before = fingerprint(federation.clients["anna"].learner.state_dict())
    assert federation.run_round(0) == list(NETS)
    assert fingerprint(federation.clients["anna"].learner.state_dict()) != before
    assert federation.wire.up_bytes.total() == federation.wire.down_bytes.total() == 0


def test_a_round_without_a_yield_is_explained() -> None:
    class Plain(ClientLogic):
        def round(self, t: int) -> Any:
            self.local_training(t)

    with pytest.raises(RunError, match=r'client "anna", round 0: TypeError: Plain.round has no yield'):
        build_federation(method(Plain), nets=NETS).run_round(0)


# the wire


def test_an_undeclared_upload_is_refused_with_its_location() -> None:
    federation = build_federation(method(up=(Consensus,)), nets=NETS)
    with pytest.raises(WireError, match='round 3, exchange 0: Outputs from client "anna": this method declares Cons'):
        federation.run_round(3)
    assert pending(federation) == []


def test_an_undeclared_reply_is_refused_with_its_location() -> None:
    federation = build_federation(method(down=(Guidance,)), nets=NETS)
    with pytest.raises(WireError, match='round 0, exchange 0: Consensus to client "anna": this method declares Guid'):
        federation.run_round(0)
    assert pending(federation) == []


def test_an_answer_for_another_batch_is_refused() -> None:
    class Backwards(Client):
        def round(self, t: int) -> Any:
            for i in reversed(range(TAU)):
                yield Outputs(self.learner.logits(self.public.batch(t, i)))

    with pytest.raises(WireError, match='round 0, exchange 0: client "anna" answered for public batch'):
        build_federation(method(Backwards), nets=NETS).run_round(0)


def test_neither_side_can_change_what_the_other_holds() -> None:
    """A server that overwrites uploads, and clients that overwrite replies, have no effect on the other side."""

    class ScribblingServer(Server):
        def round(self, t: int, clients: Sequence[str]) -> Any:
            inner = super().round(t, clients)
            reply = next(inner)
            while True:
                up = yield reply
                try:
                    reply = inner.send(up)
                except StopIteration as stop:
                    return stop.value
                finally:
                    for message in up.values():
                        message.values.fill_(77.0)

    class ScribblingClient(Client):
        def received(self, t: int, i: int, down: Consensus) -> None:
            assert down.mean.abs().max() < 50
            down.mean.fill_(99.0)

    calm = run_rounds(build_federation(method(), nets=NETS), 2)
    scribbled = run_rounds(build_federation(method(ScribblingClient, ScribblingServer), nets=NETS), 2)
    assert differing_clients(calm, scribbled) == []


# absence


def test_an_absent_client_sits_out_the_round_and_the_mean_excludes_it() -> None:
    counts: list[tuple[int, str, int]] = []

    class Listening(Client):
        def received(self, t: int, i: int, down: Consensus) -> None:
            counts.append((t, self.client_id, down.count))

    federation = build_federation(method(Listening), nets=NETS)
    ben = federation.clients["ben"].learner
    before = fingerprint(ben.weights())
    assert federation.run_round(0, lambda n, exchange: n == "ben") == ["anna", "cleo"]
    assert fingerprint(ben.weights()) == before
    assert {(n, count) for _, n, count in counts} == {("anna", 2), ("cleo", 2)}
    assert federation.wire.up_bytes["ben"] == 0
    assert federation.run_round(1) == ["anna", "ben", "cleo"]
    assert fingerprint(ben.weights()) != before
    assert {(n, count) for t, n, count in counts if t == 1} == {("anna", 3), ("ben", 3), ("cleo", 3)}


def test_a_client_that_drops_out_mid_round_is_closed_and_keeps_its_weights() -> None:
    closed: list[str] = []

    class Closable(Client):
        def round(self, t: int) -> Any:
            try:
                yield from super().round(t)
            except GeneratorExit:
                closed.append(self.client_id)
                raise

    federation = build_federation(method(Closable), nets=NETS)
    seen: list[list[str]] = []
    federation.watch.exchanged = lambda uploads: seen.append(list(uploads))
    present = federation.run_round(0, lambda n, exchange: n == "ben" and exchange == 1)
    assert present == ["anna", "cleo"] and closed == ["ben"] and pending(federation) == []
    assert seen == [["anna", "ben", "cleo"], ["anna", "cleo"]]
    assert federation.run_round(1) == ["anna", "ben", "cleo"]


def test_present_clients_learn_as_if_absent_ones_did_not_exist() -> None:
    with_absent = build_federation("fedmd", nets=NETS, tau=TAU)
    for t in range(2):
        with_absent.run_round(t, lambda n, exchange: n == "cleo")
    without = run_rounds(build_federation("fedmd", nets={"anna": mlp, "ben": conv_batch_norm}, tau=TAU), 2)
    for n in ("anna", "ben"):
        theirs, ours = (fingerprint(f.clients[n].learner.state_dict()) for f in (with_absent, without))
        assert theirs == ours


def test_fedal_continues_with_the_clients_that_are_present() -> None:
    federation = build_federation("fedal", nets=NETS, tau=TAU)
    for t in range(3):
        assert len(federation.run_round(t, lambda n, exchange, t=t: n == list(NETS)[t])) == 2
    assert federation.run_round(3) == list(NETS)


def test_a_single_remaining_client_is_an_error() -> None:
    federation = build_federation("fedmd", nets=NETS, tau=TAU)
    with pytest.raises(RunError, match=r'client "ben", round 0, exchange 1: ValueError: .* at least two clients'):
        federation.run_round(0, lambda n, exchange: n != "ben")


# failure


def test_a_client_exception_names_client_round_and_exchange_and_resumes_no_client() -> None:
    resumed: list[tuple[str, int]] = []

    class Failing(Client):
        def received(self, t: int, i: int, down: Consensus) -> None:
            resumed.append((self.client_id, i))
            if self.client_id == "ben" and i == 1:
                raise ZeroDivisionError("by zero")

    federation = build_federation(method(Failing), nets=NETS)
    with pytest.raises(RunError, match='client "ben", round 4, exchange 2: ZeroDivisionError: by zero') as caught:
        federation.run_round(4)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert pending(federation) == [] and ("ben", 1) in resumed
    resumed.clear()
    with pytest.raises(RunError):
        federation.run_round(5)
    assert [i for _, i in resumed][:3] == [0, 0, 0]  # new coroutines from the start; the old ones are closed


def test_after_an_exception_the_other_clients_finish_their_step_and_are_closed() -> None:
    closed: list[str] = []

    class Failing(Client):
        def round(self, t: int) -> Any:
            if self.client_id == "anna":
                raise MemoryError("no room")
            try:
                time.sleep(0.05)
                yield from super().round(t)
            finally:
                closed.append(self.client_id)

    with thread_workers(2) as workers:
        federation = build_federation(method(Failing), nets=NETS, workers=workers)
        with pytest.raises(RunError, match='client "anna", round 0, exchange 0: MemoryError: no room'):
            federation.run_round(0)
    assert sorted(closed) == ["ben", "cleo"] and pending(federation) == []


def test_a_non_finite_value_keeps_its_error_type() -> None:
    class Diverging(Client):
        def received(self, t: int, i: int, down: Consensus) -> None:
            self.step(boom=torch.full_like(down.mean, torch.inf))

    with pytest.raises(
        NonFiniteError, match='client "anna", round 0, exchange 1: the gradient of boom has non-finite values'
    ):
        build_federation(method(Diverging), nets=NETS).run_round(0)


def test_a_server_exception_names_the_round_and_closes_the_clients() -> None:
    class Failing(Server):
        def round(self, t: int, clients: Sequence[str]) -> Any:
            inner = super().round(t, clients)
            yield next(inner)
            raise IndexError("out of range")

    federation = build_federation(method(server=Failing), nets=NETS)
    with pytest.raises(RunError, match="server, round 2, exchange 0: IndexError: out of range"):
        federation.run_round(2)
    assert pending(federation) == []


def test_the_next_round_runs_after_a_failed_one() -> None:
    failed = build_federation(method(), nets=NETS)
    failed.run_round(0)
    state = {n: logic.learner.state_dict() for n, logic in failed.clients.items()}
    failed.watch.exchanged = lambda uploads: 1 / 0
    with pytest.raises(ZeroDivisionError):
        failed.run_round(1)
    failed.watch.exchanged = lambda uploads: None
    for n, logic in failed.clients.items():
        logic.learner.load_state_dict(state[n])
    failed.run_round(1)
    assert differing_clients(failed, run_rounds(build_federation(method(), nets=NETS), 2)) == []


# workers


def test_workers_return_results_in_order_and_raise_the_first_error_after_all_are_done() -> None:
    done: list[int] = []

    def work(item: int) -> int:
        time.sleep(0.01 * (5 - item))
        if item in (1, 2):
            raise ValueError(f"item {item}")
        done.append(item)
        return item * item

    with thread_workers(4) as workers:
        assert workers.map(lambda item: item * item, range(6)) == [0, 1, 4, 9, 16, 25]
        with pytest.raises(ValueError, match="item 1"):
            workers.map(work, range(5))
        assert sorted(done) == [0, 3, 4]


@pytest.mark.parametrize(
    ("seconds", "here"),
    [([1e-5] * 3, True), ([1e-5, 1e-5, 0.1], False), ([1e-5, 1e-5, 0.0], False), ([0.1], True), ([0.0], False)],
    ids=["short", "one is long", "one is new", "alone", "new and alone"],
)
def test_short_items_run_in_the_thread_that_asks(seconds: list[float], here: bool) -> None:
    with thread_workers(2) as workers:
        threads = workers.map(lambda _: threading.get_ident(), range(len(seconds)), cost=lambda item: seconds[item])
        assert (set(threads) == {threading.get_ident()}) is here


def test_short_items_all_finish_before_the_first_error_is_raised() -> None:
    done: list[int] = []

    def work(item: int) -> None:
        if item < 2:
            raise ValueError(f"item {item}")
        done.append(item)

    with thread_workers(2) as workers, pytest.raises(ValueError, match="item 0"):
        workers.map(work, range(4), cost=lambda _: 1e-5)
    assert done == [2, 3]


def test_an_interrupt_waits_for_running_items(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedal.engine import threads

    finished, calls, original = threading.Event(), [], threads.wait

    def interrupted(futures: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return original(futures)

    monkeypatch.setattr(threads, "wait", interrupted)
    with thread_workers(1) as workers, pytest.raises(KeyboardInterrupt):
        workers.map(lambda item: (time.sleep(0.05), finished.set()), range(1))
    assert finished.is_set()


def test_every_worker_computes_on_one_thread_and_the_setting_is_restored() -> None:
    torch.set_num_threads(2)
    try:
        with thread_workers(3) as workers:
            assert set(workers.map(lambda _: torch.get_num_threads(), range(12))) == {1}
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


def test_both_kinds_of_workers_are_workers() -> None:
    with thread_workers(1) as pool:
        for workers in (InOrder(), pool):
            assert workers.map(str, [1, 2]) == ["1", "2"]
        assert isinstance(pool, ThreadWorkers)


def test_the_helper_pending_sees_pending_passes() -> None:
    learner = TorchLearner(mlp())
    learner.logits(torch.zeros(2, 1, 4, 4))
    assert len(learner._pending) == 1
