"""A model card in Markdown: what the model is, its data, its metrics before and after, and what was revealed."""

from __future__ import annotations

from fedal.metrics.table import column
from fedal.records.model_files import ModelFile
from fedal.records.numbers import NONE, share, signed, size
from fedal.records.tables import as_markdown, escape_markdown


def model_card(about: ModelFile, name: str) -> str:
    model, training = about.models[name], about.training
    shape = " x ".join(map(str, about.input_shape))
    schema = f"schema {about.data_schema.sha256[:16]}" if about.data_schema else "no schema"
    positive = f", positive: {about.positive}" if about.positive else ""
    sent = f"{size(model.up_bytes)} uploaded" if model.up_bytes is not None else "uploads not counted"
    received = f" It received {training.received}." if training.received else ""  # absent in older files
    clients = f"{training.clients} clients, " if training.clients is not None else ""
    lacking = f"; {len(model.lacking)} columns of the schema are lacking, and imputed" if model.lacking else ""
    rows = [
        [_words(key), share(model.before[key]) if key in model.before else NONE, share(value),
         signed(value - model.before[key]) if key in model.before else NONE]
        for key, value in model.metrics.items()
    ]  # fmt: skip
    parts = [
        f"# Model of {name}",
        f"- **Model**: {escape_markdown(model.model)}, inputs {shape} ({schema}), fedal {about.fedal}\n"
        f"- **Classes**: {escape_markdown(', '.join(about.classes))}{escape_markdown(positive)}\n"
        f"- **Own training data**: {model.private_samples:,} samples, which never left their owner{lacking}\n"
        f"- **Training**: {escape_markdown(training.method)}, {clients}{training.iterations:,} "
        f"iterations, dataset {escape_markdown(training.dataset)}, seed {training.seed}",
        "## Metrics\n\nBefore: as the owner brought the model, before the first step. After: the final model, not the "
        "best one. docs/metrics.md has the definitions.",
        as_markdown(["metric", "before", "after", "difference"], rows) if rows else "None was recorded.",
        f"## What was revealed\n\nThe owner sent {training.reveals}, as "
        f"{', '.join(training.messages) or 'no messages'} ({sent}).{received} "
        "Outputs leak information about training data; docs/security.md says what is protected.",
        f"## Use\n\n`{about.load.replace('NAME', name)}`",
        "## To be filled in by the owner\n\nIntended use, people affected, known weaknesses, date of review.",
    ]
    return "\n\n".join(parts) + "\n"


def _words(key: str) -> str:
    try:
        return column(key).words
    except Exception:  # a column of another version
        return escape_markdown(key)
