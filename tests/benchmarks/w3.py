"""Workload W3: 26 slots of ids, 13 dense columns, rows of 16 floats, batches of 4,096 examples.

A task that `local_train` and workers train, `w3.py:make_task`. DeepFM has a perceptron of 256 and
128 units; the linear model is one product with all vectors and dense columns of an example. Batches
are made before anything is timed; what a step costs begins with their raw ids.
"""

import os

import numpy as np
import w2

from megalith.client import (
    Adagrad,
    Feature,
    FeatureLayouts,
    Ragged,
    RandomUniform,
    Slice,
    VariableConfig,
)
from megalith.tasks.models.deepfm import DeepFm
from megalith.tasks.models.model import ModelGradients, ModelShape, layer_optimizer, stacked
from megalith.tasks.models.step import ModelStep
from megalith.worker.task import Gradients

DENSE = 13
HIDDEN = (256, 128)
BATCHES = int(os.environ.get("PEERS_W3_BATCHES", 32))
SLOTS = tuple(f"slot{number:02}" for number in range(w2.SLOTS))
OPTIMIZER = Adagrad(w2.RATE, initial_accumulator_value=w2.ACCUMULATOR)


class LinearOverVectors:
    """logit = bias + weights . [all vectors of the example, its dense columns]."""

    def __init__(self, shape):
        num_inputs = len(shape.features) * shape.dim + shape.num_dense
        rng = np.random.default_rng(shape.seed)
        weights = rng.normal(0, 1 / np.sqrt(num_inputs), num_inputs).astype(np.float32)
        self.slices = (Slice("vec", shape.dim, RandomUniform(-0.01, 0.01), OPTIMIZER),)
        self.layouts = {"vec": stacked(shape, "vec")}
        optimizer = layer_optimizer(shape.rate)
        self.variables = (
            VariableConfig("weights", weights, optimizer),
            VariableConfig("bias", np.zeros(1, np.float32), optimizer),
        )

    def forward(self, inputs, variables):
        vectors = inputs.layouts["vec"]
        side_by_side = vectors.reshape(len(vectors), -1)
        num_values = side_by_side.shape[1]
        weights = variables["weights"]
        logits = side_by_side @ weights[:num_values] + inputs.dense @ weights[num_values:]
        logits += variables["bias"]

        def backward(error):
            by_vector = np.outer(error, weights[:num_values]).reshape(vectors.shape)
            by_weight = np.concatenate([error @ side_by_side, error @ inputs.dense])
            by_variable = {"weights": by_weight, "bias": error.sum(keepdims=True)}
            return ModelGradients({"vec": by_vector}, by_variable)

        return logits, backward


MODELS = {"deepfm": DeepFm, "linear": LinearOverVectors}


def raw_batches(count=BATCHES):
    """(ids [examples, slots], dense columns, labels) of each batch, made as the peers make them."""
    rng = np.random.default_rng(7)
    made = []
    for rows in w2.batches()[:count]:
        dense = np.log1p(rng.exponential(1.0, (w2.EXAMPLES, DENSE))).astype(np.float32)
        keys = w2.keys_of(rows)
        uniform = (keys.view(np.uint64) >> np.uint64(40)).astype(np.float64) / 2**24
        effect = 2.0 * (uniform - 0.5).sum(axis=1)
        chance = 1 / (1 + np.exp(-(effect + dense[:, 0] - 1.5)))
        labels = (rng.random(w2.EXAMPLES) < chance).astype(np.float32)
        made.append((keys, dense, labels))
    return made


class W3Task:
    """One table for all slots, as the peers have it; with `num_tables` above 1 one for each."""

    def __init__(self, model, num_threads, num_tables, num_batches):
        shape = ModelShape(SLOTS, DENSE, dim=w2.DIM, hidden=HIDDEN, row_rate=w2.RATE)
        made = MODELS[model](shape)
        features = []
        for slot in SLOTS:
            table = "rows" if num_tables == 1 else slot
            features.append(Feature(slot, made.slices, table=table))
        layouts = FeatureLayouts(features, made.layouts)
        self._layouts = layouts
        self._step = ModelStep(made, layouts, num_threads)
        self._num_batches = num_batches
        self.tables = layouts.tables
        self.variables = made.variables

        splits = np.arange(w2.EXAMPLES + 1)
        self._data = []
        for keys, dense, labels in raw_batches():
            columns = np.ascontiguousarray(keys.T)
            ids = {slot: Ragged(columns[n], splits) for n, slot in enumerate(SLOTS)}
            self._data.append((ids, dense, labels))

    def num_batches(self):
        return self._num_batches

    def batch(self, number):
        ids, dense, labels = self._data[number % len(self._data)]
        return self._layouts.locate(ids), dense, labels

    def num_examples(self, batch):
        return w2.EXAMPLES

    def ids(self, batch):
        located, _, _ = batch
        return located.ids

    def gradients(self, batch, rows, variables):
        located, dense, labels = batch
        found = self._step.gradients(located, rows, variables, dense, labels)
        losses = np.logaddexp(0.0, found.logits) - labels * found.logits
        return Gradients(found.rows, found.variables, float(losses.mean()))

    def evaluate(self, read):
        return {"done": 1.0}


def make_task(*, batch_size, num_examples, seed, model="deepfm", num_threads=1, num_tables=1):
    """What a worker calls."""
    return W3Task(model, num_threads, num_tables, num_examples // w2.EXAMPLES)
