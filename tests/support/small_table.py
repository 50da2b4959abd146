"""The memory of a table without the table: for tests that call its kernels one by one."""

import numpy as np
from hypothesis import strategies as st

from megalith.engine.kernels import actions, gather, scan
from megalith.engine.kernels.index import begin_of, end_of
from megalith.engine.kernels.layout import PARTITIONS, POOL_FREE, POOL_NEXT, RECORD
from megalith.engine.table.delta_log import DeltaLog
from megalith.engine.table.index import IndexMemory
from megalith.engine.table.row_layout import RowLayout
from megalith.engine.table.rows import RowMemory
from megalith.engine.table.writer import EVERYTHING, Writer
from megalith.kernels.dtypes import F32, I64
from megalith.schema import Segment, Sgd, TableConfig, Zeros
from support.twins import table as twin

DIM = 2
NEVER = np.empty(0, np.int64)  # as `expire_s`: no row expires

# Keys whose codes meet in a few cache lines of two partitions: clusters run through several homes.
crowded_keys = st.builds(
    lambda partition, line, low: twin.id_of(partition << 59 | line << 53 | low),
    st.sampled_from([0, 1, 31]),
    st.integers(20, 23),
    st.integers(0, 25),
)


class _LastNoted(DeltaLog):
    """A log that shows what the last write has noted."""

    noted = np.empty(0, np.int64)

    def note(self, ids: I64) -> int:
        self.noted = ids
        return super().note(ids)


class SmallTable:
    """Rows of two floats. Row and time of a key are told by what was added, in the order it was."""

    def __init__(self, **settings) -> None:
        config = TableConfig("t", (Segment(DIM, Zeros(), Sgd(1.0)),), **settings)
        self.memory, self.index = (
            RowMemory(np.zeros(DIM, np.float32), 100_000),
            IndexMemory(100_000, 1, twin.SECRET),
        )
        self.changes = _LastNoted(self.index, 1 << 20)
        self.writer = Writer(config, RowLayout(config), self.index, self.memory, None, self.changes)

    def add(self, keys: I64, times: I64 | int = 0, *, track: bool = False) -> I64:
        """Rows (key, key), by way of the write kernel; the keys that this touched."""
        keys, times = np.asarray(keys, np.int64), np.atleast_1d(np.asarray(times, np.int64))
        rows = row_of(keys)
        self.writer.write(actions.Assign(DIM), keys, rows, times, EVERYTHING, track=track)
        return self.changes.noted

    def entries(self) -> dict[int, int]:
        """Times by key, after a look at everything: order, rows, counts, and that a search finds
        each."""
        count = self.index.used
        keys, times, codes = (
            np.empty(count + 1, np.int64),
            np.empty(count + 1, np.int64),
            np.empty(count + 1, np.uint64),
        )
        rows = np.empty((count + 1, DIM), np.float32)
        whole = np.uint64(0), np.uint64(2**64 - 1)
        assert (
            scan.dump(
                self.index.arrays, self.memory.arrays, *whole, NEVER, 0, codes, keys, rows, times
            )
            == count
        )
        assert keys[:count].tolist() == twin.walk(keys[:count].tolist())
        np.testing.assert_array_equal(rows[:count], row_of(keys[:count]))
        is_found = np.zeros(count, np.bool_)
        gather.contains(self.index.arrays, keys[:count], is_found)
        assert is_found.all()
        pool = self.memory.arrays.pool
        assert pool[POOL_NEXT] - pool[POOL_FREE] == count
        return dict(zip(keys[:count].tolist(), times[:count].tolist(), strict=True))

    def keys_in_slots(self) -> list[int]:
        """All keys, partition by partition in the order of their slots."""
        slots, parts, _ = self.index.arrays
        spans = [
            (begin_of(parts, record), end_of(parts, record))
            for record in range(0, PARTITIONS * RECORD, RECORD)
        ]
        words = np.concatenate([slots[2 * begin : 2 * end].reshape(-1, 2) for begin, end in spans])
        return [twin.id_of(int(code)) for code, entry in words if entry]


def row_of(keys: I64) -> F32:
    return np.repeat((keys % 1000).astype(np.float32)[:, None], DIM, axis=1)
