"""Methods that are FedMD with other values of its options: a name, those values, and nothing else.

Their servers and clients are FedMD's. What the originals do beyond that is on their pages in docs/methods. FedEven and
FedLift are our own; their values were chosen on validation data (docs/results/search).
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import Any

from pydantic import create_model

from fedal.methods.options import MethodOptions
from fedal.methods.outputs import fedmd


def with_defaults(options: type[MethodOptions], name: str, **defaults: Any) -> type[MethodOptions]:
    """The same options with other defaults; `name` is the constant that holds them, where pickle finds them."""
    fields: dict[str, Any] = {}
    for key, value in defaults.items():
        fields[key] = (options.model_fields[key].annotation, copy(options.model_fields[key]))
        fields[key][1].default = value
    return create_model(name, __base__=options, __module__=__name__, **fields)


DSFLOptions = with_defaults(
    fedmd.FedMDOptions, "DSFLOptions", aggregate="era", space="probabilities", sharpness=10.0
)  # T = 0.1
CronusOptions = with_defaults(
    fedmd.FedMDOptions, "CronusOptions", aggregate="cronus", space="probabilities", trim=0.499
)  # the largest minority
FedGEMSOptions = with_defaults(fedmd.FedMDOptions, "FedGEMSOptions", aggregate="inverse-entropy")
FedEvenOptions = with_defaults(fedmd.FedMDOptions, "FedEvenOptions", tau=1, local_loss="balanced")
FedLiftOptions = with_defaults(
    fedmd.FedMDOptions,
    "FedLiftOptions",
    tau=1, local_loss="balanced", aggregate="align", class_strength=0.5, certainty=1.0,
)  # fmt: skip

DS_FL = replace(
    fedmd.METHOD,
    name="ds-fl",
    summary="FedMD with mean probabilities, sharpened by a softmax (ERA)",
    options=DSFLOptions,
    faithfulness="code",
    paper_options={},
)

CRONUS = replace(
    fedmd.METHOD,
    name="cronus",
    summary="FedMD with mean probabilities, without outliers among the clients",
    options=CronusOptions,
    faithfulness="reconstruction",
    paper_options={},
)

FEDGEMS = replace(
    fedmd.METHOD,
    name="fedgems",
    summary="FedMD with clients weighted by their certainty: FedGEMS without public labels",
    options=FedGEMSOptions,
    faithfulness="reconstruction",
    paper_options={},
)

FEDEVEN = replace(
    fedmd.METHOD,
    name="fedeven",
    summary="FedMD between clients whose local loss evens out their label skew",
    options=FedEvenOptions,
    faithfulness="own",
    paper_options={},
)

FEDLIFT = replace(
    fedmd.METHOD,
    name="fedlift",
    summary="FedEven whose server also lifts the classes that few clients know",
    options=FedLiftOptions,
    faithfulness="own",
    paper_options={},
)
