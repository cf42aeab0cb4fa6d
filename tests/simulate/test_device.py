"""Every tensor of a round is on the device that `device` names.

Tensors on the device `meta` have shapes but no data, and combining them with tensors of another device is an error. So
a tensor without an explicit device, or left on the CPU, is found without a GPU: by rounds on the CPU while `meta` is
torch's default device, and by rounds on `meta` itself if the method reads no values.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from fedal import methods
from fedal.config import Config
from fedal.engine.loop import Federation
from fedal.simulate.assemble import Assembly, assemble
from splits import QUICK, InOrder, build_federation, restore, run_rounds, same_bits, state_of, tiny_split

VARIANTS: dict[str, list[dict[str, Any]]] = {  # options that create further tensors
    "fedmd": [{"distance": "l1"}, {"distance": "mse"}, {"aggregate": "median"}],
    "fedmd-lf": [{"aggregate": "debias"}, {"aggregate": "coverage", "space": "probabilities"}],
    "fedal": [
        {"discriminator_leak": 0.1, "discriminator_clip": 0.5, "discriminator_optimizer": "sgd"},
        {"aggregate": "trimmed"},
    ],
    "fedproto": [{"prototypes": "fresh"}, {"average": "samples", "local_stages": 2}],
    "fd": [{"exchange_every": 2}, {"table_steps": 40, "average": "samples"}],
    "hfd": [{"joint": True}, {"distillation_steps": 2}],
    "feddf": [{"transfer": "server", "server_steps": 2}],
    "fccl": [{"pretrain_iterations": 0}, {"pretrain_iterations": 2, "self_target": "previous"}],
    "fccl+": [{"self_target": "exclude"}, {"renormalise": True}],
    "perfed-ckt": [{"space": "logits", "loss": "kl"}, {"loss": "kl"}],
    "cfd": [{"delta": False}, {"b_up": 3, "b_down": 9}, {"b_up": 32, "b_down": 32, "space": "logits"}],
    "mhat": [{"space": "probabilities"}],
    "scarlet": [{"lifetime": 1}],
    "fedaux": [{"score": "density"}],
    "fedkt": [{"teacher_iterations": 2, "student_iterations": 2, "teachers": 2, "partitions": 2}],
    "fedgkd": [{"distance": "mse", "buffer": 2}],
    "fedrad": [{"angles": 0.0, "entropy_of": "teacher"}],
}
CASES = [
    (method, QUICK.get(method, {}) | more) for method in methods.MODULES for more in [{}, *VARIANTS.get(method, [])]
]
STACKABLE = ("local", "fedmd", "fedmd-lf", "fedal")
ASK_FOR_NUMBERS = (
    "fedproto",
    "fd",
    "hfd",
    "fccl+",
    "perfed-ckt",
    "cfd",
    "scarlet",
    "selective-fd",
    "fedkt",
    "feddistill+",
    "fedcvae",
)
ON_META = [case for case in CASES if case[0] not in ASK_FOR_NUMBERS and "discriminator_optimizer" not in case[1]]


def assembled(method: str, device: str = "cpu", *, stacked: bool = False, **options: Any) -> Assembly:
    config = Config(
        method=method,
        clients=3,
        models="cnn-small",
        batch_size=8,
        tau=2,
        device=device,
        stacked=stacked,
        local_loss="balanced",
        options=options,
    )
    return assemble(config, tiny_split(config.client_names), InOrder())


def run_three_rounds(federation: Federation, *, stacked: bool = False) -> None:
    """Without stacks, the last client is absent in round 0 and has to catch up."""
    late = federation.roster[-1]
    federation.run_round(0, None if stacked else lambda client, exchange: client == late)
    federation.run_round(1)
    federation.run_round(2)


def tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from tensors_in(part)


def without_codecs(state: dict[str, Any]) -> dict[str, Any]:
    """The state without that of the codecs, which work in Python and stay on the CPU."""
    return {
        "server": {name: part for name, part in state["server"].items() if name != "codecs"},
        "clients": {
            n: {name: part for name, part in own["method"].items() if name not in ("up", "down")}
            for n, own in state["clients"].items()
        },
        "learners": {n: own["learner"] for n, own in state["clients"].items()},
    }


@pytest.mark.parametrize(("method", "options"), CASES)
def test_a_round_places_every_tensor(method: str, options: dict[str, Any]) -> None:
    expected, checked = (assembled(method, **options).federation for _ in range(2))
    run_three_rounds(expected)
    with torch.device("meta"):
        run_three_rounds(checked)
    assert same_bits(state_of(checked), state_of(expected))


@pytest.mark.parametrize("method", STACKABLE)
def test_a_round_of_a_stack_places_every_tensor(method: str) -> None:
    expected, checked = (assembled(method, stacked=True).federation for _ in range(2))
    run_three_rounds(expected, stacked=True)
    with torch.device("meta"):
        run_three_rounds(checked, stacked=True)
    assert same_bits(state_of(checked), state_of(expected))


def test_batch_norm_and_dropout_place_every_tensor() -> None:
    expected, checked = (build_federation("fedal") for _ in range(2))
    run_rounds(expected, 2)
    with torch.device("meta"):
        run_rounds(checked, 2)
    assert same_bits(state_of(checked), state_of(expected))


@pytest.mark.parametrize("method", list(methods.MODULES))
def test_a_restored_state_continues_on_the_device_of_the_run(method: str) -> None:
    saved, restored = (assembled(method, **QUICK.get(method, {})).federation for _ in range(2))
    run_three_rounds(saved)
    state = state_of(saved)
    saved.run_round(3)
    with torch.device("meta"):
        restore(restored, state)
        restored.run_round(3)
    assert same_bits(state_of(restored), state_of(saved))


@pytest.mark.filterwarnings("ignore:.*which is a no-op:UserWarning")  # there is no data to copy
@pytest.mark.parametrize(("method", "options"), CASES)
def test_a_state_from_the_cpu_is_loaded_on_another_device(method: str, options: dict[str, Any]) -> None:
    saved = assembled(method, **options).federation
    run_three_rounds(saved)
    restored = state_of(restore(assembled(method, "meta", **options).federation, state_of(saved)))
    assert {tensor.device.type for tensor in tensors_in(without_codecs(restored))} == {"meta"}


@pytest.mark.parametrize(
    ("method", "options", "stacked"),
    [(*case, False) for case in ON_META] + [(*case, True) for case in ON_META if case[0] in STACKABLE],
)
def test_no_tensor_of_a_round_stays_on_the_cpu(
    method: str, options: dict[str, Any], stacked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The only values read are those of the tests for finite values: they pass.
    monkeypatch.setattr(Tensor, "__bool__", lambda tensor: True)
    federation = assembled(method, "meta", stacked=stacked, **options).federation
    run_three_rounds(federation, stacked=stacked)
    assert {tensor.device.type for tensor in tensors_in(state_of(federation))} == {"meta"}
