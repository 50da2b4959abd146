"""Saves, increments and restores of two servers, each a process, without a cluster around them."""

import multiprocessing
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from report import report

from megalith.checkpoint.directory import increments
from megalith.checkpoint.layout import manifest
from megalith.checkpoint.layout.manifest import Link, Manifest, ShardFile
from megalith.checkpoint.restoring.restore import restore_shard
from megalith.checkpoint.saving.increment import save_increment, seal_all
from megalith.checkpoint.saving.save import save_shard
from megalith.engine.table.embedding_table import EmbeddingTable
from megalith.ps.store.store import Store
from megalith.schema import Adagrad, Segment, TableConfig, Zeros
from megalith.wire import routing

ROWS = int(os.environ.get("CHECKPOINT_ROWS", "10000000"))
NUM_PS = 2
TIMES = 3
BATCH = 65_536
CONFIG = TableConfig("t", (Segment(16, Zeros(), Adagrad(0.05)),))


class Shard:
    """What one server process does; it answers one call at a time."""

    def __init__(self, index: int, rows: int) -> None:
        self._index = index
        self._store = Store(index)
        current = routing.Routing(1, ("a",) * NUM_PS, routing.even_owners(NUM_PS), "run")
        self._store.route(current, is_initialized=True)
        self._store.adopt(table=EmbeddingTable(CONFIG))
        self._ids = ids_of(index, rows)
        self._sets: Any = None
        self._bytes = b""
        self._update(self._ids)
        self._warm_up()

    def _warm_up(self) -> None:
        """Compile every kernel, as a ps does before it serves."""
        with tempfile.TemporaryDirectory() as folder:
            base = Path(folder) / "model.ckpt-0"
            base.mkdir()
            store = Store(self._index)
            store.adopt(table=EmbeddingTable(CONFIG))
            store.tables()[0].assign(np.arange(100), np.zeros((100, 16), np.float32))
            files = save_shard(store, base, "s", 0, 1).files
            manifest.write(base, Manifest(0, 1, 1.0, tuple(files), save_id="s"))
            restore_shard(Store(0), base, routing.even_owners(1), 0)

    def _update(self, ids: np.ndarray) -> None:
        table = self._store.tables()[0]
        for begin in range(0, ids.size, BATCH):
            some = np.ascontiguousarray(ids[begin : begin + BATCH])
            ones = np.ones((some.size, 16), np.float32)
            table.apply_gradients(some, ones, req_time_s=1_700_000_000)

    def touch(self) -> int:
        """Update 1 % of the rows."""
        some = self._ids[: self._ids.size // 100]
        self._update(some)
        return some.size

    def save(self, folder: Path) -> list[ShardFile]:
        self._sets = seal_all(self._store)
        return save_shard(self._store, folder, "s", self._index, NUM_PS).files

    def save_increment(self, folder: Path) -> list[ShardFile]:
        saved = save_increment(self._store, self._sets, folder, "i", self._index, NUM_PS)
        return saved.shard.files

    def restore(self, base: Path) -> int:
        store = Store(self._index)
        return restore_shard(store, base, routing.even_owners(NUM_PS), self._index).rows

    def take(self, base: Path) -> None:
        """Read what this server has saved, so that it is in memory."""
        own = sorted(base.glob(f"*-ps-{self._index:05}-of-*"))
        self._bytes = b"".join(path.read_bytes() for path in own)

    def write_plainly(self, folder: Path) -> None:
        """Write it again."""
        memory = memoryview(self._bytes)
        with open(folder / f"plain-{self._index}", "wb", buffering=0) as file:
            for begin in range(0, len(self._bytes), 1 << 20):
                file.write(memory[begin : begin + (1 << 20)])

            os.fsync(file.fileno())

        self._bytes = b""


def ids_of(index: int, count: int) -> np.ndarray:
    """Random ids of one server."""
    drawn = np.random.default_rng(index).integers(0, 2**62, int(count * NUM_PS * 1.2))
    drawn = np.unique(drawn)
    own = drawn[routing.even_owners(NUM_PS)[routing.buckets_of(drawn)] == index]
    return np.random.default_rng(9).permutation(own)[:count]


def serve(index: int, rows: int, calls: Any) -> None:
    shard = Shard(index, rows)
    calls.send(None)
    while (call := calls.recv()) is not None:
        name, arguments = call
        calls.send(getattr(shard, name)(*arguments))


class Shards:
    """All server processes: each call goes to all of them at once."""

    def __init__(self, rows: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes = []
        for index in range(NUM_PS):
            ours, theirs = context.Pipe()
            arguments = (index, rows // NUM_PS, theirs)
            context.Process(target=serve, args=arguments, daemon=True).start()
            self._pipes.append(ours)

        self._answers()

    def _answers(self) -> list[Any]:
        return [pipe.recv() for pipe in self._pipes]

    def call(self, name: str, *arguments: Any) -> tuple[list[Any], float]:
        """What each returns, and the seconds that all of them took together."""
        began = time.perf_counter()
        for pipe in self._pipes:
            pipe.send((name, arguments))

        return self._answers(), time.perf_counter() - began

    def end(self) -> None:
        for pipe in self._pipes:
            pipe.send(None)


def measure() -> None:
    shards = Shards(ROWS)
    rounds = [one_round(shards) for _ in range(TIMES)]
    shards.end()

    def middle(name: str) -> float:
        return statistics.median(each[name] for each in rounds)

    megabytes = middle("megabytes")
    for name in ("plain_write", "full_save", "restore", "restore_again"):
        speed = megabytes / middle(name)
        report(f"checkpoint_{name}", speed, "MB/s", rows=ROWS, seconds=middle(name))

    shares = [each["plain_write"] / each["full_save"] for each in rounds]
    report("checkpoint_full_save_of_plain", statistics.median(shares), "share", rows=ROWS)
    for name in ("restore", "restore_again"):
        shares = [each["full_save"] / each[name] for each in rounds]
        share = statistics.median(shares)
        report(f"checkpoint_{name}_of_full_save", share, "share", rows=ROWS)

    touched = ROWS // 100
    report("checkpoint_increment", middle("increment"), "s", rows=ROWS, touched=touched)
    shares = [each["increment"] / each["full_save"] for each in rounds]
    report("checkpoint_increment_of_full", statistics.median(shares), "share", rows=ROWS)


def one_round(shards: Shards) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        base = folder / "model.ckpt-1"
        work = folder / "work"
        base.mkdir()
        work.mkdir()

        saved, full_s = shards.call("save", base)
        files = [file for each in saved for file in each]
        manifest.write(base, Manifest(1, NUM_PS, 1.0, tuple(files), save_id="base"))
        num_bytes = sum(file.bytes for file in files)
        shards.call("take", base)
        _, plain_s = shards.call("write_plainly", folder)

        shards.call("touch")
        saved, increment_s = shards.call("save_increment", work)
        files = [file for each in saved for file in each]
        link = Link("base", 1, manifest.sha256_of(base / manifest.MANIFEST))
        manifest.write(work, Manifest(2, NUM_PS, 2.0, tuple(files), save_id="i", link=link))
        increments.publish(work, base, 1)

        rows, restore_s = shards.call("restore", base)
        assert sum(rows) == ROWS // NUM_PS * NUM_PS
        _, again_s = shards.call("restore", base)
        return {
            "megabytes": num_bytes / 1e6,
            "plain_write": plain_s,
            "full_save": full_s,
            "increment": increment_s,
            "restore": restore_s,
            "restore_again": again_s,
        }
