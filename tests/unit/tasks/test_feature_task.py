"""Figures of each step of a task of features."""

from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest

import megalith.client as mg
from megalith.errors import BadData, InvalidRequest
from megalith.local import local_train
from megalith.tasks.api import FeatureBatch, FeatureTask, GeneratedInput, StepOutput, auc
from megalith.worker.hooks import Hook
from support.liked_task import SLICES, LikedTask
from support.turns_task import TABLE, TakesTurns

SIZE = 500


class Noted(LikedTask):
    """Keeps what its step says of each batch, before it is trained."""

    def step(self, batch, layouts, variables):
        self.seen = getattr(self, "seen", [])
        self.seen.append((batch.labels, super().predict(batch, layouts, variables)))
        return super().step(batch, layouts, variables)


class Showing(Noted):
    shows_auc = True


class Heard(Hook):
    def __init__(self):
        self.metrics = []

    def after_step(self, worker, done):
        self.metrics.append(done.metrics)


def trained(task):
    """The run, and the figures of each of its steps."""
    heard = Heard()
    task.hooks = (heard,)
    return local_train(task, evaluates=False), heard.metrics


def test_a_step_shows_the_auc_of_what_was_predicted_before_it_was_trained():
    task = Showing(batch_size=SIZE, num_examples=SIZE)
    _, (figures,) = trained(task)
    ((labels, logits),) = task.seen
    probability = 1 / (1 + np.exp(-logits.astype(np.float64)))
    assert figures["auc"] == pytest.approx(auc(labels, logits), abs=1e-3)
    assert figures["calibration"] == pytest.approx(probability.sum() / labels.sum())
    assert figures["mean_label"] == pytest.approx(labels.mean())


def test_showing_the_auc_changes_nothing_that_is_learned():
    shown, with_figures = trained(Showing(batch_size=SIZE, num_examples=10 * SIZE))
    plain, without = trained(Noted(batch_size=SIZE, num_examples=10 * SIZE))
    assert shown.losses == plain.losses
    assert all("auc" in figures for figures in with_figures)
    assert not any("auc" in figures for figures in without)


def test_a_table_whose_layouts_get_no_gradient_gets_no_rows():
    """A push of zeros would make a row of each new id, which reads its initial values then."""

    class TrainsUsersOnly(LikedTask):
        features = (
            mg.Feature("user", SLICES, table="users"),
            mg.Feature("film", SLICES, table="films"),
        )
        layouts: ClassVar = {
            "user": mg.Layout.concat("user"),
            "film": mg.Layout.concat("film"),
        }

        def step(self, batch, layouts, variables):
            assert not layouts["film"].any()
            return StepOutput(0.5, {"user": np.ones_like(layouts["user"])})

    run = local_train(TrainsUsersOnly(), max_steps=2, evaluates=False)
    rows = run.model.rows_by_table()
    assert rows["films"] == 0
    assert rows["users"] > 0


@pytest.mark.parametrize("num_threads", [1, 2])
def test_a_feature_without_a_gradient_moves_no_row_of_a_table_that_it_shares(num_threads):
    task = TakesTurns()
    run = local_train(task, num_threads=num_threads)
    task.check(task.found, run.model.rows_by_table()[TABLE])


def test_examples_without_a_label_are_not_evaluated():
    class Unlabelled(LikedTask):
        def held_out(self):
            first, *others = super().held_out()
            return [*others, replace(first, labels=np.full(len(first), np.nan, np.float32))]

    with pytest.raises(BadData, match=r"Unlabelled: held-out examples without a label"):
        local_train(Unlabelled(), max_steps=1)


def test_labels_outside_0_to_1_are_not_evaluated():
    class Stars(LikedTask):
        def held_out(self):
            first, *others = super().held_out()
            return [*others, replace(first, labels=np.full(len(first), 5.0, np.float32))]

    wrong = r"Stars, held-out examples: \d+ of \d+ labels are outside 0..1, the first is 5.0"
    with pytest.raises(BadData, match=wrong):
        local_train(Stars(), max_steps=1)


def test_a_task_that_predicts_nothing_cannot_show_its_auc():
    class Silent(LikedTask):
        shows_auc = True

        def predict(self, batch, layouts, variables):
            return np.zeros((len(batch), 2), np.float32)

    with pytest.raises(InvalidRequest, match="expected one logit for each of"):
        trained(Silent(batch_size=SIZE, num_examples=SIZE))


class WithoutPredict(FeatureTask):
    """It reads on when it is asked for what is held out, as an input of lines does."""

    features = (mg.Feature("user", SLICES),)

    def read(self, mode, index, count):
        batch = FeatureBatch({"user": [1, 2]}, np.array([0, 1], np.float32))
        return GeneratedInput(lambda: [batch] * 3, index=index, count=count)

    def step(self, batch, layouts, variables):
        return StepOutput(0.5, {"user": np.ones_like(layouts["user"])})


def test_a_task_without_predict_is_trained_to_the_end_and_not_evaluated(caplog):
    run = local_train(WithoutPredict())
    assert run.step == 3
    assert run.figures == {}
    assert "WithoutPredict has no predict(): it is not evaluated" in caplog.text
