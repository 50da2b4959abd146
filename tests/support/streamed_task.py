"""A task that counts, like `counted_task`, with an input of its own: lines with a time.

Worker i of n reads the lines i, i + n and so on; its cursor is the line at which it goes on.
"""

import numpy as np

from megalith.worker.input import Input, InputBatch
from support.counted_task import CountedTask

FIRST_S = 1_700_000_000


class Lines(Input):
    def __init__(self, end, index, count):
        self._end = end
        self._index = index
        self._count = count

    def batches(self, cursor):
        first = int(cursor) if cursor else self._index
        for line in range(first, self._end, self._count):
            after = b"%d" % (line + self._count)
            yield InputBatch(line, after, FIRST_S + line, f"line {line}")

    def resumed(self, saved, index, count):
        """Another number of workers goes on at the first line that somebody had not read."""
        lines = [int(cursor) if cursor else worker for worker, cursor in enumerate(saved)]
        if len(saved) == count:
            return b"%d" % lines[index]
        return b"%d" % (min(lines) + index)


class StreamedTask:
    """The same model; what differs is that it has no numbers."""

    tables = CountedTask.tables
    variables = ()

    def __init__(self, *, batch_size, num_examples, seed):
        self._end = num_examples
        self._counted = CountedTask(0)

    def input(self, mode, index, count):
        return Lines(self._end, index, count)

    def num_examples(self, batch):
        return 1

    def ids(self, batch):
        return {"trained": np.array([batch])}

    def gradients(self, batch, rows, variables):
        return self._counted.gradients(batch, rows, variables)

    def evaluate(self, read):
        return {}
