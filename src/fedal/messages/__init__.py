"""The messages that may cross the wire; nothing else may. The files are named after what they reveal.

A message is a frozen dataclass of tensors. Its `layout` names the axes of each tensor, so that the wire can check it
before use; its `ranges` and `misfit` state what its integers may be and how its fields belong together; its `leak`
states what it reveals. Plain integers, such as how many clients responded, travel in the header and are not payload.

Axes: B samples of the public batch, B-1 the other samples of that batch, K classes, d the width of the features, x the
elements of one input, C an option of the method (`Method.axes`), * any length.
"""

from __future__ import annotations

from fedal.messages.base import (
    LARGEST,
    LEAK_WORDS,
    MAX_CLIENTS,
    MAX_SAMPLES,
    NOT_BLACK_BOX,
    OUTPUTS_ONLY,
    Leak,
    Message,
    Misfit,
    Range,
    in_words,
)
from fedal.messages.features import (
    ClassFeatures,
    FeatureConsensus,
    Prototypes,
    PublicFeatures,
)
from fedal.messages.modules import (
    DecoderWeights,
    FisherTerms,
    ServerModule,
    Weights,
)
from fedal.messages.outputs import (
    Centroids,
    Consensus,
    ConsensusAndSimilarities,
    Guidance,
    GuidedOutputs,
    GuidedTeacher,
    Outputs,
    OutputsAndSimilarities,
    Teacher,
)
from fedal.messages.samples import (
    PrivateAnswers,
    PrivateSamples,
)
from fedal.messages.selected import (
    Codes,
    NewLabels,
    NewOutputs,
    PublicLabels,
    SelectedOutputs,
    SelectedTeacher,
    Votes,
    WeightedOutputs,
)
from fedal.messages.statistics import (
    ClassInputs,
    ClassLogits,
    ClassOutputs,
    Confusion,
    Credibility,
    LabelCounts,
    MeanInputOutputs,
    SeenLabels,
)
from fedal.messages.together import Together

__all__ = [
    "LARGEST",
    "LEAK_WORDS",
    "MAX_CLIENTS",
    "MAX_SAMPLES",
    "NOT_BLACK_BOX",
    "OUTPUTS_ONLY",
    "Centroids",
    "ClassFeatures",
    "ClassInputs",
    "ClassLogits",
    "ClassOutputs",
    "Codes",
    "Confusion",
    "Consensus",
    "ConsensusAndSimilarities",
    "Credibility",
    "DecoderWeights",
    "FeatureConsensus",
    "FisherTerms",
    "Guidance",
    "GuidedOutputs",
    "GuidedTeacher",
    "LabelCounts",
    "Leak",
    "MeanInputOutputs",
    "Message",
    "Misfit",
    "NewLabels",
    "NewOutputs",
    "Outputs",
    "OutputsAndSimilarities",
    "PrivateAnswers",
    "PrivateSamples",
    "Prototypes",
    "PublicFeatures",
    "PublicLabels",
    "Range",
    "SeenLabels",
    "SelectedOutputs",
    "SelectedTeacher",
    "ServerModule",
    "Teacher",
    "Together",
    "Votes",
    "WeightedOutputs",
    "Weights",
    "in_words",
]
