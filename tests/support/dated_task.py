"""A task whose data has times: batch n trains id n, and is of day n."""

import numpy as np

from megalith.schema import Segment, Sgd, TableConfig
from megalith.worker.task import Gradients

DAY_S = 86_400
FIRST_S = 1_700_000_000


class DatedTask:
    tables = (TableConfig("seen", (Segment(1, optimizer=Sgd(1.0)),), expire_days=5),)
    variables = ()

    def __init__(self, days):
        self._days = days

    def num_batches(self):
        return self._days

    def batch(self, number):
        return number

    def num_examples(self, batch):
        return 1

    def ids(self, batch):
        return {"seen": np.array([batch])}

    def gradients(self, batch, rows, variables):
        time_s = FIRST_S + batch * DAY_S
        gradient = -np.ones((1, 1), np.float32)
        return Gradients({"seen": gradient}, {}, 0.5, time_s, {"day": float(batch)})

    def evaluate(self, read):
        return {}


def make_task(*, batch_size, num_examples, seed):
    return DatedTask(days=num_examples // batch_size)
