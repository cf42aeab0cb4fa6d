"""Checks before training: rejects methods, learners and devices that do not fit."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from fedal.config import Config
from fedal.data.augment import misfit
from fedal.data.split import Task
from fedal.errors import ConfigError, NotApplicableError
from fedal.learners.base import VERBS, Learner
from fedal.methods.method import Method

VERB_FOR = {
    "features": "logits_and_features",
    "weights": "weights",
    "input-gradients": "through",
    "weight-gradients": "weight_gradient",
}


def refuse_unfit_task(config: Config, task: Task) -> None:
    """Raises when the method or the augmentation does not fit the task."""
    for name, usable in (("public_augment", "mixup or noise"), ("private_augment", "noise")):
        if why := misfit(getattr(config, name), task.input_shape):
            raise ConfigError(f"{name}: {why}. Use {usable}.")
    method = config.method_object()
    reason = method.refuse(config.options, task.n_classes)
    if reason:
        raise NotApplicableError(f"{method.name}: {reason}")


def refuse_incomplete(learner: Learner, client: str) -> Learner:
    """Returns the learner; raises ConfigError when it lacks a method that every learner must have."""
    missing = [verb for verb in VERBS if not callable(getattr(learner, verb, None))]
    if missing:
        raise ConfigError(
            f'the model of client "{client}" is a {type(learner).__name__} without {", ".join(missing)}: expected an '
            "nn.Module or a learner (docs/learners.md)."
        )
    return learner


def refuse_misfits(method: Method, learners: Mapping[str, Learner], models: Mapping[str, str]) -> int:
    """Raises when the learners lack what the method needs; returns the shared feature width, or 0 if none is needed."""
    for need, verb in VERB_FOR.items():
        for client, learner in learners.items():
            if need in method.needs and not hasattr(learner, verb):
                raise NotApplicableError(f'{method.name} needs {need}; the learner of client "{client}" exposes none.')
    if "same-architecture" in method.needs and len(set(models.values())) > 1:
        found = ", ".join(sorted(set(models.values())))
        raise NotApplicableError(
            f"{method.name} averages parameters of one architecture; the clients have {found}. Try --models same."
        )
    if "features" not in method.needs:
        return 0
    widths = {client: int(learner.feature_width) for client, learner in learners.items()}  # type: ignore[attr-defined]
    if "same-features" in method.needs and len(set(widths.values())) > 1:
        found = ", ".join(sorted({f"{models[client]}: {width}" for client, width in widths.items()}))
        raise NotApplicableError(
            f"{method.name} compares features and needs one width; the clients have {found}. Try --models same."
        )
    return next(iter(widths.values())) if "same-features" in method.needs else 0


def refuse_missing_device(device: str) -> None:
    try:
        is_meta = torch.zeros(1, device=device).is_meta
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"device = {device!r} cannot be used here: {str(error).splitlines()[0]}") from None
    if is_meta:
        raise ConfigError(
            f"device = {device!r}: its tensors have shapes but no data, so nothing can be trained. "
            "Expected a device that computes: try device = cpu, or cuda if there is a GPU."
        )
