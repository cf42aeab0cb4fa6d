"""The contract: what is in it, who makes it, where it is kept, and that a site joins under no other."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from commands import fedal
from deployments import SITES, Rehearsal, pb, wait_for
from fedal import methods
from fedal.config import Config
from fedal.deploy import entering
from fedal.deploy.agreement import OFFERED, PINNED, agree, read_pinned
from fedal.deploy.contract import Contract, contract_of, parse_hash, read_contract
from fedal.deploy.entering import SitePlan
from fedal.deploy.pki import authority as certs
from fedal.deploy.pki.enrolment import make_request, make_token
from fedal.deploy.plan import plan_federation
from fedal.deploy.refusals import Code, Refused
from fedal.errors import CheckpointError, ConfigError
from fedal.facts import facts_of
from fedal.messages import LEAK_WORDS, Leak, Message, Outputs, Weights
from fedal.methods.client import ClientLogic, ClientRound
from fedal.methods.method import Method
from fedal.methods.options import PublicOptions
from offline_servers import (
    MODEL,
    NAME,
    ROUNDS,
    Heard,
    invitation_of,
    plan_of,
    private_file,
    settings_of,
    welcome_of,
    with_settings,
)  # fmt: skip


def contract(config: Config, **changes: Any) -> Contract:
    values = {"n_classes": 10, "rounds": config.total_rounds, "public_samples": 1000, "public_sha256": "0" * 64}
    return contract_of(config, **{**values, **changes})


# the document


def test_the_document_of_fedmd_and_its_hash() -> None:
    found = contract(Config(method="fedmd", rounds=400, seed=3))
    document = json.loads(found.text)
    assert document.keys() == {"format", "settings", "rounds", "classes", "public", "messages"}
    assert (document["rounds"], document["classes"], document["settings"]["seed"]) == (400, 10, 3)
    assert document["public"] == {"samples": 1000, "sha256": "0" * 64}
    assert document["messages"]["from_site"] == {
        "Outputs": {"tensors": {"values": "B x K"}, "numbers": [], "reveals": ["public-outputs"]}
    }
    mean = {"tensors": {"mean": "B x K"}, "numbers": ["count"], "reveals": ["public-outputs"]}
    assert document["messages"]["from_server"]["Consensus"] == mean
    assert found.text == json.dumps(document, sort_keys=True, separators=(",", ":"))
    assert found.sha256 == hashlib.sha256(found.text.encode()).hexdigest()
    assert found.name.replace("-", "") == found.sha256[:20] and len(found.name) == 24


def test_the_printed_form_and_the_whole_hash_name_a_contract() -> None:
    found = contract(Config())
    for text in (found.name, found.name.upper(), found.sha256, found.sha256[:20], f" {found.name} "):
        assert found.is_called(parse_hash(text))
    assert not found.is_called(parse_hash("0" * 20))
    for text in ("", found.name[:-1], found.sha256 + "0", "not a hash at all, truly"):
        with pytest.raises(ConfigError, match="expected the hash of a contract"):
            parse_hash(text)


def test_words() -> None:
    assert contract(Config(rounds=400)).leaves == "outputs on 1,000 public samples"
    assert contract(Config(rounds=400)).summary == "fedal, 400 rounds of 5 iterations, 10 classes"
    assert contract(Config()).returns == "outputs on 1,000 public samples, gradients w.r.t. those outputs"
    assert contract(Config(method="local")).leaves == "nothing"
    assert contract(Config(method="fedproto")).leaves == "mean features per class, label counts"
    assert contract(Config(method="fccl+")).leaves == (
        "outputs on 1,000 public samples, similarities of 1,000 public samples"
    )


OTHER = {"method": "fedmd", "seed": 7, "batch_size": 16, "optimizer": "sgd", "lr": 0.5, "momentum": 0.5,
         "weight_decay": 0.1, "precision": "fp64", "channels_last": False, "fused": False, "tau": 7,
         "public_augment": "mixup", "public_clean": 0.25, "public_augment_start": 9, "private_augment": "flip",
         "schedule_iterations": 77, "schedule_end": 0.5, "clip": 2.0,
         "class_weights": "balanced", "label_smoothing": 0.1}  # fmt: skip
NOT_TOLD = {"dataset": "mnist", "clients": 7, "models": "mlp-small", "partition": "iid", "alpha": 3.0, "eval_every": 3,
            "workers": 1, "checkpoint_every": 3, "device": "cpu:0", "stacked": True}  # fmt: skip


def test_every_setting_that_sites_are_told_is_in_the_hash_and_no_other() -> None:
    """`facts.py` decides which; here is a value for each."""
    told = {name for name, facts in facts_of(Config).items() if facts.sites}
    assert told == (OTHER.keys() - {"tau"}) | {"options", "schedule"}
    plain = contract(Config(rounds=20))
    hashes = {contract(Config(rounds=20, **{name: value})).sha256 for name, value in OTHER.items()}
    hashes.add(contract(Config(rounds=20, schedule="cosine", schedule_iterations=77)).sha256)  # one needs the other
    assert len(hashes) == len(OTHER) + 1 and plain.sha256 not in hashes
    for name, value in NOT_TOLD.items():
        assert not facts_of(Config)[name].sites and contract(Config(rounds=20, **{name: value})) == plain
    changed = {"n_classes": 11, "rounds": 21, "public_samples": 999, "public_sha256": "1" * 64}
    for name, value in changed.items():
        assert contract(Config(rounds=20), **{name: value}) != plain


def test_a_length_in_iterations_and_one_in_rounds_are_one_contract() -> None:
    assert contract(Config(iterations=99)) == contract(Config(rounds=20))


def test_deadlines_are_not_part_of_it() -> None:
    plan = plan_of(settings_of("fedal"))
    other = plan.deployment.model_copy(update={"deadline_s": 1.0, "max_strikes": 9, "policy": "continue"})
    assert replace(plan, deployment=other).contract == plan.contract


@pytest.mark.parametrize("name", methods.MODULES)
def test_a_method_is_named_as_its_contract_names_it(name: str) -> None:
    assert contract(Config(method=name)).document["settings"]["method"] == name


def test_changes_are_listed_without_control_characters() -> None:
    old, new = contract(Config(rounds=20)), contract(Config(rounds=40, lr=0.5), public_sha256="\x1b[2J")
    assert old.changes_in(new).split("; ") == [
        f'public.sha256: "{"0" * 64}" -> "\\u001b[2J"',
        "rounds: 20 -> 40",
        "settings.lr: 0.001 -> 0.5",
    ]
    assert old.changes_in(old) == ""
    many = old.changes_in(contract(Config(method="fedavg")))  # the refusal begins with what matters most
    assert many.startswith('settings.method: "fedal" -> "fedavg"; rounds: 20 -> 80; ') and many.endswith(" more")


# what a site has agreed to


@pytest.fixture
def pair() -> tuple[Contract, Contract]:
    return contract(Config(rounds=20)), contract(Config(rounds=40))


def refusal(*arguments: Any) -> str:
    with pytest.raises(Refused) as refused:
        agree(*arguments)
    assert refused.value.code == Code.CONTRACT
    return refused.value.text


def test_the_contract_of_the_invitation_is_pinned_at_the_first_join(tmp_path: Path, pair: Any) -> None:
    old, new = pair
    assert agree(old, tmp_path, old, None) == "the invitation"
    assert read_pinned(tmp_path) == old
    assert agree(old, tmp_path, old, None) == "agreed before"
    text = refusal(new, tmp_path, old, None)
    assert "rounds: 20 -> 40" in text and f"--accept {new.name}" in text and "Nothing was sent" in text
    assert read_pinned(tmp_path) == old
    shown = fedal("contract", tmp_path / OFFERED).out  # all of it, before the operator agrees
    assert f"sha256: {new.sha256}" in shown and str(tmp_path / OFFERED) in text
    agree(new, tmp_path, old, new.sha256)
    assert not (tmp_path / OFFERED).exists()


def test_a_changed_contract_needs_its_own_accept(tmp_path: Path, pair: Any) -> None:
    old, new = pair
    agree(old, tmp_path, old, None)
    assert "The new one is that of the invitation" in refusal(new, tmp_path, new, None)  # the invitation alone: no
    refusal(new, tmp_path, old, old.sha256)
    assert agree(new, tmp_path, old, parse_hash(new.name)) == "--accept"
    assert agree(new, tmp_path, old, None) == "agreed before"
    refusal(old, tmp_path, old, None)  # nor does it go back by itself


def test_another_contract_than_that_of_the_invitation_is_refused_at_the_first_join(tmp_path: Path, pair: Any) -> None:
    old, new = pair
    assert "which its invitation names" in refusal(new, tmp_path, old, None)
    assert read_pinned(tmp_path) is None
    assert agree(new, tmp_path, old, new.sha256) == "--accept"


def test_without_an_invitation_nothing_is_pinned_unless_accepted(tmp_path: Path, pair: Any) -> None:
    old, new = pair
    assert agree(old, tmp_path, None, None) is None
    assert agree(new, tmp_path, None, None) is None and read_pinned(tmp_path) is None
    assert "not the one of --accept" in refusal(new, tmp_path, None, old.sha256)
    assert agree(old, tmp_path, None, old.sha256) == "--accept"
    refusal(new, tmp_path, None, None)  # what the state pins binds without an invitation too


@pytest.mark.parametrize("damage", ["", "{}", "[]", "changed", "7", '{"document": 3, "sha256": "0"}'])
def test_a_damaged_pin_never_counts_as_none(tmp_path: Path, pair: Any, damage: str) -> None:
    old, _ = pair
    agree(old, tmp_path, old, None)
    text = (tmp_path / PINNED).read_text()
    (tmp_path / PINNED).write_text(text.replace('"rounds": 20', '"rounds": 21') if damage == "changed" else damage)
    with pytest.raises((ConfigError, CheckpointError), match=r"contract\.json"):
        agree(old, tmp_path, old, None)


# a site


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return private_file(tmp_path / "private.npz")


def joined(data: Path, server: Any, change: Any = lambda welcome: None, **values: Any) -> Heard:
    """A site that was welcomed by this server."""
    state = data.parent / "state"
    found = {"model": MODEL, "invitation": invitation_of(plan_of(settings_of("fedal"))), **values}
    site = Heard(SitePlan("nowhere:1", NAME, data, state, **found), server)
    welcome = welcome_of(server)
    change(welcome)
    site.say(welcome=welcome)
    return site


def test_the_first_line_of_a_join_says_what_may_leave_before_private_data_are_read(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(settings_of("fedal"))
    lines = joined(data, plan).lines
    words = "fedal, 3 rounds of 2 iterations, 4 classes; may leave this site: outputs on 12 public samples"
    assert lines[0] == f"contract {plan.contract.name} (the invitation): {words}"
    assert "private samples" in lines[1] and read_pinned(data.parent / "state") == plan.contract
    assert joined(data, plan, share_metrics=True).lines[0].endswith("public samples, metrics on its own test data")
    monkeypatch.setattr(entering, "read_data", lambda *_, **__: pytest.fail("private data were read"))
    longer = plan_of(settings_of("fedal").with_(rounds=9))
    with pytest.raises(Refused, match="rounds: 3 -> 9") as refused:
        joined(data, longer)
    assert refused.value.code == Code.CONTRACT


def test_an_accepted_contract_holds_from_then_on_with_its_public_set(data: Path) -> None:
    """The invitation still names the former public set."""
    server = plan_of(settings_of("fedal").with_(rounds=9), samples=16)
    assert "(--accept)" in joined(data, server, accept=server.contract.sha256).lines[0]
    assert "(agreed before)" in joined(data, server).lines[0]
    with pytest.raises(Refused, match="rounds: 9 -> 3"):
        joined(data, plan_of(settings_of("fedal")))


def test_an_invitation_without_a_contract_still_pins_the_public_set(data: Path) -> None:
    plan, other = plan_of(settings_of("fedal")), plan_of(settings_of("fedal"), samples=16)
    invitation = replace(invitation_of(plan), contract=None)
    assert joined(data, plan, invitation=invitation).lines[0].startswith("warning: no contract binds this site")
    with pytest.raises(Refused) as refused:
        joined(data, other, invitation=invitation)
    assert refused.value.code == Code.PUBLIC_SET
    joined(data, other, invitation=replace(invitation, public_sha256=None))


def test_a_round_beyond_the_contract_is_refused(data: Path) -> None:
    site = joined(data, plan_of(settings_of("fedal")))
    with pytest.raises(Refused, match="begins round 4 of 3") as refused:
        site.say(begin=pb.Begin(incarnation=1, round=ROUNDS))
    assert refused.value.code == Code.CONTRACT and not site.uploads
    site.say(begin=pb.Begin(incarnation=1, round=ROUNDS - 1))
    assert len(site.uploads) == 1


# a method of the site's own


@dataclass(frozen=True)
class Whisper(Message):
    values: Any
    leak = Leak.PUBLIC_OUTPUTS
    layout = {"values": ("B", "K")}  # noqa: RUF012


class WhisperClient(ClientLogic):
    def round(self, t: int) -> ClientRound:
        for _, f in self.public_passes(t):
            yield Whisper(f) if t < 2 else Weights({"all": f}, 1)


METHOD = Method(
    "whisper", "", PublicOptions, WhisperClient, up=(Whisper,), down=(Outputs,), needs=frozenset({"public"})
)
LOUDER = replace(METHOD, up=(Whisper, Weights))
FEDAVG = replace(METHOD, name="fedavg")
PATH = f"{__name__}:METHOD"


def own(path: str = PATH) -> Any:
    return plan_of(settings_of(path))


def test_a_site_runs_the_method_that_its_operator_names_and_the_server_only_calls_it(data: Path) -> None:
    server = own()
    assert json.loads(welcome_of(server).settings)["method"] == "whisper"
    site = joined(data, server, method=PATH, invitation=invitation_of(server))
    site.say(begin=pb.Begin(incarnation=1, round=0))
    assert [payload.kind for payload in site.uploads] == ["Whisper"]
    with pytest.raises(Refused, match="would send Weights, which it does not declare"):
        site.say(begin=pb.Begin(incarnation=1, round=2))
    assert len(site.uploads) == 1


def test_the_declarations_of_an_own_method_are_in_its_hash(data: Path) -> None:
    server = own(f"{__name__}:LOUDER")
    changes = own().contract.changes_in(server.contract)
    assert 'messages.from_site.Weights.reveals: absent -> ["parameters", "architecture"]' in changes
    with pytest.raises(Refused, match=r"messages\.from_site\.Weights") as refused:
        joined(data, own(), method=PATH, invitation=invitation_of(server))
    assert refused.value.code == Code.CONTRACT


def test_a_site_with_a_method_of_its_own_runs_no_other(data: Path) -> None:
    for server, change in ((plan_of(settings_of("fedal")), {}), (own(), {"method": "fedavg"})):
        with pytest.raises(Refused, match="this site runs only whisper") as refused:
            joined(data, server, with_settings(**change), method=PATH)
        assert refused.value.code == Code.CONTRACT


def test_a_site_without_it_is_told_to_name_it(data: Path) -> None:
    with pytest.raises(Refused, match="--method") as refused:
        joined(data, own())
    assert refused.value.code == Code.SETTINGS
    with pytest.raises(Refused) as refused:
        joined(data, own(), with_settings(method=PATH), method=PATH)
    assert refused.value.code == Code.NAMES_CODE


def test_a_server_does_not_serve_code_under_the_name_of_a_built_in_method(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match='is called "fedavg"'):
        Rehearsal(tmp_path, export=False, method=f"{__name__}:FEDAVG")


def test_a_federation_with_a_method_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example of the docs, over TLS: the sites end with the bits of a simulation."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))
    rehearsal = Rehearsal(tmp_path, method="custom_method:METHOD", rounds=2)
    with rehearsal.service() as service:
        threads = [rehearsal.join_in_thread(site, method="custom_method:METHOD") for site in SITES]
        wait_for(service.folder.summary.exists)
        for thread, failure in threads:
            thread.join(30)
            assert not failure
    assert rehearsal.deployed() == rehearsal.alone()


# a server that changes its mind, over the network


@pytest.mark.parametrize("method", ["fedavg", "fedgkt", "fedmd"])
def test_sites_that_allow_everything_give_a_server_only_what_they_were_invited_for(tmp_path: Path, method: str) -> None:
    """The invitations are for FedAL and the certificates are valid; then the operator changes the config."""
    rehearsal = Rehearsal(tmp_path, export=False)
    (tmp_path / "sites").mkdir()
    (tmp_path / "sites/client-00.npz").write_bytes(b"reading this would be an error of its own")
    changed = rehearsal.config.with_(method=method, options={"tau": 2}, models="mlp-small")
    rehearsal.plan = plan_federation(changed, rehearsal.deployment)
    everything = Leak(sum(leak.value for leak in LEAK_WORDS))
    with rehearsal.service() as service:
        thread, failure = rehearsal.join_in_thread("client-00", allow=everything)
        thread.join(30)
        assert service.wire.up_bytes.total() == 0
    assert isinstance(failure[0], Refused) and failure[0].code == Code.CONTRACT
    assert f'settings.method: "fedal" -> "{method}"' in failure[0].text


def test_a_new_run_with_more_rounds_needs_a_fresh_start_and_an_accept(tmp_path: Path) -> None:
    rehearsal = Rehearsal(tmp_path)

    def code_of(thread: Any, failure: list[Any]) -> str:
        thread.join(20)
        return str(failure[0].code)

    with rehearsal.service():
        first = rehearsal.join_in_thread("client-00")
    elsewhere = rehearsal.deployment.model_copy(update={"folder": str(tmp_path / "another")})
    rehearsal.plan = plan_federation(rehearsal.config.with_(rounds=9), elsewhere)
    with rehearsal.service():
        assert code_of(*first) == Code.OTHER_RUN
        assert code_of(*rehearsal.join_in_thread("client-00", restart=True)) == Code.CONTRACT
        accept = rehearsal.plan.contract.sha256
        _, failure = rehearsal.join_in_thread("client-00", restart=True, accept=accept, patience_s=1.0)
        assert not failure and read_pinned(tmp_path / "client-00-state") == rehearsal.plan.contract


# invitations and tokens


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    path = tmp_path / "federation.toml"
    path.write_text('method = "fedmd"\nclients = 3\nrounds = 4\n[deployment]\nfederation = "test"\n')
    certs.init(tmp_path / "certs", "test")
    return path


def test_invitations_and_tokens_carry_the_contract(tmp_path: Path, config_file: Path) -> None:
    out = ("--out", tmp_path / "certs")
    shown = fedal("contract", config_file)
    assert shown.code == 0 and shown.out.startswith("contract ") and "fedmd, 4 rounds of 5 iterations" in shown.out
    first = shown.out.splitlines()[0]
    assert fedal("certs", "client", "client-00", "--config", config_file, *out).err == ""
    assert fedal("certs", "token", "client-01", "--config", config_file, *out).err == ""
    requested = make_request(tmp_path / "certs/client-01.token", tmp_path / "site")
    for place in (tmp_path / "certs/client-00", tmp_path / "certs/client-01.token", requested):
        answer = fedal("contract", place)
        assert answer.code == 0 and answer.out == shown.out and not answer.err
    found = certs.read_invitation(tmp_path / "certs/client-00").contract
    assert found is not None and first == f"contract {found.name}: {found.summary}"
    (tmp_path / "state").mkdir()
    agree(found, tmp_path / "state", found, None)
    assert fedal("contract", tmp_path / "state").out == shown.out
    text = fedal("contract", tmp_path / "state", "--json").out
    assert hashlib.sha256(text.encode()).hexdigest() == found.sha256


def test_without_a_config_both_warn_that_only_allow_binds(tmp_path: Path, config_file: Path) -> None:
    out = ("--out", tmp_path / "certs")
    for words in (("client", "a"), ("token", "b")):
        answer = fedal("certs", *words, *out)
        assert answer.code == 0 and "pins no contract and no public set" in answer.err and "--allow" in answer.err
    for place in ("a", "b.token"):
        answer = fedal("contract", tmp_path / "certs" / place)
        assert answer.code == 2 and "names no contract" in answer.err
    assert certs.read_invitation(tmp_path / "certs/a").contract is None
    assert "Expected a federation's .toml file" in fedal("contract", tmp_path / "nowhere").err


def test_a_token_of_an_earlier_release_is_still_a_token(tmp_path: Path, config_file: Path) -> None:
    path = make_token(tmp_path / "certs", "site-1", None)
    content = json.loads(path.read_text())
    del content["contract"]
    path.write_text(json.dumps(content))
    assert "contract" not in json.loads((make_request(path, tmp_path / "site") / "invitation.json").read_text())


@pytest.mark.parametrize("key", ["sha256", "document"])
def test_a_damaged_contract_in_an_invitation_is_an_error(tmp_path: Path, config_file: Path, key: str) -> None:
    found = contract(Config())
    folder = certs.issue_client(tmp_path / "certs", "site-1", None, contract=found)
    path = folder / "invitation.json"
    content = json.loads(path.read_text())
    content["contract"][key] = "0" * 64
    path.write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=r"invitation\.json: the contract in it is damaged"):
        certs.read_invitation(folder)
    later = {"document": {**found.document, "format": 2}}
    with pytest.raises(ConfigError, match="of another release"):
        read_contract({**later, "sha256": Contract(later["document"]).sha256}, "x")


def test_a_schema_is_part_of_the_hash_and_so_is_a_later_field(tmp_path: Path, config_file: Path) -> None:
    plain = contract(Config())
    with_schema = contract(Config(), schema="1" * 64)
    assert plain.changes_in(with_schema) == f'schema: absent -> "{"1" * 64}"'
    assert read_contract(with_schema.to_json(), "x") == with_schema != plain == contract(Config(), schema="")
    folder = certs.issue_client(tmp_path / "certs", "site-1", None, contract=with_schema)
    answer = fedal("contract", folder)
    assert f"schema of the data: sha256 {'1' * 64}" in answer.out and not answer.err
    later = Contract({**plain.document, "later": "1" * 64})
    folder = certs.issue_client(tmp_path / "certs", "site-2", None, contract=later)
    assert "this installation would not agree to it: later" in fedal("contract", folder).err


def test_a_wrong_hash_or_method_is_a_mistake_before_the_start(tmp_path: Path) -> None:
    words = ["--server", "localhost:1", "--name", "client-00", "--data", "x.npz", "--insecure"]
    answer = fedal("join", *words, "--accept", "abc")
    assert answer.code == 2 and "--accept abc: expected the hash of a contract" in answer.err
    answer = fedal("join", *words, "--method", "no.such.module:METHOD")
    assert answer.code == 2 and "no.such.module" in answer.err
