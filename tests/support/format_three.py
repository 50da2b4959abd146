"""What tests/fixtures/checkpoint-v3 and -v4 hold: a checkpoint of that format, and an increment.

`save(folder)` wrote each when its format was the newest. The rows are those of first_checkpoint.py.
The increment has new embeddings of the first CHANGED ids of table item, and drops the DROPPED ids
after them.
"""

from dataclasses import replace

import numpy as np

from megalith.checkpoint.directory import increments
from megalith.checkpoint.layout import manifest
from megalith.checkpoint.layout.manifest import Link, Manifest
from megalith.checkpoint.saving.increment import save_increment, seal_all
from megalith.checkpoint.saving.save import save_shard
from megalith.engine.table.embedding_table import EmbeddingTable
from megalith.ps.store.store import Store
from megalith.wire import routing
from support import first_checkpoint as first

CHANGED = 10
DROPPED = 5
STEP = 120
NEW_VALUE = 7.5
NUM_PS = 2
TABLES = tuple(replace(config, touched_capacity=1000) for config in first.TABLES)


def expected_rows(config):
    """(ids, rows, times) after the increment, in the order of ids."""
    rows = first.rows_of(EmbeddingTable(config).layout.width)
    ids = first.IDS
    times = first.times()
    if config.name != first.ITEM.name:
        return ids, rows, times

    rows[:CHANGED, : config.dim] = NEW_VALUE
    kept = np.ones(ids.size, np.bool_)
    kept[CHANGED : CHANGED + DROPPED] = False
    return ids[kept], rows[kept], times[kept]


def save(model_dir):
    """Write the checkpoint and the increment."""
    current = routing.Routing(1, ("a",) * NUM_PS, routing.even_owners(NUM_PS), "run")
    stores = [Store(index) for index in range(NUM_PS)]
    for index, store in enumerate(stores):
        store.route(current, is_initialized=True)
        for config in TABLES:
            store.adopt(table=first._table(config, current, index))

    base = model_dir / f"model.ckpt-{STEP}"
    base.mkdir(parents=True)
    sets = [seal_all(store) for store in stores]
    files = []
    for index, store in enumerate(stores):
        files += save_shard(store, base, "0a1b2c3d", index, NUM_PS).files
    manifest.write(base, Manifest(STEP, NUM_PS, 1.0, tuple(files), save_id="0a1b2c3d"))
    _save_increment(stores, sets, current, model_dir, base)


def _save_increment(stores, sets, current, model_dir, base):
    work = model_dir / "work"
    work.mkdir()
    owner = current.owner_of(first.IDS)
    files = []
    for index, store in enumerate(stores):
        table = next(each for each in store.tables() if each.config.name == first.ITEM.name)
        changed = first.IDS[:CHANGED][owner[:CHANGED] == index]
        table.assign(changed, np.full((changed.size, first.ITEM.dim), NEW_VALUE, np.float32))
        gone = slice(CHANGED, CHANGED + DROPPED)
        table.erase(first.IDS[gone][owner[gone] == index])
        files += save_increment(store, sets[index], work, "1b2c3d4e", index, NUM_PS).shard.files

    link = Link("0a1b2c3d", 1, manifest.sha256_of(base / manifest.MANIFEST))
    content = Manifest(STEP + 1, NUM_PS, 2.0, tuple(files), save_id="1b2c3d4e", link=link)
    manifest.write(work, content)
    increments.publish(work, base, 1)
