"""Bring your own data: arrays or tensors x and y, or an .npz file. Here three hospitals learn about tumours together.

python examples/custom_data.py
"""

import tempfile
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer

import fedal
from fedal.data import from_tensors

HOSPITALS = [{"name": "north"}, {"name": "south"}, {"name": "west"}]


def main() -> None:
    x, y = load_breast_cancer(return_X_y=True)  # 569 tumours: 30 measurements each, malignant or benign
    x = ((x - x.mean(0)) / x.std(0)).astype(np.float32)
    data = from_tensors(x, y, name="tumours", class_names=["malignant", "benign"])  # a fifth is held out for testing
    print(data)

    # If you give no public samples, fedal takes some from x and drops their labels.
    settings = dict(clients=HOSPITALS, alpha=0.3, iterations=100, batch_size=16)
    for method in ("local", "fedal"):
        run = fedal.run(fedal.Config(method=method, **settings), data=data)
        final = run.final
        print(f"{method:<6} accuracy {final['test_accuracy']:.3f}, worst hospital {final['test_accuracy_min']:.3f}")

    with tempfile.TemporaryDirectory() as folder:  # the same from a file; also: fedal run --data tumours.npz
        file = Path(folder) / "tumours.npz"
        np.savez(file, x=x, y=y)
        again = fedal.run(fedal.Config(method="fedal", data=str(file), **settings))
    same = again.final["test_accuracy"] == final["test_accuracy"]
    print(f"from a file: {again.final['test_accuracy']:.3f}, {'the same' if same else 'not the same'}")


if __name__ == "__main__":
    main()
