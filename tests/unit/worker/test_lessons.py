"""What a batch teaches, and batches whose values are not finite: they stop, or are left out."""

import logging

import numpy as np
import pytest

from megalith.client import Ids
from megalith.errors import NonFiniteValue, ShapeMismatch
from megalith.worker.batches import TrainingBatch
from megalith.worker.lessons import gradients_of, row_gradients
from megalith.worker.task import Gradients

BATCH = TrainingBatch(None, {"item": Ids([3])}, where="clicks.parquet, row group 2")
ONE = np.ones((1, 2), np.float32)
NAN = np.array([[1, np.nan]], np.float32)


class Answers:
    """A task whose gradients() gives that, or raises it."""

    def __init__(self, answer):
        self._answer = answer

    def gradients(self, batch, rows, variables):
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


def ask(answer, on_nan):
    return gradients_of(Answers(answer), BATCH, {}, {}, step=7, on_nan=on_nan)


def test_finite_values_are_taken():
    answer = Gradients({"item": ONE}, {"bias": ONE}, 0.5)
    assert ask(answer, "stop") is answer
    assert ask(answer, "skip") is answer


def test_gradients_are_of_all_ids_or_of_those_that_the_task_names():
    batch = TrainingBatch(None, {"item": Ids([3, 4, 5]), "user": Ids([6])})
    some = Ids([5])
    pushed = row_gradients(
        batch, Gradients({"item": ONE, "user": ONE}, {}, 0.5, trained_ids={"item": some})
    )
    assert pushed == {"item": (some, ONE), "user": (batch.ids["user"], ONE)}


def test_as_many_gradients_are_expected_as_there_are_ids_named():
    two = Ids([3, 4])
    with pytest.raises(ShapeMismatch, match="table item: 1 gradients for 2 ids"):
        ask(Gradients({"item": ONE}, {}, 0.5, trained_ids={"item": two}), "stop")


@pytest.mark.parametrize(
    "answer",
    [
        Gradients({"item": ONE}, {}, float("inf")),
        Gradients({"item": NAN}, {}, 0.5),
        Gradients({"item": ONE}, {"bias": NAN}, 0.5),
        NonFiniteValue("3 of 4 predictions are NaN"),
    ],
    ids=["loss", "rows", "variables", "raised"],
)
def test_a_batch_that_is_not_finite_stops_with_its_place_or_is_left_out(answer, caplog):
    with pytest.raises(NonFiniteValue) as raised:
        ask(answer, "stop")
    assert raised.value.__notes__ == ["step 7, clicks.parquet, row group 2"]

    with caplog.at_level(logging.WARNING):
        assert ask(answer, "skip") is None
    assert "batch left out at step 7, clicks.parquet, row group 2" in caplog.text
