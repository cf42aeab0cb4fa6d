"""No server, whatever it says, makes a site send a message type outside its contract: over all methods.

The sites here allow everything, so only the contract protects them; the last tests take the contract away.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from deployments import pb
from fedal import methods
from fedal.config import Config
from fedal.deploy import entering
from fedal.deploy.entering import SitePlan
from fedal.deploy.plan import ServerPlan
from fedal.deploy.refusals import Refused
from fedal.errors import ConfigError, FedalError
from fedal.messages import LEAK_WORDS, OUTPUTS_ONLY, Leak, Message
from fedal.simulate.build import axis_lengths
from offline_servers import (
    MODEL,
    NAME,
    ROUNDS,
    Change,
    Heard,
    any_message,
    feature_width,
    invitation_of,
    plan_of,
    private_file,
    settings_of,
    welcome_of,
    with_fields,
    with_settings,
)

EVERYTHING = Leak(sum(leak.value for leak in LEAK_WORDS))
KINDS = sorted({kind for name in methods.MODULES for kind in (*methods.get(name).up, *methods.get(name).down)},
               key=lambda kind: kind.__name__)  # fmt: skip
PLANS = {name: plan_of(settings_of(name)) for name in methods.MODULES}


@pytest.fixture(autouse=True)
def read(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The private files that sites have read."""
    found: list[Path] = []
    load = entering.read_data

    def recorded(path: Any, *more: Any, **rest: Any) -> Any:
        found.append(path)
        return load(path, *more, **rest)

    monkeypatch.setattr(entering, "read_data", recorded)
    return found


def a_site(tmp_path: Path, plan: ServerPlan, **changes: Any) -> Heard:
    values: dict[str, Any] = {"model": MODEL, "allow": EVERYTHING, "invitation": invitation_of(plan), **changes}
    data = tmp_path / "private.npz"
    state = tmp_path / f"state-{len([*tmp_path.iterdir()])}"
    return Heard(SitePlan("nowhere:1", NAME, data if data.exists() else private_file(data), state, **values), plan)


def other_values(name: str, annotation: Any, value: Any) -> Iterator[Any]:
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int | float):
        yield from (value + 1, value * 0.5, -value, 10**9, "1")
    elif isinstance(value, str):
        yield from (other for other in get_args(annotation) if isinstance(other, str) and other != value)
        yield "\x1b[2J"
    elif isinstance(value, list):
        yield [*value, 7]
    yield None  # left out, so that a default takes its place


def changes(config: Config) -> Iterator[Change]:
    """All that a server might say differently: another method, setting, unknown field, number or public set."""
    yield from (lambda welcome, name=name: welcome.CopyFrom(welcome_of(PLANS[name]))
                for name in methods.MODULES if name != config.method)  # fmt: skip
    told = config.for_sites()
    for name, value in told.items():
        if name == "options":
            for option, inner in value.items():
                annotation = type(config.options).model_fields[option].annotation
                yield from (with_settings(**{f"options__{option}": x}) for x in other_values(option, annotation, inner))
        elif name != "method":
            annotation = Config.model_fields[name].annotation
            yield from (with_settings(**{name: x}) for x in other_values(name, annotation, value))
    for name in methods.MODULES:
        yield with_settings(method=name)  # with the options of the contract's method
    yield from (with_settings(**{name: 1}) for name in ("clients", "device", "share_metrics", "kind", "options__up"))
    yield from (with_settings(method=name) for name in ("os:system", "fedal.methods.parameters.fedavg:METHOD", ["x"]))
    texts = ("", "[]", "3", "null", '["method"]', "[" * 100_000, json.dumps(told)[:-1])
    yield from (with_fields(settings=text) for text in texts)
    yield from (with_fields(total_rounds=n) for n in (0, ROUNDS + 1, 2**63))
    yield from (with_fields(n_classes=n) for n in (0, 3, 5, 2**31))
    yield from (with_fields(public_samples=n) for n in (0, 11, 13, 2**40))
    yield from (with_fields(public_sha256=text) for text in ("", "0" * 64, "\x1b[2J"))
    yield from (with_fields(schema_sha256=text) for text in ("0" * 64, "\x1b[2J"))
    yield from (with_fields(input_shape=shape) for shape in ((), (64,), (1, 8, 9)))
    yield with_fields(dataset="mnist", feature_width=10**9)
    yield lambda welcome: welcome.MergeFromString(b"\xfa\x3f\x02up")  # a field that the protocol does not have


def everything_it_sends(site: Heard, plan: ServerPlan, chance: random.Random) -> None:
    """Rounds with a server that answers anything: what is due, other kinds, the site's own message, nonsense."""
    rng = np.random.default_rng(chance.randrange(2**32))
    sizes = axis_lengths(plan.config, plan.task, feature_width(plan)) | {"*": 3}
    down: tuple[type[Message], ...] = plan.config.method_object().down
    for _ in range(3):
        try:
            incarnation, t = (
                chance.randrange(3),
                chance.choice([0, 0, 0, 1, 1, ROUNDS - 1, ROUNDS - 1, chance.choice([ROUNDS, 2**40])]),
            )
            answer = site.say(begin=pb.Begin(incarnation=incarnation, round=t, save=False, report=True))
            for exchange in range(4):
                if answer is None or answer.WhichOneof("body") != "upload":
                    break
                payload = any_message(chance.choice(down if chance.random() < 0.8 else KINDS), sizes, rng)
                if chance.random() < 0.4:  # its own tensors, as a kind that is due: the only form of some
                    own = answer.upload.payload
                    payload = pb.Payload(
                        kind=chance.choice(down).__name__, numbers=payload.numbers, tensors=own.tensors
                    )
                if chance.random() < 0.1:
                    payload = pb.Payload(kind=chance.choice(KINDS).__name__, numbers={"count": -1})
                reply = pb.Reply(incarnation=incarnation, round=t, exchange=exchange, payload=payload)
                answer = site.say(reply=reply)
        except FedalError:  # ends the site, in words; its operator starts it again
            continue


def check_sent(site: Heard, plan: ServerPlan) -> None:
    """Everything that left has a kind of the contract, with the fields that the contract names."""
    declared = plan.contract.document["messages"]["from_site"]
    for payload in site.uploads:
        assert payload.kind in declared
        assert sorted(payload.numbers) == declared[payload.kind]["numbers"]
        forms = declared[payload.kind]["tensors"]
        assert "any" in forms.values() or {tensor.name for tensor in payload.tensors} == forms.keys()
    for answer in site.sent:
        assert not answer.done.metrics, "nobody shared metrics"


@pytest.mark.parametrize("name", methods.MODULES)
def test_whatever_a_server_offers_a_site_sends_only_what_its_contract_names(
    name: str, tmp_path: Path, read: list[Path]
) -> None:
    plan, chance = PLANS[name], random.Random(name)
    refused = accepted = 0
    for change in changes(plan.config):
        welcome, site = welcome_of(plan), a_site(tmp_path, plan)
        before = len(read)
        change(welcome)
        try:
            site.say(welcome=welcome)
        except Refused:
            assert len(read) == before and not site.sent, "refused before anything private is read"
            with pytest.raises(Refused, match="before the welcome"):
                site.say(begin=pb.Begin())
            refused += 1
            continue
        except ConfigError:  # features of another width than the site's model has
            assert not site.sent
            continue
        assert len(read) == before + 1
        accepted += 1
        if accepted <= 3:
            everything_it_sends(site, plan, chance)
            check_sent(site, plan)
    assert refused >= 50 and accepted >= 2  # an unknown field, and a setting left out whose default it has


@pytest.mark.parametrize("name", methods.MODULES)
def test_whatever_a_server_answers_a_site_sends_only_what_its_contract_names(name: str, tmp_path: Path) -> None:
    plan, chance = PLANS[name], random.Random(name)
    sent = 0
    for _ in range(4):
        site = a_site(tmp_path, plan)
        site.say(welcome=welcome_of(plan))
        everything_it_sends(site, plan, chance)
        second = random.Random(name).choice([other for other in PLANS if other != name])
        site.say(welcome=welcome_of(PLANS[second]))  # the settings of a running site do not change
        everything_it_sends(site, plan, chance)
        check_sent(site, plan)
        sent += len(site.uploads)
    assert sent >= 4 or not plan.config.method_object().up


@pytest.mark.parametrize("name", methods.MODULES)
def test_without_a_contract_only_what_is_allowed_leaves(name: str, tmp_path: Path, read: list[Path]) -> None:
    plan, method = PLANS[name], methods.get(name)
    site = a_site(tmp_path, plan, invitation=None, allow=OUTPUTS_ONLY)
    if method.reveals & ~OUTPUTS_ONLY:
        with pytest.raises(Refused, match="does not allow"):
            site.say(welcome=welcome_of(plan))
        assert not read
    else:
        site.say(welcome=welcome_of(plan))
        everything_it_sends(site, plan, random.Random(name))
        kinds = {kind.__name__: kind for kind in KINDS}
        assert all(not kinds[payload.kind].leak & ~OUTPUTS_ONLY for payload in site.uploads)
        (line,) = [line for line in site.lines if "binds" in line]
        assert line.startswith("warning: no contract binds this site, only --allow")
