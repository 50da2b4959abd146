import numpy as np
import pytest
import torch

from megalith.tasks.auc import auc
from megalith.tasks.evaluation import Evaluation, OnlineEvaluation, StreamingAuc

COUNT = 400_000


def drawn(kind, rng):
    if kind == "normal":
        return rng.normal(-3, 1.5, COUNT)
    if kind == "narrow":
        return 2.0 + rng.random(COUNT) * 1e-4
    if kind == "sorted":
        return np.sort(rng.normal(0, 1, COUNT))
    if kind == "few values":
        return rng.integers(7, size=COUNT).astype(float)
    if kind == "wide":
        return rng.standard_cauchy(COUNT) * 1e6
    return np.concatenate([np.zeros(COUNT // 2), rng.normal(0, 1e-3, COUNT - COUNT // 2)])


@pytest.mark.parametrize(
    "kind", ["normal", "narrow", "sorted", "few values", "wide", "half at zero"]
)
@pytest.mark.parametrize("rate", [0.5, 0.003])
def test_the_streamed_auc_is_that_of_a_sort(kind, rate):
    """Scores that come in any order and spread, with room for an eighth of them."""
    rng = np.random.default_rng(1)
    scores = drawn(kind, rng)
    ranks = scores.argsort().argsort() / COUNT
    labels = (rng.random(COUNT) < rate * (0.5 + ranks)).astype(np.float32)

    streamed = StreamingAuc(num_kept=COUNT // 8 + (1 << 16))
    for part in np.array_split(np.arange(COUNT), 60):
        streamed.add(labels[part], scores[part])

    exact = auc(labels, scores)
    assert streamed.value() == pytest.approx(exact, abs=1e-4)


def test_few_scores_are_not_joined_at_all():
    rng = np.random.default_rng(2)
    labels, scores = rng.integers(2, size=1000), rng.integers(100, size=1000).astype(float)
    streamed = StreamingAuc()
    streamed.add(labels, scores)
    assert streamed.value() == pytest.approx(auc(labels, scores), abs=1e-12)


def test_without_both_labels_there_is_no_auc():
    streamed = StreamingAuc()
    assert np.isnan(streamed.value())
    streamed.add(np.ones(3), np.arange(3.0))
    assert np.isnan(streamed.value())


def test_log_loss_and_calibration_are_those_of_torch_and_of_a_sum():
    rng = np.random.default_rng(3)
    logits = rng.normal(-1, 2, 5000).astype(np.float32)
    labels = (rng.random(5000) < 0.3).astype(np.float32)
    evaluation = Evaluation()
    for part in np.array_split(np.arange(5000), 7):
        evaluation.add(labels[part], logits[part])

    figures = evaluation.figures()
    expected = torch.nn.functional.binary_cross_entropy_with_logits(
        torch.tensor(logits, dtype=torch.float64), torch.tensor(labels, dtype=torch.float64)
    )
    assert figures["log_loss"] == pytest.approx(float(expected), rel=1e-6)
    predicted = torch.sigmoid(torch.tensor(logits, dtype=torch.float64)).sum()
    assert figures["calibration"] == pytest.approx(float(predicted) / labels.sum(), rel=1e-9)
    assert figures["auc"] == pytest.approx(auc(labels, logits), abs=1e-12)


def test_a_certain_and_wrong_prediction_costs_much_but_not_infinity():
    evaluation = Evaluation()
    evaluation.add(np.array([0.0, 1.0]), np.array([900.0, -900.0]))
    assert evaluation.figures()["log_loss"] == pytest.approx(-np.log(1e-7), rel=1e-3)


def test_online_figures_are_those_of_all_examples_of_the_last_stretch():
    """Batches of 100 a second; stretches of 8 s, the first of 1, 2 and 4."""
    now = [0.0]
    online = OnlineEvaluation(stretch_s=8.0, clock=lambda: now[0])
    rng = np.random.default_rng(4)
    logits = rng.normal(0, 1, (40, 100))
    labels = (rng.random((40, 100)) < 0.4).astype(float)
    shown = []
    for number in range(40):
        now[0] += 1.0
        shown.append(online.add(labels[number], logits[number])["auc"])

    # By hand: the batches in which stretches end, and all their examples.
    for first, last in [(0, 0), (1, 2), (3, 6), (7, 14), (15, 22), (23, 30)]:
        whole = slice(first, last + 1)
        expected = auc(labels[whole].ravel(), logits[whole].ravel())
        assert shown[last] == pytest.approx(expected, abs=1e-12)


def test_before_the_first_stretch_is_over_the_figures_are_those_of_the_batch():
    online = OnlineEvaluation(stretch_s=8.0, clock=lambda: 0.0)
    labels, logits = np.array([0.0, 1.0, 1.0]), np.array([0.3, 0.2, 0.9])
    online.add(1 - labels, logits)
    assert online.add(labels, logits)["auc"] == pytest.approx(0.5)


def test_a_score_that_is_nan_has_no_auc_instead_of_a_rank():
    labels = np.array([1.0, 0.0, 1.0, 0.0], np.float32)
    scores = np.array([1.0, np.nan, 2.0, -1.0], np.float32)
    evaluation = Evaluation()
    evaluation.add(labels[:2], scores[:2])
    evaluation.add(labels[2:], scores[2:])
    assert np.isnan(evaluation.auc)
    assert np.isnan(auc(labels, scores))
