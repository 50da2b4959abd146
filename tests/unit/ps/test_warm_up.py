"""What a ps compiles before it serves is what its requests and its restore need."""

import numpy as np

from megalith.checkpoint.kernels import joining
from megalith.checkpoint.layout import manifest
from megalith.checkpoint.layout.manifest import Manifest
from megalith.checkpoint.restoring.restore import restore_shard
from megalith.checkpoint.saving.save import save_shard
from megalith.engine.kernels import batches, write
from megalith.engine.table.embedding_table import EmbeddingTable
from megalith.kernels import distinct
from megalith.ps.store.store import Store
from megalith.ps.warm_up import load_saved_row
from megalith.schema import Adagrad, Segment, TableConfig, Zeros
from megalith.wire import routing

CONFIG = TableConfig("t", (Segment(2, Zeros(), Adagrad(0.5)),))
RESTORING = (joining.join, write.write, distinct.distinct, batches.finite_rows)


def compiled():
    return [len(kernel.signatures) for kernel in RESTORING]


def test_after_a_warm_up_a_restore_compiles_nothing(tmp_path):
    table = EmbeddingTable(CONFIG)
    table.apply_gradients(np.arange(100), np.ones((100, 2), np.float32), req_time_s=1000)
    store = Store(0)
    store.adopt(table=table)
    files = save_shard(store, tmp_path, "s", 0, 1).files
    manifest.write(tmp_path, Manifest(0, 1, 1.0, tuple(files), save_id="s"))

    load_saved_row(CONFIG)
    before = compiled()
    report = restore_shard(Store(0), tmp_path, routing.even_owners(1), 0)

    assert report.rows == 100
    assert compiled() == before
