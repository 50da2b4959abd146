"""A task that counts: each time that batch n is trained, each row of its examples grows by 1.

Batch n of s examples has the rows n * s and up.
"""

import time
from pathlib import Path

import numpy as np

from megalith.schema import Segment, Sgd, TableConfig
from megalith.worker.task import Gradients


class CountedTask:
    tables = (TableConfig("trained", (Segment(1, optimizer=Sgd(1.0)),)),)
    variables = ()

    def __init__(self, num_batches, batch_size=1, pause_s=0.0):
        self._num_batches = num_batches
        self._batch_size = batch_size
        self._pause_s = pause_s

    def num_batches(self):
        return self._num_batches

    def batch(self, number):
        return number

    def num_examples(self, batch):
        return self._batch_size

    def ids(self, batch):
        first = batch * self._batch_size
        return {"trained": np.arange(first, first + self._batch_size)}

    def gradients(self, batch, rows, variables):
        time.sleep(self._pause_s)
        grown = -np.ones((self._batch_size, 1), np.float32)
        return Gradients({"trained": grown}, {}, 0.5)

    def evaluate(self, read):
        return {}


def make_task(*, batch_size, num_examples, seed, pause_s=0.0):
    return CountedTask(num_examples // batch_size, batch_size, pause_s)


def path():
    return f"{Path(__file__)}:make_task"
