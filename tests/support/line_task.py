"""A task without any table: a logistic model on two dense columns, by variables alone."""

import numpy as np

import megalith.client as mg
from megalith.tasks.api import FeatureBatch, FeatureTask, StepOutput


class LineTask(FeatureTask):
    """A label is 1 if the first column is greater than the second."""

    variables = (
        mg.VariableConfig("weights", np.zeros(2, np.float32), mg.Sgd(1.0)),
        mg.VariableConfig("steps", np.zeros(1, np.float32), mg.Sgd(1.0)),
    )

    def __init__(self, *, batch_size=100, num_examples=20_000, seed=1):
        self._batch_size = batch_size
        self._num_batches = num_examples // batch_size
        self._seed = seed

    def num_batches(self):
        return self._num_batches

    def batch(self, number):
        rng = np.random.default_rng([self._seed, number])
        columns = rng.normal(size=(self._batch_size, 2)).astype(np.float32)
        labels = columns[:, 0] > columns[:, 1]
        return FeatureBatch({}, labels.astype(np.float32), columns)

    def held_out(self):
        return [self.batch(1_000_000)]

    def step(self, batch, layouts, variables):
        logit = self.predict(batch, layouts, variables)
        error = 1 / (1 + np.exp(-logit)) - batch.labels
        loss = float(np.mean(np.logaddexp(0, logit) - batch.labels * logit))
        gradients = {"weights": error @ batch.dense / len(batch), "steps": -np.ones(1, np.float32)}
        return StepOutput(loss, variables=gradients)

    def predict(self, batch, layouts, variables):
        return batch.dense @ variables["weights"]
