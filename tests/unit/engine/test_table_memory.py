"""What tables take of a machine: memory only for what was written, few mappings, addresses that do
not run out."""

import gc
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from numba.core.runtime import _nrt_python, rtsys

from megalith.engine.kernels import index, scan
from megalith.engine.kernels.layout import CAPACITY, PARTITIONS, POOL, POOL_SLOTS, RECORD, SPILL
from megalith.engine.table.embedding_table import EmbeddingTable
from megalith.engine.table.limits import physical_bytes, reserve
from megalith.engine.table.reservation import ADDRESSES, Addresses
from megalith.errors import InvalidSetting, LimitExceeded
from megalith.ps.store.store import Store
from megalith.ps.store.writes import Sender, TableGradients
from megalith.schema import Adagrad, RandomUniform, Segment, Sgd, TableConfig, Zeros
from megalith.wire import routing
from megalith.wire.routing import Routing
from support.twins import table as twin

DAY_S = 86400
NARROW = TableConfig("t", (Segment(1, Zeros(), Sgd(1.0)),))
MAPPINGS_OF_A_TABLE = 6


def rss_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def num_mappings() -> int:
    with open("/proc/self/maps") as file:
        return sum(1 for _ in file)


def routed_store() -> Store:
    store = Store(0)
    store.route(Routing(3, ("a",), routing.even_owners(1)), True)
    return store


def ones(count: int, dim: int = 1) -> np.ndarray:
    return np.ones((count, dim), np.float32)


def test_a_reservation_may_be_collected_by_a_thread_that_counts_another_one() -> None:
    addresses = Addresses(most_mappings=80)

    def collected_meanwhile() -> None:
        with addresses._lock:
            addresses.take(4096, 2)
            addresses.give(4096, 2)

    thread = threading.Thread(target=collected_meanwhile, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    assert addresses.mappings == 0


def test_a_pass_over_a_large_empty_index_takes_no_memory() -> None:
    """10 rows in an index for 100 million: 2.7 GB if each line is written to."""
    table = EmbeddingTable(
        replace(NARROW, expire_days=1, initial_capacity=100_000_000, touched_capacity=4)
    )
    keys = np.arange(10)
    table.assign(keys, ones(10), DAY_S)
    before = rss_bytes()
    table.apply_gradients(keys, ones(10), req_time_s=3 * DAY_S)
    assert table.stats().touched_overflow > 0, "so that the touched bits of all rows are lifted"
    table.changes.seal()
    table.assign(keys[:5], ones(5), 10 * DAY_S)
    assert table.expire() == 5
    assert table.dump().ids.size == 5
    assert rss_bytes() - before < 100_000_000
    assert table.contains(keys).tolist() == [True] * 5 + [False] * 5


@pytest.mark.parametrize("rows", [2**32 - 2, physical_bytes() // 8])
def test_an_initial_capacity_beyond_the_machine_is_refused_when_the_table_is_created(
    rows: int,
) -> None:
    store = routed_store()
    with pytest.raises(InvalidSetting, match=f"table t: initial_capacity {rows} takes"):
        store.create_tables(3, [replace(NARROW, name="s"), replace(NARROW, initial_capacity=rows)])
    assert store.tables() == [], "neither of the two"


@pytest.mark.parametrize("capacity", [2**40 - 1, physical_bytes() // 8 + 1])
def test_touched_ids_beyond_the_machine_are_refused_before_anything_is_written(
    capacity: int,
) -> None:
    store = routed_store()
    with pytest.raises(InvalidSetting, match="table t: touched_capacity"):
        store.create_tables(3, [replace(NARROW, touched_capacity=capacity)])
    assert store.tables() == []
    store.create_tables(3, [NARROW])
    with pytest.raises(InvalidSetting, match="table t: touched_capacity"):
        store.create_tables(3, [replace(NARROW, touched_capacity=capacity, expire_days=3)])
    assert store.tables()[0].config == NARROW


def test_two_thousand_tables_of_width_16_work_on_one_server() -> None:
    store, count = routed_store(), 2000
    configs = [TableConfig(f"t{i:04}", (Segment(16, Zeros(), Adagrad(1.0)),)) for i in range(count)]
    mappings, memory = num_mappings(), rss_bytes()
    for begin in range(0, count, 500):
        store.create_tables(3, configs[begin : begin + 500])
    keys = np.array([7, -7, 2**62])
    parts = [TableGradients(config.name, keys, ones(3, 16)) for config in configs]
    for sequence, begin in enumerate(range(0, count, 500), 1):
        store.push(3, Sender("client", sequence), parts[begin : begin + 500], [])
    rows, _ = store.pull(3, [(config.name, keys) for config in configs], [])
    np.testing.assert_allclose(np.array(rows), -1 / np.sqrt(1.1), rtol=1e-5)
    assert store.rows == 3 * count
    assert num_mappings() - mappings <= MAPPINGS_OF_A_TABLE * count < 65530 / 4
    assert rss_bytes() - memory < 300_000_000
    assert min(table.stats().max_rows for table in store.tables()) > 10_000_000
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()


def test_tables_beyond_the_systems_mappings_are_refused_by_name_of_the_limit() -> None:
    template = np.zeros(1, np.float32)
    full = Addresses(most_mappings=80)
    full.take(0, 54)  # nine tables
    reserve(NARROW, template, twin.SECRET, full)
    full.take(0, MAPPINGS_OF_A_TABLE)
    with pytest.raises(
        LimitExceeded, match=r"table t: this process has 10 tables.*vm.max_map_count 80"
    ):
        reserve(NARROW, template, twin.SECRET, full)


def test_a_table_with_fewer_addresses_than_memory_is_logged_and_told_by_its_stats(
    caplog: pytest.LogCaptureFixture,
) -> None:
    template, scarce = np.zeros(1, np.float32), Addresses(most_mappings=10**7)
    scarce.take(Addresses.TOTAL, 6 * 100_000)
    with caplog.at_level(logging.WARNING):
        rows, _ = reserve(NARROW, template, twin.SECRET, scarce)
    assert f"table=t max_rows={rows.max_rows}" in caplog.text
    assert 1_000_000 < rows.max_rows < physical_bytes() // 4
    asked = 50_000_000
    rows, _ = reserve(replace(NARROW, initial_capacity=asked), template, twin.SECRET, scarce)
    assert rows.max_rows == asked, "what was asked for is there"
    assert EmbeddingTable(NARROW).stats().max_rows > asked


@pytest.mark.parametrize("memory", [24 << 30, 1 << 40], ids=["24 GB", "1 TB"])
@pytest.mark.parametrize("row_bytes", [8, 128, 512])
def test_addresses_never_run_out_whatever_the_machine(memory: int, row_bytes: int) -> None:
    """Each table reserves what fills the machine, with 72 bytes a row of index, or its share.

    And 0.7 GB of spill.
    """
    addresses, got = Addresses(most_mappings=10**7), []
    for number in range(8000):
        wanted = min(2**31, memory // row_bytes) * (row_bytes + 72)
        got.append(min(wanted, addresses.share(number)))
        addresses.take(got[-1] + (700 << 20), 6)
    assert sum(got) + 8000 * (700 << 20) < 0.98 * Addresses.TOTAL
    assert got[0] == min(2**31, memory // row_bytes) * (row_bytes + 72), (
        "the first has room for all of memory"
    )
    assert got[1999] > 4 << 30
    assert got[7999] > 1 << 30


LIMITED = """
import resource, sys
import numpy as np
from megalith.ps.store.store import Store
from megalith.wire import routing
from megalith.errors import LimitExceeded
from megalith.wire.routing import Routing
from megalith.schema import Segment, Sgd, TableConfig, Zeros
store = Store(0)
store.route(Routing(3, ("a",), routing.even_owners(1)), True)
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (used + (3 << 30),) * 2)
for number in range(10):
    try:
        store.create_tables(3, [TableConfig(f"{number}{x}", (Segment(1, Zeros(), Sgd()),)) for x in "ab"])
    except LimitExceeded as error:
        print(number, len(store.tables()), error)
        sys.exit()
"""


def test_addresses_that_the_system_refuses_are_an_error_and_no_table_is_half_created() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED], capture_output=True, text=True, check=True, timeout=60
    )
    number, num_tables, message = done.stdout.split(maxsplit=2)
    assert int(num_tables) == 2 * int(number) < 20
    assert "the system refuses addresses for 1024 rows" in message
    assert "ulimit -v" in message
    assert "max_rows=" in done.stderr, (
        "the last that were created have less room, and the log says so"
    )


def test_dropped_tables_give_their_addresses_back() -> None:
    gc.collect()
    before = ADDRESSES.mappings
    tables = [EmbeddingTable(NARROW) for _ in range(3)]
    assert ADDRESSES.mappings == before + 3 * MAPPINGS_OF_A_TABLE
    del tables
    gc.collect()
    assert ADDRESSES.mappings == before


def test_a_cleared_table_keeps_its_rows_on_small_pages_again() -> None:
    table = EmbeddingTable(replace(NARROW, initial_capacity=1))
    keys = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 1_200_000)
    table.assign(keys, np.ones((keys.size, 1), np.float32))
    table.clear()
    gc.collect()
    before = rss_bytes()
    table.assign(keys[:1000], ones(1000))
    assert rss_bytes() - before < 10_000_000, "32 huge pages are 64 MB"


def test_threads_that_grow_partitions_at_once_stay_within_the_budget() -> None:
    """With room for a few growth steps only, and 32 partitions that all want one."""
    memory = index_of_many()
    arrays, words = memory.arrays, np.zeros(POOL, np.int64)
    held = int(arrays.parts[CAPACITY::RECORD].sum() + arrays.parts[SPILL::RECORD].sum())
    words[POOL_SLOTS] = held + 5000
    gate = threading.Barrier(8)

    def grow(thread: int) -> None:
        gate.wait()
        for partition in range(thread, PARTITIONS, 8):
            scratch = np.empty(index.ROOM_SCRATCH, np.uint64)
            need = arrays.parts[partition * RECORD + CAPACITY] + 1
            index.grow(arrays.slots, arrays.parts, partition * RECORD, need, words, scratch)

    threads = [threading.Thread(target=grow, args=(thread,)) for thread in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    slots = int(arrays.parts[CAPACITY::RECORD].sum() + arrays.parts[SPILL::RECORD].sum())
    assert held < slots <= held + 5000


def index_of_many():  # type: ignore[no-untyped-def]
    """An index whose partitions have a thousand slots and more."""
    return reserve(replace(NARROW, initial_capacity=30_000), np.zeros(1, np.float32), twin.SECRET)[
        1
    ]


def test_a_dump_lets_writers_in_between_empty_homes() -> None:
    """An index for 30 million rows that holds three: with the latch held over all of it, a write
    waits for the pass."""
    table = EmbeddingTable(replace(NARROW, initial_capacity=30_000_000), secret=twin.SECRET)
    keys = np.array([twin.id_of(code << 59 | code) for code in (0, 1, 31)], np.int64)
    table.assign(keys, ones(3))
    parts = table._index.arrays.parts
    versions = parts[::RECORD].copy()
    assert table.dump().ids.tolist() == keys.tolist()
    entered = (parts[::RECORD] - versions) // 2
    lines = parts[CAPACITY::RECORD] // 4
    assert (entered >= lines // scan.CHUNK).all(), "once for each 256 homes at least"
    seen, offset = [], 0
    for _ in range(3):
        piece = table.dump(limit=1, offset=offset)
        seen, offset = [*seen, *piece.ids.tolist()], piece.offset
    assert seen == keys.tolist()


@pytest.fixture
def num_allocations() -> Iterator[Callable[[Callable[[], object]], int]]:
    """How many arrays the kernels of a call allocate."""
    _nrt_python.memsys_enable_stats()

    def count(call: Callable[[], object]) -> int:
        before = rtsys.get_allocation_stats().mi_alloc
        call()
        return int(rtsys.get_allocation_stats().mi_alloc - before)

    yield count
    _nrt_python.memsys_disable_stats()


def test_writes_allocate_nothing_for_the_blocks_that_they_latch(
    num_allocations: Callable[[Callable[[], object]], int],
) -> None:
    """Running out of memory under a latch would leave the partition latched for ever."""
    table = EmbeddingTable(
        TableConfig("t", (Segment(2, RandomUniform(), Adagrad(1.0)),), touched_capacity=10_000)
    )
    few, many = (
        np.arange(100),
        np.arange(1000, 5000),
    )  # 4,000 ids are 32 blocks and more, still one part of a batch
    for write in (
        table.reinitialize,
        lambda keys: table.assign(keys, ones(keys.size, 2)),
        lambda keys: table.apply_gradients(keys, ones(keys.size, 2)),
    ):
        for _ in range(2):  # new rows, and rows that there are
            assert num_allocations(lambda: write(few)) == num_allocations(lambda: write(many)) > 0  # noqa: B023
        table.clear()


def expecting(rows: int, config: TableConfig = NARROW) -> EmbeddingTable:
    table = EmbeddingTable(config)
    table.expect(rows)
    return table


def filled(table: EmbeddingTable, count: int) -> EmbeddingTable:
    ids = np.random.default_rng(5).permutation(10 * count)[:count]
    values = (ids % 1009).astype(np.float32)[:, None]
    assert table.assign(ids, values).created == count
    np.testing.assert_array_equal(table.lookup(ids), values)
    assert len(table) == count
    return table


def test_the_index_of_a_table_that_expects_its_rows_hardly_grows_while_they_come():
    table = expecting(300_000)
    empty_bytes = table.nbytes

    filled(table, 300_000)

    # The smallest of the 32 partitions may get some more ids than its share, and grow.
    assert table.nbytes - 300_000 * 4 < 1.05 * empty_bytes
    assert table.nbytes < 1.4 * filled(EmbeddingTable(NARROW), 300_000).nbytes


def test_more_rows_than_a_table_expects_find_room():
    filled(expecting(1000), 300_000)


def test_a_table_that_has_rows_or_a_budget_expects_nothing():
    held = filled(EmbeddingTable(NARROW), 100)
    before = held.nbytes
    held.expect(300_000)
    assert held.nbytes == before
    assert len(held) == 100

    bounded = replace(NARROW, memory_budget_bytes=1 << 20)
    assert expecting(300_000, bounded).nbytes == EmbeddingTable(bounded).nbytes
