"""Observe a run: send its rows to Weights & Biases while it trains. Needs `pip install wandb`.

python examples/callback_wandb.py
"""

from typing import Any

import wandb

import fedal
from fedal.simulate.callback import RunInfo


class WandB(fedal.Callback):
    def on_start(self, run: RunInfo, iteration: int) -> None:
        self.log = wandb.init(project="fedal", name=run.config.title, config=run.config.model_dump(mode="json"))

    def on_evaluation(self, run: RunInfo, row: dict[str, Any]) -> None:
        numbers = {f"{row['phase']}/{key}": value for key, value in row.items() if isinstance(value, float)}
        self.log.log(numbers, step=row["iteration"])

    def on_end(self, run: RunInfo, error: BaseException | None) -> None:
        self.log.finish(exit_code=1 if error else 0)


if __name__ == "__main__":
    config = fedal.Config(method="fedal", dataset="digits", clients=3, iterations=20, eval_every=10)
    print(fedal.run(config, "runs/wandb", callbacks=[WandB()]))
