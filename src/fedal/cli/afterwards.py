"""Commands for trained models: `predict`, `export` and `card`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedal.cli.options import Trust

Model = Annotated[Path, typer.Argument(help="Trained weights: RUN/models/CLIENT.safetensors, or a site's --save file.")]


def predict(
    model: Model,
    file: Annotated[Path, typer.Argument(help="Samples: CSV, Parquet, .npz or a folder of images.")],
    out: Annotated[Path | None, typer.Option(help="CSV file to write.", show_default="FILE-predictions.csv")] = None,
    trust: Trust = False,
) -> None:
    """Predict classes and probabilities for the samples of a file, and write a table."""
    from fedal.durable import write_atomically
    from fedal.records.loaded_model import load_model
    from fedal.records.tables import as_csv

    loaded = load_model(model, trust=trust)
    probabilities = loaded.predict(loaded.read(file))
    path = out or Path(f"{file.stem}-predictions.csv")
    heads = ["row", "prediction", *(f"p({name})" for name in loaded.classes)]
    rows = [
        [row, loaded.classes[int(p.argmax())], *(f"{value:.6f}" for value in p)]
        for row, p in enumerate(probabilities, start=1)
    ]
    write_atomically(path, as_csv(heads, rows).encode())
    print(f"{path}: {len(rows):,} predictions of {loaded.name}")
    if loaded.lacking:
        print(f"{loaded.name} was trained without {len(loaded.lacking)} columns: they are imputed here too")


def export(
    model: Model,
    out: Annotated[Path, typer.Argument(help="File to write: .onnx, .ubj (XGBoost) or .txt (LightGBM).")],
    trust: Trust = False,
) -> None:
    """Export a trained model for use without fedal: ONNX, or the format of its own library."""
    from fedal.records.exporting import export as write
    from fedal.records.loaded_model import load_model

    print(f"{out}: {write(load_model(model, trust=trust), out)}")


def card(model: Model) -> None:
    """Print a model card in Markdown: data sizes, metrics before and after, what was revealed."""
    from fedal.records.model_card import model_card
    from fedal.records.model_files import read_model_file

    print(model_card(*read_model_file(model)), end="")
