"""A task that keeps a ledger: each time that example n is trained, row n grows by 1.

`data` are Parquet files or a Kafka topic with the column n. The variable `done` counts in the same
pushes how many examples each worker has trained. A worker that is killed is gone on with where its
last report says; so what it trained beyond its report is what is trained again.
"""

import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from megalith.client import Ids
from megalith.schema import Segment, Sgd, TableConfig, VariableConfig, Zeros
from megalith.tasks.input.columns import DenseColumn, Label
from megalith.tasks.input.dataset import Dataset
from megalith.tasks.input.examples import DataColumns
from megalith.tasks.input.file_stream import FileStream, StreamSettings
from megalith.tasks.input.index import DataIndex
from megalith.tasks.input.kafka import KafkaSettings, KafkaTopic, TopicAddress, is_topic
from megalith.tasks.input.pieced_tables import PiecedBlocks, PiecedFiles
from megalith.tasks.input.windows import Window
from megalith.worker.hooks import current_worker
from megalith.worker.numbered_input import NumberedInput
from megalith.worker.task import Gradients

SCHEMA = pa.schema([("n", pa.int64())])
TABLE = "trained"
MOST_WORKERS = 8


class LedgerTask:
    tables = (TableConfig(TABLE, (Segment(1, Zeros(), Sgd(1.0)),)),)
    variables = (VariableConfig("done", np.zeros(MOST_WORKERS, np.float32), Sgd(1.0)),)

    def __init__(
        self, data, batch_size, pause_s, epochs=1, follow_s=0.0, examples=0, is_numbered=False
    ):
        self._data = data
        self._batch_size = batch_size
        self._pause_s = pause_s
        self._epochs = epochs
        self._follow_s = follow_s
        self._examples = examples
        self._is_numbered = is_numbered  # as `megalith train ctr` reads files by default

    def input(self, mode, index, count):
        if is_topic(self._data):
            settings = KafkaSettings(self._batch_size, idle_s=6.0, linger_s=0.2, timeout_s=30.0)
            address = TopicAddress.parse(self._data)
            return KafkaTopic(address, SCHEMA, settings, index=index, count=count)
        if self._is_numbered:
            return self._numbered(index, count)
        stream = StreamSettings([self._data], Window(), self._batch_size, idle_s=0.1, poll_s=0.1)
        return FileStream(stream, SCHEMA, index=index, count=count)

    def _numbered(self, index, count):
        dataset = Dataset(
            DataIndex.build([self._data]),
            DataColumns(Label.parse("n>=0"), (), (DenseColumn("n"),)),
            batch_size=self._batch_size,
            num_tracks=count,
            shuffle_seed=1,
        )

        def batch(number):
            numbers = dataset.batch(number).examples.dense[:, 0]
            return pa.table({"n": numbers.astype(np.int64)})

        num_batches = dataset.batches_per_epoch * self._epochs
        return NumberedInput(batch, num_batches, index, count, self._batch_size, dataset.digest)

    def pieced_input(self, mode):
        """With `follow_s` each file is a piece, otherwise each row group."""
        if self._follow_s:
            stream = StreamSettings(
                [self._data], Window(), self._batch_size, idle_s=self._follow_s, poll_s=0.1
            )
            return PiecedFiles(stream, SCHEMA)
        return PiecedBlocks(
            DataIndex.build([self._data]),
            SCHEMA,
            batch_size=self._batch_size,
            epochs=self._epochs,
            shuffle_seed=1,
        )

    def num_examples(self, batch):
        return batch.num_rows

    def ids(self, batch):
        return {TABLE: Ids(batch.column("n").to_numpy())}

    def gradients(self, batch, rows, variables):
        time.sleep(self._pause_s)
        done = np.zeros(MOST_WORKERS, np.float32)
        done[current_worker().index] = -batch.num_rows
        return Gradients({TABLE: -np.ones((batch.num_rows, 1), np.float32)}, {"done": done}, 0.5)

    def evaluate(self, read):
        """How many examples were trained too seldom, and how often others were trained again."""
        if not self._examples:
            return {}

        parts = []
        for ids in np.array_split(np.arange(self._examples), 10):
            rows, _ = read({TABLE: Ids(ids)}, ())
            parts.append(rows[TABLE][:, 0] - self._epochs)
        surplus = np.concatenate(parts)
        return {
            "lost": float(abs(surplus[surplus < 0].sum())),
            "repeated": float(surplus[surplus > 0].sum()),
        }


def make_task(*, batch_size, num_examples, seed, **options):
    return LedgerTask(options.pop("data"), batch_size, **({"pause_s": 0.0} | options))


def path():
    return f"{Path(__file__)}:make_task"
