"""Checkpoints for tests, written by the stores of parameter servers."""

import numpy as np

from megalith.checkpoint.directory import catalog
from megalith.checkpoint.layout import manifest
from megalith.checkpoint.layout.manifest import Manifest
from megalith.checkpoint.saving.save import save_shard
from megalith.engine.table.embedding_table import EmbeddingTable
from megalith.engine.variable.variable import UpdateKind, Variable
from megalith.ps.store.store import Store
from megalith.schema import (
    Adagrad,
    AdmissionConfig,
    FilterKind,
    Ftrl,
    Segment,
    TableConfig,
    VariableConfig,
    Zeros,
)
from megalith.wire import routing

ITEM = TableConfig(
    "item",
    (
        Segment(1, Zeros(), Ftrl(0.5)),
        Segment(2, Zeros(), Adagrad(0.5, initial_accumulator_value=0.25)),
    ),
)
USER = TableConfig(
    "user id",
    (Segment(4, Zeros(), Adagrad(0.5)),),
    admission=AdmissionConfig(kind=FilterKind.SLIDING, threshold_by_slot={5: 2}, capacity=300),
    touched_capacity=1000,
)


def stores_with(rows, variables=None, num_ps=2):
    """Stores that hold rows and variables as a job would have spread them.

    `rows` of each table: its configuration, ids, embeddings, and the time of their update.
    """
    stores = [Store(index) for index in range(num_ps)]
    owners = routing.even_owners(num_ps)
    current = routing.Routing(1, ("a",) * num_ps, owners)
    for config, ids, values, time_s in rows:
        owner = current.owner_of(ids)
        for index, store in enumerate(stores):
            table = EmbeddingTable(config)
            mine = owner == index
            table.assign(ids[mine], values[mine], req_time_s=time_s)
            store.adopt(table=table)

    for name, value in (variables or {}).items():
        variable = Variable(VariableConfig(name, np.zeros_like(value), Adagrad(0.1)))
        variable.apply(UpdateKind.GRADIENT, value)
        stores[current.owner_of_name(name)].adopt(variable=variable)

    return stores


def write(stores, model_dir, step, saved_at_s=None):
    """Publish and list what the stores hold as a checkpoint of `step`; returns its folder."""
    saved_at_s = float(1_790_000_000 + step if saved_at_s is None else saved_at_s)
    model_dir.mkdir(parents=True, exist_ok=True)
    work = catalog.begin(model_dir, step, "0a1b2c3d")
    files = []
    for index, store in enumerate(stores):
        files += save_shard(store, work, "0a1b2c3d", index, len(stores)).files

    content = Manifest(
        step=step,
        num_ps=len(stores),
        saved_at_s=saved_at_s,
        files=tuple(files),
        save_id="0a1b2c3d",
    )
    manifest.write(work, content)
    path = catalog.publish(work, model_dir, step)
    catalog.record_latest(model_dir, path, saved_at_s)
    return path
