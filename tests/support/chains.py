"""A job of some stores that saves checkpoints and increments, without a controller."""

import numpy as np

from megalith.checkpoint.directory import increments
from megalith.checkpoint.directory.increments import read_chain
from megalith.checkpoint.layout import manifest
from megalith.checkpoint.layout.manifest import Manifest
from megalith.checkpoint.restoring.restore import restore_shard
from megalith.checkpoint.saving.increment import save_increment, seal_all
from megalith.checkpoint.saving.save import save_shard
from megalith.ps.store.store import Store
from megalith.schema import (
    Adagrad,
    RandomUniform,
    Segment,
    TableConfig,
)
from megalith.wire import routing

DIM = 2


def config(name="t", **settings):
    return TableConfig(name, (Segment(DIM, RandomUniform(), Adagrad(0.5)),), **settings)


def routed(num_ps, run_id="run"):
    current = routing.Routing(1, ("a",) * num_ps, routing.even_owners(num_ps), run_id)
    stores = [Store(index) for index in range(num_ps)]
    for store in stores:
        store.route(current, is_initialized=True)
    return stores


def mine(store_index, num_ps, ids):
    return ids[routing.even_owners(num_ps)[routing.buckets_of(ids)] == store_index]


def train(stores, ids, time_s=0, table="t"):
    for index, store in enumerate(stores):
        own = mine(index, len(stores), ids)
        for each in store.tables():
            if each.config.name == table:
                each.apply_gradients(own, np.ones((own.size, DIM), np.float32), req_time_s=time_s)


class Chain:
    """Saves of a job whose servers are `stores`, as its controller would order them."""

    def __init__(self, stores, model_dir):
        self.stores = stores
        self.model_dir = model_dir
        self.base = model_dir / "model.ckpt-1"
        self.sets = []
        self.number = 0

    def save(self):
        self.base.mkdir(parents=True)
        self.sets = [seal_all(store) for store in self.stores]
        files = []
        for index, store in enumerate(self.stores):
            files += save_shard(store, self.base, "s", index, len(self.stores)).files
        manifest.write(
            self.base, Manifest(1, len(self.stores), 1.0, tuple(files), save_id="base-id")
        )

    def increment(self):
        self.number += 1
        work = self.model_dir / f"saving-{self.number}"
        work.mkdir()
        files = []
        for index, store in enumerate(self.stores):
            saved = save_increment(store, self.sets[index], work, "i", index, len(self.stores))
            files += saved.shard.files
            self.sets[index] = saved.sets
        step = 1 + self.number
        link = read_chain(self.base).next_link()
        manifest.write(
            work,
            Manifest(step, len(self.stores), float(step), tuple(files), save_id="i", link=link),
        )
        return increments.publish(work, self.base, link.number)


def restored(base, num_ps, run_id="run"):
    stores = [Store(index) for index in range(num_ps)]
    reports = []
    for index, store in enumerate(stores):
        reports.append(restore_shard(store, base, routing.even_owners(num_ps), index))
    current = routing.Routing(2, ("a",) * num_ps, routing.even_owners(num_ps), run_id)
    for store in stores:
        store.route(current, is_initialized=True)
    return stores, reports


def contents(stores, table="t"):
    """All rows in the order of their ids: ids, then embedding, state and time."""
    tables = [each for store in stores for each in store.tables() if each.config.name == table]
    parts = [each.dump(limit=1 << 19, with_expired=True) for each in tables]
    ids = np.concatenate([part.ids for part in parts])
    rows = np.concatenate([part.rows for part in parts])
    times = np.concatenate([part.times for part in parts])
    order = np.argsort(ids)
    return ids[order], np.column_stack([rows, times])[order]


def assert_same(after, before):
    np.testing.assert_array_equal(after[0], before[0])
    np.testing.assert_array_equal(after[1], before[1])
