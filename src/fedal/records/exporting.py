"""Exports a trained model for use without fedal: PyTorch modules as ONNX, boosters in their library's own format."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedal.durable import write_atomically
from fedal.errors import ConfigError, RunError
from fedal.lazy import torch
from fedal.models.logits_of import logits_of
from fedal.records.loaded_model import LoadedModel
from fedal.records.model_files import as_metadata

TOLERANCE = 1e-5  # between the logits of ONNX Runtime and of PyTorch, relative to 1 + |logit|
SAMPLES = 16


def export(model: LoadedModel, path: Path) -> str:
    """Writes the model in the format that the file's name ends with; returns what was written, in words."""
    to_bytes = getattr(model.model, "to_bytes", None)
    if path.suffix == ".onnx" and isinstance(model.model, torch.nn.Module):
        content, distance = _onnx(model)
        write_atomically(path, content)
        return f"ONNX with input x and output logits; ONNX Runtime differs from PyTorch by at most {distance:.1e}"
    kind, suffix = ("xgboost", ".ubj") if "xgboost" in type(model.model).__module__ else ("lightgbm", ".txt")
    if path.suffix == suffix and to_bytes is not None:
        write_atomically(path, to_bytes())
        return f'a model of {kind}: {kind}.Booster(model_file="{path.name}")'
    raise ConfigError(
        f"{path}: a {type(model.model).__name__} cannot be written as {path.suffix or 'this'}. {_advice(model, suffix)}"
    )


def _advice(model: LoadedModel, suffix: str) -> str:
    """How to use the model elsewhere; `suffix` is that of a booster's file."""
    if isinstance(model.model, torch.nn.Module):
        return "Try a name that ends with .onnx."
    if hasattr(model.model, "to_bytes"):
        return f"Try a name that ends with {suffix}."
    load = f'fedal.load_model("{model.name}.safetensors").model'
    if hasattr(model.model, "classifier"):
        return f"For a classifier of scikit-learn, in Python: {load}.classifier()"
    return f"No other library has its format. Use fedal predict, or in Python: {load}"


@contextlib.contextmanager
def _silent_exporter() -> Iterator[None]:
    """Keeps what PyTorch's exporter says to its developers from the user: warnings, prints and missing packages."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


def _onnx(model: LoadedModel) -> tuple[bytes, float]:
    """The ONNX file, checked against PyTorch on random samples, and the largest difference of a logit."""
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401 - torch needs it
    except ImportError as error:
        raise ConfigError(f"exporting to ONNX needs {error.name}. Type: pip install 'fedal[onnx]'") from None

    class Logits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model.model

        def forward(self, x: Any) -> Any:
            return logits_of(self.inner(x))

    dtype = next(model.model.parameters()).dtype
    x = torch.randn(SAMPLES, *model.about.input_shape, dtype=dtype, generator=torch.Generator().manual_seed(0))
    buffer = io.BytesIO()
    with _silent_exporter():
        program = torch.onnx.export(
            Logits().eval(), (x,), dynamo=True, input_names=["x"], output_names=["logits"], verbose=False,
            dynamic_shapes=({0: torch.export.Dim("batch")},),
        )  # fmt: skip
        assert program is not None
        proto = program.model_proto
    for key, value in as_metadata(model.about, model.name).items():
        entry = proto.metadata_props.add()
        entry.key, entry.value = key, value
    onnx.checker.check_model(proto)
    buffer.write(proto.SerializeToString())
    session = onnxruntime.InferenceSession(buffer.getvalue(), providers=["CPUExecutionProvider"])
    distance = 0.0
    for part in (x, x[:1]):  # another batch size than the one it was traced with
        (found,) = session.run(["logits"], {"x": part.numpy()})
        expected = model.logits(part.numpy())
        distance = max(distance, float((np.abs(found - expected) / (1 + np.abs(expected))).max()))
    if not distance <= TOLERANCE:
        raise RunError(f"the ONNX model differs from PyTorch by {distance:.1e}; expected at most {TOLERANCE:g}.")
    return buffer.getvalue(), distance
