"""The proxy A-distance: how well a classifier can tell two datasets apart (Ben-David et al. 2007)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_SAMPLES = 500  # of each dataset
FOLDS = 5


def proxy_a_distance(a: NDArray[Any], b: NDArray[Any], seed: int = 0) -> float:
    """2 * (1 - 2 * error) of a domain classifier on held-out samples; 0 = indistinguishable, 2 = always told apart.

    The classifier is a support vector machine with a Gaussian kernel on the inputs. The error is the mean of the errors
    on the two datasets, so unequal sizes do not matter. Worse than chance counts as 0. Labels are not used.
    """
    from sklearn.metrics import balanced_accuracy_score
    from sklearn.metrics.pairwise import rbf_kernel
    from sklearn.model_selection import StratifiedKFold, cross_val_predict
    from sklearn.svm import SVC

    draw = np.random.Generator(np.random.Philox(key=seed))
    sides = [_some(part.reshape(len(part), -1), draw) for part in (a, b)]
    x, domain = np.concatenate(sides).astype(np.float64), np.repeat([0, 1], [len(side) for side in sides])
    folds = min(FOLDS, *np.bincount(domain))
    if folds < 2:
        raise ValueError("a distance between datasets needs at least two samples of each")
    likeness = rbf_kernel(x, gamma=1 / (x.shape[1] * max(x.var(), 1e-12)))  # once, for all folds
    classifier = SVC(kernel="precomputed", class_weight="balanced")
    guesses = cross_val_predict(
        classifier, likeness, domain, cv=StratifiedKFold(folds, shuffle=True, random_state=seed)
    )
    error = 1 - float(balanced_accuracy_score(domain, guesses))
    return max(0.0, 2 * (1 - 2 * error))


def _some(samples: NDArray[Any], draw: np.random.Generator) -> NDArray[Any]:
    if len(samples) <= MAX_SAMPLES:
        return samples
    return samples[np.sort(draw.permutation(len(samples))[:MAX_SAMPLES])]
