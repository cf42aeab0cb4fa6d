"""Why `stacked = true` has no effect on the models of a run."""

from __future__ import annotations

from collections.abc import Mapping

from fedal.config import Config
from fedal.engine.resting import RestingLearner
from fedal.learners.base import Learner
from fedal.learners.stacked.chain import chain_of
from fedal.learners.torch_learner import TorchLearner


def why_none_is_stacked(config: Config, learners: Mapping[str, Learner], input_rank: int) -> str:
    """The reason of the first client, if no model can be stacked; empty if one can or if it was not asked for."""
    obstacles = {client: _obstacle(learner, input_rank) for client, learner in learners.items()}
    if config.stacked is not True or not all(obstacles.values()):
        return ""
    client, obstacle = next(iter(obstacles.items()))
    return f'stacked = true has no effect, because no model can be stacked. Client "{client}": {obstacle}.'


def _obstacle(learner: Learner, input_rank: int) -> str:
    if isinstance(learner, RestingLearner):
        return ""  # its model is built when it is drawn
    if type(learner) is not TorchLearner:
        return "only torch models that fedal trains itself can be stacked"
    try:
        chain_of(learner.module, input_rank)
    except TypeError as error:
        return str(error)
    return ""
