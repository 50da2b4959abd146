"""Figures of merit over any number of examples, in memory that does not grow with them.

`StreamingAuc` keeps scores until there are too many, and then joins neighbouring ones into bins of
equal weight. A bin holds at most 1 / 2^16 of all examples. Two examples of one bin count as a tie,
and at least half of all examples are of one label, so that a joining moves the AUC by at most
1 / 2^16, however the scores are spread; in practice by far less, because most ties are between
examples whose order is nearly a coin toss.
"""

import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]

_BINS = 1 << 16
_KEPT = 1 << 20  # scores and bins before they are joined again: 24 MB
_STRETCH_S = 5.0  # as often as a line of metrics.jsonl is written
_LEAST = 1e-7  # of a probability: the log-loss of a wrong 0 or 1 is 16, not infinite


class StreamingAuc:
    """The area under the ROC curve of all that was added. Not for several threads."""

    def __init__(self, num_bins: int = _BINS, num_kept: int = _KEPT) -> None:
        self._num_bins = num_bins
        self._num_kept = num_kept

        self._scores: list[F64] = []
        self._positives: list[F64] = []  # the weight of each score among clicks
        self._negatives: list[F64] = []  # and among the others

        self._held = 0
        self._has_nan = False

    def add(self, labels: NDArray[np.floating], scores: NDArray[np.floating]) -> None:
        """Examples with labels 0 or 1 (above 0.5 counts as 1) and scores.

        With a score that is NaN there is no order, and so no area.
        """
        if np.isnan(scores).any():
            self._has_nan = True
            return

        is_positive = (labels > 0.5).astype(np.float64)
        self._scores.append(scores.astype(np.float64))
        self._positives.append(is_positive)
        self._negatives.append(1.0 - is_positive)

        self._held += labels.size
        if self._held > self._num_kept:
            self._join()

    def value(self) -> float:
        """The chance that a positive scores above a negative, ties counting half.

        NaN without both kinds, and if a score was NaN.
        """
        self._sort()
        if self._has_nan or not self._held:
            return float("nan")

        positives = self._positives[0]
        negatives = self._negatives[0]
        pairs = positives.sum() * negatives.sum()
        if not pairs:
            return float("nan")

        below = np.cumsum(negatives) - negatives
        won = positives * (below + negatives / 2)
        return float(won.sum() / pairs)

    def _sort(self) -> None:
        """One entry for each different score, in their order."""
        if not self._scores:
            return

        all_scores = np.concatenate(self._scores)
        positives = np.concatenate(self._positives)
        negatives = np.concatenate(self._negatives)

        scores, numbers = np.unique(all_scores, return_inverse=True)

        self._scores = [scores]
        self._positives = [_sums(numbers, positives, scores.size)]
        self._negatives = [_sums(numbers, negatives, scores.size)]

        self._held = scores.size

    def _join(self) -> None:
        self._sort()
        scores = self._scores[0]
        positives = self._positives[0]
        negatives = self._negatives[0]
        weights = positives + negatives

        before = np.cumsum(weights) - weights
        bins_per_weight = self._num_bins / weights.sum()
        exact_bins = before * bins_per_weight
        bins = exact_bins.astype(np.int64)

        _, starts, numbers = np.unique(bins, return_index=True, return_inverse=True)
        num_joined = starts.size

        score_sums = np.add.reduceat(scores * weights, starts)
        weight_sums = np.add.reduceat(weights, starts)
        middles = score_sums / weight_sums

        self._scores = [middles]
        self._positives = [_sums(numbers, positives, num_joined)]
        self._negatives = [_sums(numbers, negatives, num_joined)]
        self._held = num_joined


def _sums(numbers: NDArray[np.intp], weights: F64, count: int) -> F64:
    """The weights of each number from 0 to `count`, added up."""
    return np.bincount(numbers, weights, count).astype(np.float64)


class Evaluation:
    """AUC, log-loss and calibration of predictions against labels. Not for several threads."""

    def __init__(self, num_kept: int = _KEPT) -> None:
        self._auc = StreamingAuc(num_kept=num_kept)
        self._log_loss = 0.0
        self._predicted = 0.0
        self._clicked = 0.0
        self.num_examples = 0

    def add(self, labels: NDArray[np.floating], logits: NDArray[np.floating]) -> None:
        wide = logits.astype(np.float64)
        exponents = np.clip(wide, -500.0, 500.0)  # so that exp does not overflow
        odds_against = np.exp(-exponents)
        probability = 1.0 / (1.0 + odds_against)

        bounded = np.clip(probability, _LEAST, 1.0 - _LEAST)
        if_clicked = labels * np.log(bounded)
        if_not = (1.0 - labels) * np.log1p(-bounded)
        log_likelihoods = if_clicked + if_not

        self._auc.add(labels, wide)
        self._log_loss -= float(log_likelihoods.sum())
        self._predicted += float(probability.sum())
        self._clicked += float(labels.sum())

        self.num_examples += labels.size

    @property
    def auc(self) -> float:
        return self._auc.value()

    def figures(self) -> dict[str, float]:
        """By name. `calibration` is predicted clicks / clicks: above 1 the model says too much."""
        nothing = float("nan")
        count = self.num_examples
        return {
            "auc": self.auc,
            "log_loss": self._log_loss / count if count else nothing,
            "calibration": self._predicted / self._clicked if self._clicked else nothing,
        }


class OnlineEvaluation:
    """Evaluate, then train: figures of examples that the model has not been trained on yet.

    Time is divided into stretches of five seconds; the first ones are shorter, so that figures come
    soon. What is shown are the figures over all examples of the last whole stretch. Not for several
    threads.
    """

    def __init__(
        self, stretch_s: float = _STRETCH_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stretch_s = stretch_s
        self._clock = clock

        self._length_s = stretch_s / 8
        self._began_at = clock()

        self._stretch = Evaluation()
        self._last: dict[str, float] | None = None

    def add(self, labels: NDArray[np.floating], logits: NDArray[np.floating]) -> dict[str, float]:
        """Add a batch that was scored; the figures of the last whole stretch.

        Before the first stretch is over, they are those of the batch alone.
        """
        self._stretch.add(labels, logits)
        now = self._clock()
        if now - self._began_at >= self._length_s:
            self._last = self._stretch.figures()
            self._stretch = Evaluation()
            self._began_at = now
            self._length_s = min(2 * self._length_s, self._stretch_s)

        if self._last is not None:
            return self._last

        batch = Evaluation()
        batch.add(labels, logits)
        return batch.figures()
