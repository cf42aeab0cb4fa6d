"""The contract between a site and its federation: a document with a hash, which the site agrees to before it joins.

The document holds every setting that goes to sites, the number of rounds and of classes, the public set, and what the
method sends. Each party builds it from its own code: a site never reads from the server what a method sends or reveals.
How long the server waits is not part of it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fedal.config import Config
from fedal.deploy.consent import SINGLE
from fedal.errors import ConfigError
from fedal.messages import LEAK_WORDS, Message

FORMAT = 1
SHORT = 20  # hexadecimal digits of the printed form: 80 bits, too many to search for a second contract with the same
SHOWN_CHANGES = 6


@dataclass(frozen=True, eq=False)
class Contract:
    """A contract. Two contracts are equal if their hashes are."""

    document: Mapping[str, Any]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Contract) and self.sha256 == other.sha256

    def __hash__(self) -> int:
        return hash(self.sha256)

    @cached_property
    def text(self) -> str:
        """The canonical JSON, over which the hash is computed: sorted keys, no spaces, ASCII only."""
        return json.dumps(self.document, sort_keys=True, separators=(",", ":"), allow_nan=False)

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def name(self) -> str:
        """The beginning of the hash, for people: `3f9a-1c42-77de-0b15-9c3d`."""
        return "-".join(self.sha256[start : start + 4] for start in range(0, SHORT, 4))

    def is_called(self, digits: str) -> bool:
        """Whether these digits, checked by `parse_hash`, are the beginning of its hash."""
        return self.sha256.startswith(digits)

    def to_json(self) -> dict[str, Any]:
        """As it is kept in invitations, tokens and a site's state."""
        return {"sha256": self.sha256, "document": dict(self.document)}

    # in words

    @property
    def summary(self) -> str:
        settings = self.document["settings"]
        tau, rounds = settings["options"]["tau"], self.document["rounds"]
        return f"{settings['method']}, {rounds:,} rounds of {tau:,} iterations, {self.document['classes']:,} classes"

    @property
    def leaves(self) -> str:
        """What the site sends, in words."""
        return self._revealed("from_site")

    @property
    def returns(self) -> str:
        """What the server sends back, in words."""
        return self._revealed("from_server")

    def _revealed(self, direction: str) -> str:
        found = {word for sent in self.document["messages"][direction].values() for word in sent["reveals"]}
        words = (LEAK_WORDS[leak] for word, leak in SINGLE.items() if word in found)
        samples = f"{self.document['public']['samples']:,} public samples"
        return ", ".join(re.sub("public (data|samples)", samples, text) for text in words) or "nothing"

    def changes_in(self, other: Contract) -> str:
        """The differences from this contract to another, for the operator: `rounds: 20 -> 40; ...`."""
        old, new = dict(_leaves(self.document)), dict(_leaves(other.document))
        keys = sorted({*old, *new}, key=lambda key: (key != "settings.method", key.startswith("messages."), key))
        pairs = ((key, old.get(key, "absent"), new.get(key, "absent")) for key in keys)
        found = [f"{key}: {before} -> {after}" for key, before, after in pairs if before != after]
        more = f"; {len(found) - SHOWN_CHANGES} more" if len(found) > SHOWN_CHANGES else ""
        return "; ".join(found[:SHOWN_CHANGES]) + more


def contract_of(
    config: Config, *, n_classes: int, rounds: int, public_samples: int, public_sha256: str, schema: str | None = None
) -> Contract:
    """The contract of a run. All else follows from the code of the method that `config` names here.

    `schema` is the sha256 of the schema of the sites' data, if they have one.
    """
    method = config.method_object()
    document = {
        "format": FORMAT,
        "settings": config.for_sites(),
        "rounds": rounds,
        "classes": n_classes,
        "public": {"samples": public_samples, "sha256": public_sha256},
        "messages": {"from_site": _declared(method.up), "from_server": _declared(method.down)},
        # Optional fields follow, each left out where it is not used, which keeps the hashes of all other contracts.
        **({"schema": schema} if schema else {}),
    }
    return Contract(json.loads(json.dumps(document, allow_nan=False)))  # as any reader of the JSON gets it


def read_contract(found: object, where: str) -> Contract:
    """The contract that `Contract.to_json` wrote. Raises ConfigError if it is damaged."""
    try:
        contract = Contract(found["document"])  # type: ignore[index]  # whatever it is
        is_intact = contract.sha256 == found["sha256"] and contract.document["format"] == FORMAT  # type: ignore[index]
        _ = contract.summary, contract.leaves, contract.returns
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        is_intact = False
    if not is_intact:
        advice = "Restore the file, or ask the operator for a new invitation."
        raise ConfigError(f"{where}: the contract in it is damaged, or of another release. {advice}")
    return contract


def parse_hash(text: str) -> str:
    """The hexadecimal digits of `--accept`: the printed form of a contract, or all of its hash."""
    digits = text.strip().lower().replace("-", "")
    if not re.fullmatch(rf"[0-9a-f]{{{SHORT},64}}", digits):
        raise ConfigError(f"--accept {text}: expected the hash of a contract, as `fedal contract` prints it.")
    return digits


def _declared(kinds: Iterable[type[Message]]) -> dict[str, Any]:
    return {
        kind.__name__: {
            "tensors": {name: _form(kind, name) for name in kind.payload_fields()},
            "numbers": sorted(kind.header_fields()),
            "reveals": [word for word, leak in SINGLE.items() if leak in kind.leak],
        }
        for kind in kinds
    }


def _form(kind: type[Message], name: str) -> str:
    """`B x K`, `K int32`, or `any` for a message with all tensors of a model."""
    axes = " x ".join(kind.layout[name]) if name in kind.layout else "any"
    return f"{axes} {kind.integer_fields[name]}" if name in kind.integer_fields else axes


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Every value of a document with its path, as JSON, which has no control characters."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else str(key))
    else:
        yield path, json.dumps(value)
