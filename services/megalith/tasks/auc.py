"""Area under the ROC curve, for `evaluate` of a task: plain NumPy, so yours can use it too."""

import numpy as np
from numpy.typing import NDArray


def auc(labels: NDArray[np.floating], scores: NDArray[np.floating]) -> float:
    """The chance that a positive scores above a negative, ties counting half.

    NaN without both kinds, and if a score is NaN: there is no order then.
    """
    if np.isnan(scores).any():
        return float("nan")

    order = np.argsort(scores, kind="stable")
    ordered = scores[order]
    _, starts, counts = np.unique(ordered, return_index=True, return_counts=True)
    mean_ranks = starts + (counts + 1) / 2  # equal scores share their mean rank
    ranks = np.repeat(mean_ranks, counts)

    is_positive = labels[order] > 0.5
    positives = int(is_positive.sum())
    negatives = labels.size - positives
    if not positives or not negatives:
        return float("nan")

    # The rank sum of the positives, less what it would be if they all scored lowest, counts the
    # pairs in which the positive scores higher.
    rank_sum = ranks[is_positive].sum()
    least = positives * (positives + 1) / 2
    num_pairs = positives * negatives
    return float((rank_sum - least) / num_pairs)
