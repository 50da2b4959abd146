"""The AUC of the values of columns: each column has its own, and none is left out in silence."""

import numpy as np
import pytest

from megalith.tasks.evaluation import Evaluation
from megalith.tasks.grouped_evaluation import GroupedEvaluation


def auc_of(labels, logits):
    whole = Evaluation()
    whole.add(labels, logits)
    return whole.auc


def test_each_column_has_its_groups_and_the_rest_is_one():
    rng = np.random.default_rng(3)
    labels = rng.integers(2, size=4000).astype(np.float32)
    logits = rng.normal(size=4000).astype(np.float32)
    many = np.minimum(rng.geometric(0.2, 4000), 30).astype(str)
    few = rng.integers(3, size=4000).astype(str)

    grouped = GroupedEvaluation(max_groups=5)
    for start in range(0, 4000, 1000):
        part = slice(start, start + 1000)
        grouped.add({"many": many[part], "few": few[part]}, labels[part], logits[part])

    figures = grouped.figures()
    frequent = ["1", "2", "3", "4", "5"]
    expected = {f"auc many={v}": auc_of(labels[many == v], logits[many == v]) for v in frequent}
    rest = ~np.isin(many, frequent)
    expected["auc many, all other values"] = auc_of(labels[rest], logits[rest])
    for value in "012":
        expected[f"auc few={value}"] = auc_of(labels[few == value], logits[few == value])

    assert figures == pytest.approx(expected)


def test_groups_with_one_label_have_no_figure():
    grouped = GroupedEvaluation()
    grouped.add({"c": np.array(["a", "b", "b"])}, np.array([1.0, 0.0, 1.0]), np.zeros(3))
    assert grouped.figures() == {"auc c=b": 0.5}
