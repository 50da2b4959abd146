"""Speed of saves, increments and restores; one JSON object a line.

    python tests/benchmarks/checkpoint.py

CHECKPOINT_ROWS rows (10 M) of 16 floats and 16 Adagrad accumulators on two servers in one process,
each saving and restoring on a thread of its own, into a temporary folder (TMPDIR says where).

plain_write    the bytes of the full save again, in two files, by write and fsync
full_save      all rows, training idle
increment      after 1 % of the rows were updated; `share` is its time over that of the full save
restore        the checkpoint and the increment, into two servers
"""

import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from report import report

from megalith.checkpoint import increments, manifest
from megalith.checkpoint.increment import save_increment, seal_all
from megalith.checkpoint.manifest import Link, Manifest, ShardFile
from megalith.checkpoint.restore import restore_shard
from megalith.checkpoint.save import save_shard
from megalith.engine.table.embedding_table import EmbeddingTable
from megalith.ps.store.store import Store
from megalith.schema import Adagrad, Segment, TableConfig, Zeros
from megalith.wire import routing

ROWS = int(os.environ.get("CHECKPOINT_ROWS", "10000000"))
NUM_PS = 2
BATCH = 65_536
CONFIG = TableConfig("t", (Segment(16, Zeros(), Adagrad(0.05)),))


def on_all_servers(work: Callable[[int], Any]) -> tuple[list[Any], float]:
    """What each server returns, and the seconds that all of them took together."""
    began = time.perf_counter()
    with ThreadPoolExecutor(NUM_PS) as pool:
        results = list(pool.map(work, range(NUM_PS)))

    return results, time.perf_counter() - began


def ids_of(index: int, count: int) -> np.ndarray:
    """Random ids of one server."""
    drawn = np.random.default_rng(index).integers(0, 2**62, int(count * NUM_PS * 1.2))
    drawn = np.unique(drawn)
    own = drawn[routing.even_owners(NUM_PS)[routing.buckets_of(drawn)] == index]
    return np.random.default_rng(9).permutation(own)[:count]


def update(store: Store, ids: np.ndarray) -> None:
    table = store.tables()[0]
    for begin in range(0, ids.size, BATCH):
        some = np.ascontiguousarray(ids[begin : begin + BATCH])
        table.apply_gradients(some, np.ones((some.size, 16), np.float32), req_time_s=1_700_000_000)


def write_plainly(directory: Path, num_bytes: int) -> float:
    """Seconds to write so many bytes into one file for each server."""
    block = np.random.default_rng(0).bytes(16 << 20)
    each = num_bytes // NUM_PS

    def write(index: int) -> None:
        with open(directory / f"plain-{index}", "wb", buffering=0) as file:
            for begin in range(0, each, len(block)):
                file.write(block[: min(len(block), each - begin)])

            os.fsync(file.fileno())

    return on_all_servers(write)[1]


def bytes_of(files: list[ShardFile]) -> int:
    return sum(file.bytes for file in files)


def main() -> None:
    stores = [Store(index) for index in range(NUM_PS)]
    current = routing.Routing(1, ("a",) * NUM_PS, routing.even_owners(NUM_PS), "run")
    ids = [ids_of(index, ROWS // NUM_PS) for index in range(NUM_PS)]
    for index, store in enumerate(stores):
        store.route(current, is_initialized=True)
        store.adopt(table=EmbeddingTable(CONFIG))
        update(store, ids[index])

    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder), stores, ids)


def measure(folder: Path, stores: list[Store], ids: list[np.ndarray]) -> None:
    base = folder / "model.ckpt-1"
    base.mkdir()
    sets = [seal_all(store) for store in stores]
    shards, full_s = on_all_servers(
        lambda index: save_shard(stores[index], base, "s", index, NUM_PS)
    )
    files = [file for shard in shards for file in shard.files]
    manifest.write(base, Manifest(1, NUM_PS, 1.0, tuple(files), save_id="base"))
    megabytes = bytes_of(files) / 1e6
    plain_s = write_plainly(folder, bytes_of(files))
    report("checkpoint_plain_write", megabytes / plain_s, "MB/s", rows=ROWS)
    report("checkpoint_full_save", megabytes / full_s, "MB/s", rows=ROWS, seconds=full_s)
    report("checkpoint_full_save_of_plain", plain_s / full_s, "share", rows=ROWS)

    for index, store in enumerate(stores):
        update(store, ids[index][: ids[index].size // 100])

    work = folder / "work"
    work.mkdir()
    saved, increment_s = on_all_servers(
        lambda index: save_increment(stores[index], sets[index], work, "i", index, NUM_PS)
    )
    changed = [file for each in saved for file in each.shard.files]
    link = Link("base", 1, manifest.sha256_of(base / manifest.MANIFEST))
    manifest.write(work, Manifest(2, NUM_PS, 2.0, tuple(changed), save_id="i", link=link))
    increments.publish(work, base, 1)
    report("checkpoint_increment", increment_s, "s", rows=ROWS, touched=ROWS // 100)
    report("checkpoint_increment_of_full", increment_s / full_s, "share", rows=ROWS)

    restored = [Store(index) for index in range(NUM_PS)]
    owners = routing.even_owners(NUM_PS)
    reports, restore_s = on_all_servers(
        lambda index: restore_shard(restored[index], base, owners, index)
    )
    assert sum(each.rows for each in reports) == sum(len(s.tables()[0]) for s in stores)
    report("checkpoint_restore", megabytes / restore_s, "MB/s", rows=ROWS, seconds=restore_s)


if __name__ == "__main__":
    main()
