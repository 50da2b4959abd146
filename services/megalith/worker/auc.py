"""Area under the ROC curve."""

import numpy as np
from numpy.typing import NDArray


def auc(labels: NDArray[np.floating], scores: NDArray[np.floating]) -> float:
    """The chance that a positive scores above a negative, ties counting half; NaN without both kinds."""
    order = np.argsort(scores, kind="stable")
    _, starts, counts = np.unique(scores[order], return_index=True, return_counts=True)
    ranks = np.repeat(starts + (counts + 1) / 2, counts)  # equal scores share their mean rank
    positive = labels[order] > 0.5
    positives = int(positive.sum())
    negatives = labels.size - positives
    if not positives or not negatives:
        return float("nan")
    return float(
        (ranks[positive].sum() - positives * (positives + 1) / 2) / (positives * negatives)
    )
