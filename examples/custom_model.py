"""Bring your own models: any `nn.Module` that maps a batch to logits. Every client may have a different one.

python examples/custom_model.py
"""

import torch
from torch import Tensor, nn

import fedal


class Rows(nn.Module):
    """Reads an image row by row with a GRU."""

    def __init__(self, input_shape: tuple[int, ...], n_classes: int) -> None:
        super().__init__()
        self.read = nn.GRU(input_shape[-1], 48, batch_first=True)
        self.answer = nn.Linear(48, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.read(x[:, 0])
        logits: Tensor = self.answer(states[:, -1])
        return logits


def careful() -> nn.Module:
    """A plain network with dropout. The run's seed determines its masks, so a resumed run repeats them."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.3), nn.Linear(128, 10))


def main() -> None:
    torch.manual_seed(0)  # you initialise the modules that you create here
    config = fedal.Config(
        method="fedal",
        dataset="digits",
        iterations=150,
        clients=[
            {
                "name": "rows",
                "model": "custom_model:Rows",
            },  # by name: fedal creates it, with weights from the run's seed
            {"name": "careful"},  # as an object: see below
            {"name": "ready-made", "model": "cnn-small"},
        ],
    )
    run = fedal.run(config, models={"careful": careful()})

    for row in run.client_metrics:
        if row["final"]:
            print(f"{row['client']:<12} {row['model']:<16} {row['private_samples']:>4} private samples,", end=" ")
            print(f"test accuracy {row['test_accuracy']:.3f}")
    trained = run.model("careful")  # an ordinary nn.Module, in evaluation mode
    print(f"{sum(p.numel() for p in trained.parameters())} trained weights of careful, from {run.path}/models")


if __name__ == "__main__":
    main()
