"""Tasks for synchronous training: those of Monolith's notes, and two to compare with a reference."""

import os
import signal
import time
from typing import ClassVar

import numpy as np

import megalith.client as mg
from megalith.tasks.api import FeatureBatch, FeatureTask, StepOutput
from megalith.tasks.models import MODELS
from megalith.tasks.models.model import ModelShape
from megalith.tasks.models.step import ModelStep
from megalith.wire.reports import InputCounts
from megalith.worker.hooks import current_worker
from megalith.worker.input import Input, InputBatch
from megalith.worker.task import Gradients
from support.liked_task import LikedTask, drawn

RATE = mg.Adagrad(0.1, initial_accumulator_value=1.0)
SLICES = (mg.Slice("vec", 5, mg.Zeros(), RATE),)
STEPS = 5


class RaggedIds(FeatureTask):
    """One example with the ids 1 to 4, `STEPS` times for each worker; the loss is the sum."""

    features = (mg.Feature("feature", SLICES, combiner=mg.Sum()),)

    def __init__(self, *, batch_size=1, num_examples=0, seed=1, num_workers=2):
        self._num_batches = STEPS * num_workers

    def num_batches(self):
        return self._num_batches

    def batch(self, number):
        ids = mg.Ragged.of([[1, 2, 3, 4]])
        return FeatureBatch({"feature": ids}, np.zeros(1, np.float32))

    def step(self, batch, layouts, variables):
        return StepOutput(float(layouts["feature"].sum()), {"feature": np.ones((1, 5), np.float32)})


class FloatFeature(RaggedIds):
    """A dense column, which predictions are made of and nothing is learned from."""

    def batch(self, number):
        batch = super().batch(number)
        return FeatureBatch(batch.ids, batch.labels, dense=np.full((1, 3), 0.5, np.float32))

    def held_out(self):
        labels = np.array([0, 1], np.float32)
        ids = mg.Ragged.of([[1, 2], [3, 4]])
        return [FeatureBatch({"feature": ids}, labels, dense=np.eye(2, 3, dtype=np.float32))]

    def predict(self, batch, layouts, variables):
        return batch.dense.sum(1)


class SequenceFeature(RaggedIds):
    """The first two ids of a list, in their order."""

    features = (mg.Feature("feature", SLICES, combiner=mg.FirstN(2)),)

    def step(self, batch, layouts, variables):
        sequence = layouts["feature"]
        assert sequence.shape == (1, 2, 5)
        return StepOutput(float(sequence.sum()), {"feature": np.ones_like(sequence)})


class Numbers(Input):
    """1, 2, 3 and so on, up to `last`."""

    def __init__(self, last, as_batch):
        self._last = last
        self._as_batch = as_batch

    def batches(self, cursor):
        for number in range(int(cursor or b"0") + 1, self._last + 1):
            yield InputBatch(self._as_batch(number), str(number).encode())

    def remaining(self, cursor):
        return self._last - int(cursor or b"0")


class AddsNumbers:
    """No feature at all: the numbers 1 to `last` are added to a variable."""

    tables = ()
    variables = (mg.VariableConfig("total", np.zeros(1, np.float32), mg.Sgd(1.0)),)

    def __init__(self, lasts=(3, 3), as_batch=lambda number: number, **_):
        self._lasts = lasts
        self._as_batch = as_batch

    def input(self, mode, index, count):
        return Numbers(self._lasts[index], self._as_batch)

    def num_examples(self, batch):
        return 1

    def ids(self, batch):
        return {}

    def gradients(self, batch, rows, variables):
        number = batch["1"] if isinstance(batch, dict) else batch
        return Gradients({}, {"total": np.array([-number], np.float32)}, 0.0)

    def evaluate(self, read):
        _, variables = read({}, ["total"])
        return {"total": float(variables["total"][0])}


class EmbeddingUpdate:
    """Ids 1 to 4, from zero, by Adagrad(0.1, 1): a mean loss, so each rank's gradient is of its own."""

    tables = (mg.TableConfig("embedding", (mg.Segment(3, mg.Zeros(), RATE),)),)
    variables = ()

    def __init__(self, **_):
        pass

    def input(self, mode, index, count):
        return Numbers(10, lambda number: (index, number))

    def num_examples(self, batch):
        return 4

    def ids(self, batch):
        return {"embedding": np.array([1, 2, 3, 4, 2])}

    def gradients(self, batch, rows, variables):
        gradients = update_gradients(batch, rows["embedding"])
        return Gradients({"embedding": gradients}, {}, float((rows["embedding"] ** 2).mean()))

    def evaluate(self, read):
        rows, _ = read({"embedding": np.arange(1, 5)}, [])
        return {str(number): float(value) for number, value in enumerate(rows["embedding"].ravel())}


class DelayedUpdate(EmbeddingUpdate):
    """EmbeddingUpdate whose pushes bring the weights that they were computed on.

    Nothing is late in a step that all take together, so there is nothing to correct.
    """

    tables = (mg.TableConfig("embedding", (mg.Segment(3, mg.Zeros(), mg.Dc(RATE, 0.5)),)),)

    def gradients(self, batch, rows, variables):
        learned = super().gradients(batch, rows, variables)
        beside = np.concatenate([learned.rows["embedding"], rows["embedding"]], axis=1)
        return Gradients({"embedding": beside}, {}, learned.loss)


def update_gradients(batch, rows):
    """Of rows [5, 3] in a step of a rank; they depend on the values, the step and the rank."""
    index, number = batch
    targets = np.sin(np.arange(15, dtype=np.float32).reshape(5, 3) + number + 10 * index)
    return (rows - targets).astype(np.float32) / np.float32(5)


def updated_densely(num_ranks):
    """What EmbeddingUpdate learns in 10 steps, by a dense matrix and Adagrad's formula alone."""
    weights = np.zeros((5, 3), np.float32)
    accumulators = np.ones((5, 3), np.float32)
    ids = np.array([1, 2, 3, 4, 2])
    for number in range(1, 11):
        summed = np.zeros((5, 3), np.float32)
        for index in range(num_ranks):
            np.add.at(summed, ids, update_gradients((index, number), weights[ids]))

        accumulators += summed**2
        weights -= np.float32(0.1) * summed / np.sqrt(accumulators)
    return weights[1:]


class DeepFm(FeatureTask):
    """DeepFM of the built-in models on the films of LikedTask."""

    def __init__(self, *, batch_size=32, num_examples=1280, seed=1, joins=1):
        self._batch_size = batch_size
        self._num_examples = num_examples
        self._seed = seed
        self._joins = joins  # so many batches are one
        shape = ModelShape(features=("user", "film"), num_dense=1, dim=4, hidden=(8, 4))
        self._model = MODELS["deepfm"](shape)
        self.features = [mg.Feature(name, self._model.slices) for name in ("user", "film")]
        self.layouts = self._model.layouts
        self.variables = self._model.variables

    def num_batches(self):
        return self._num_examples // self._batch_size // self._joins

    def batch(self, number):
        parts = [
            drawn(self._seed, number * self._joins + each, self._batch_size)
            for each in range(self._joins)
        ]
        ids = {name: np.concatenate([part.ids[name] for part in parts]) for name in parts[0].ids}
        labels = np.concatenate([part.labels for part in parts])
        return FeatureBatch(ids, labels, dense=labels[:, np.newaxis] - 0.5)

    def held_out(self):
        return [self.batch(100_000)]

    def gradients(self, batch, rows, variables):
        step = ModelStep(self._model, self._layouts)
        given = batch.batch
        found = step.gradients(batch.located, rows, variables, given.dense, given.labels)
        losses = np.logaddexp(0.0, found.logits) - given.labels * found.logits
        return Gradients(found.rows, found.variables, float(losses.mean()))

    def predict(self, batch, layouts, variables):
        return np.zeros(len(batch), np.float32)


class MeanLoss(LikedTask):
    """LikedTask with gradients of rows that are of the mean loss; `scale` times as large."""

    def step(self, batch, layouts, variables):
        learned = super().step(batch, layouts, variables)
        scale = np.float32(self.options.get("scale", 1) / len(batch))
        scaled = {name: gradient * scale for name, gradient in learned.layouts.items()}
        return StepOutput(learned.loss, scaled, learned.variables)

    def batch(self, number):
        joins = self.options.get("joins", 1)
        size = self._batch_size // joins
        parts = [drawn(self._seed, number * joins + each, size) for each in range(joins)]
        ids = {name: np.concatenate([part.ids[name] for part in parts]) for name in parts[0].ids}
        return FeatureBatch(ids, np.concatenate([part.labels for part in parts]))


class NotFinite(LikedTask):
    """The batches of some numbers have a loss that is NaN."""

    bad: ClassVar = (3,)

    def batch(self, number):
        batch = super().batch(number)
        return FeatureBatch(batch.ids, batch.labels, fields={"number": np.full(64, number)})

    def step(self, batch, layouts, variables):
        learned = super().step(batch, layouts, variables)
        is_bad = batch.fields["number"][0] in self.bad
        return StepOutput(np.nan if is_bad else learned.loss, learned.layouts, learned.variables)


class LeavesOut(LikedTask):
    """Its input passes over some messages and files."""

    def read(self, mode, index, count):
        numbered = super().read(mode, index, count)
        numbered.left_out = lambda: InputCounts(skipped_messages=3, late_files=2)
        return numbered


class EndsItself(LikedTask):
    """The process of rank 1 is killed in its fourth step, hangs, or raises an error."""

    def step(self, batch, layouts, variables):
        learned = super().step(batch, layouts, variables)
        worker = current_worker()
        if worker.index == 1 and worker.global_step == 3:
            match self.options["how"]:
                case "killed":
                    os.kill(os.getpid(), signal.SIGKILL)
                case "hangs":
                    time.sleep(600)
                case "raises":
                    raise ZeroDivisionError("a mistake of rank 1")
                case "exits":
                    os._exit(3)
        return learned
