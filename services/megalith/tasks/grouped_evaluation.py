"""The AUC of each value of a column, for a bounded number of values."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megalith.tasks.evaluation import Evaluation

MAX_GROUPS = 50  # of one column; the examples of other values are one group together
_KEPT_SCORES = 1 << 17  # of a group: 3 MB


class GroupedEvaluation:
    """Evaluations of the groups that the values of some columns make. Not for several threads.

    The first values of a column have groups of their own, those that are frequent in a batch before
    rare ones. The examples of all further values are one group.
    """

    def __init__(self, max_groups: int = MAX_GROUPS) -> None:
        self._max_groups = max_groups
        self._groups: dict[str, dict[str, Evaluation]] = {}  # by column and value
        self._others: dict[str, Evaluation] = {}  # by column

    def add(
        self,
        values_by_column: Mapping[str, NDArray[Any]],
        labels: NDArray[np.floating],
        logits: NDArray[np.floating],
    ) -> None:
        for column, values in values_by_column.items():
            different, numbers, counts = np.unique(values, return_inverse=True, return_counts=True)
            groups = self._groups.setdefault(column, {})
            is_grouped = np.zeros(values.size, bool)
            for number in np.argsort(-counts, kind="stable"):
                value = str(different[number])
                if value not in groups:
                    if len(groups) >= self._max_groups:
                        continue
                    groups[value] = Evaluation(_KEPT_SCORES)

                is_here = numbers == number
                is_grouped |= is_here
                groups[value].add(labels[is_here], logits[is_here])

            if not is_grouped.all():
                others = self._others.setdefault(column, Evaluation(_KEPT_SCORES))
                others.add(labels[~is_grouped], logits[~is_grouped])

    def figures(self) -> dict[str, float]:
        """The AUC of each group that has both labels; the largest of a column come first."""
        figures = {}
        for column, groups in self._groups.items():
            largest = sorted(groups.items(), key=lambda item: -item[1].num_examples)
            for value, evaluation in largest:
                figures[f"auc {column}={value}"] = evaluation.auc

            if column in self._others:
                figures[f"auc {column}, all other values"] = self._others[column].auc

        return {name: figure for name, figure in figures.items() if not np.isnan(figure)}
