"""Saves while clients insert and update as fast as they can: no row of a checkpoint is torn.

Every push is a gradient of ones. So after k pushes each accumulator of a row is k + 1 and each of
its floats the k-th sum below: a row whose parts are of two moments fits no k.
"""

import threading

import numpy as np
import pytest

from megalith.checkpoint.inspection.verification import verify
from megalith.checkpoint.layout import manifest
from megalith.checkpoint.restoring.restore import restore_shard
from megalith.checkpoint.storage.location import locate
from megalith.client import Adagrad, Segment, TableConfig, Zeros, connect
from megalith.ps.store.store import Store
from megalith.wire import routing
from support.processes import Processes
from support.waiting import wait_until

DIM = 8
ROWS = 60_000
AT_ONCE = 2000
CLIENTS = 4
TABLE = TableConfig("known", (Segment(DIM, Zeros(), Adagrad(0.5, initial_accumulator_value=1.0)),))
GRADIENTS = np.ones((AT_ONCE, DIM), np.float32)


class Writer:
    """A client that pushes without a pause. `sent` and `acknowledged` count pushes by id."""

    def __init__(self, model_dir, seed, is_over):
        self.sent = np.zeros(ROWS, np.int64)
        self.acknowledged = np.zeros(ROWS, np.int64)
        self.error = None
        self._model_dir = model_dir
        self._chance = np.random.default_rng(seed)
        self._is_over = is_over
        self.thread = threading.Thread(target=self._run)

    def _run(self):
        try:
            with connect(model_dir=self._model_dir, timeout_s=100) as cluster:
                self._push(cluster)
        except Exception as error:
            self.error = error

    def _push(self, cluster):
        known = AT_ONCE
        while not self._is_over.is_set():
            known = min(ROWS, known + 50)  # the last ones are new: rows come meanwhile
            ids = self._chance.permutation(known)[:AT_ONCE]
            self.sent[ids] += 1
            cluster.push({TABLE.name: (ids, GRADIENTS)})
            self.acknowledged[ids] += 1


def values_by_pushes(most):
    """Row k: a float after k pushes."""
    accumulators = 1 + np.arange(most + 1, dtype=np.float64)
    steps = 0.5 / np.sqrt(accumulators)
    steps[0] = 0
    return -np.cumsum(steps)


def assert_not_torn(path, least, most):
    """Every row restores, and is what it was after some number of pushes in least..most."""
    assert verify(path).problems == []
    num_rows = 0
    seen = np.zeros(ROWS, np.bool_)
    for index in range(3):
        store = Store(index)
        restore_shard(store, path, routing.even_owners(3), index)
        dumped = store.tables()[0].dump(limit=ROWS + 1)
        embeddings = dumped.rows[:, :DIM]
        states = dumped.rows[:, DIM:]
        assert not seen[dumped.ids].any()
        seen[dumped.ids] = True
        num_rows += dumped.ids.size

        pushes = (states[:, 0] - 1).astype(np.int64)
        np.testing.assert_array_equal(states, np.repeat(pushes[:, None] + 1, DIM, axis=1))
        assert (pushes >= np.maximum(least[dumped.ids], 1)).all()
        assert (pushes <= most[dumped.ids]).all()
        expected = values_by_pushes(int(pushes.max(initial=0)))[pushes]
        np.testing.assert_allclose(embeddings, np.repeat(expected[:, None], DIM, axis=1), rtol=1e-4)

    assert num_rows == manifest.read(path).rows
    assert seen[least > 0].all()  # what was acknowledged before the save is in it


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("num_saves", [3, pytest.param(20, marks=pytest.mark.long)])
def test_no_row_of_a_save_under_full_load_is_torn_lost_or_twice(tmp_path, num_saves):
    is_over = threading.Event()
    with Processes(tmp_path) as processes:
        processes.start_cluster(num_ps=2, num_workers=0, increment_every_s=0, max_to_keep=50)
        job = processes.job()
        wait_until(lambda: job.status().phase == "running")
        model_dir = str(processes.model_dir)
        with connect(model_dir=model_dir, timeout_s=100) as cluster:
            cluster.create_tables(TABLE)

        writers = [Writer(model_dir, seed, is_over) for seed in range(CLIENTS)]
        try:
            for writer in writers:
                writer.thread.start()

            for _ in range(num_saves):
                save_and_check(job, writers)
        finally:
            is_over.set()
            for writer in writers:
                writer.thread.join(100)

        assert [writer.error for writer in writers] == [None] * CLIENTS


def save_and_check(job, writers):
    least = sum(writer.acknowledged.copy() for writer in writers)
    saved = job.save(timeout_s=100)
    most = sum(writer.sent.copy() for writer in writers)
    assert most.sum() > least.sum()  # there were pushes meanwhile
    assert_not_torn(locate(saved.path), least, most)
