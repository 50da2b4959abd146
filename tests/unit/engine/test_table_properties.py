"""The table against a dict of numpy rows, under any order of calls."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from megalith.engine.table.embedding_table import EmbeddingTable
from megalith.kernels.dtypes import I64
from megalith.schema import Adagrad, Segment, TableConfig, Zeros
from support.delta import take_changes
from support.twins.table import DAY_S, NaiveTable

DIM = 5
WALL_S = 3 * DAY_S
KEYS = st.integers(0, 40) | st.sampled_from([-(2**63), 2**63 - 1, -1, 1 << 48])
batches = hnp.arrays(np.int64, st.integers(0, 80), elements=KEYS)
times = st.just(0) | st.integers(0, 5 * DAY_S)


def floats(keys: I64, seed: int) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    return np.random.default_rng(seed).standard_normal((keys.size, DIM)).astype(np.float32)


class TableMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        segments = Segment(2, Zeros(), Adagrad()), Segment(3, Zeros(), Adagrad())
        config = TableConfig("t", segments, expire_days=2, touched_capacity=1000)
        self.table = EmbeddingTable(config, clock=lambda: WALL_S)
        self.naive = NaiveTable(DIM, expire_days=2)
        self.touched: set[int] = set()

    @rule(keys=batches, seed=st.integers(0, 9), time_s=times)
    def assign(self, keys: I64, seed: int, time_s: int) -> None:
        self.table.assign(keys, floats(keys, seed), time_s)
        self.naive.assign(keys, floats(keys, seed), time_s)
        self._touch(keys)

    @rule(keys=batches, seed=st.integers(0, 9), time_s=times)
    def assign_add(self, keys: I64, seed: int, time_s: int) -> None:
        self.table.assign_add(keys, floats(keys, seed), time_s)
        self.naive.assign_add(keys, floats(keys, seed), time_s)
        self._touch(keys)

    @rule(keys=batches, seed=st.integers(0, 9), time_s=times)
    def apply_gradients(self, keys: I64, seed: int, time_s: int) -> None:
        result = self.table.apply_gradients(keys, floats(keys, seed), [0.1, 0.1], req_time_s=time_s)
        assert result.created == len(set(keys.tolist()) - set(self.naive.rows))
        self.naive.apply_gradients(keys, floats(keys, seed), 0.1, time_s)
        self._touch(keys)

    @rule(keys=batches, seed=st.integers(0, 9), time_s=times)
    def apply_summed(self, keys: I64, seed: int, time_s: int) -> None:
        self.table.apply_gradients(
            keys, floats(keys, seed), [0.1, 0.1], req_time_s=time_s, dedup=True
        )
        self.naive.apply_summed(keys, floats(keys, seed), 0.1, time_s)
        self._touch(keys)

    @rule(keys=batches)
    def reinitialize(self, keys: I64) -> None:
        assert self.table.reinitialize(keys).tolist() == self.naive.reinitialize(keys, WALL_S)
        self._touch(keys)

    @rule(keys=batches)
    def erase(self, keys: I64) -> None:
        self._touch(keys[np.isin(keys, list(self.naive.rows))])
        assert self.table.erase(keys) == self.naive.erase(keys)

    @rule()
    def steal(self) -> None:
        assert {*take_changes(self.table).tolist()} == self.touched
        self.touched.clear()

    def _touch(self, keys: I64) -> None:
        self.touched |= {*keys.tolist()}

    @rule()
    def expire(self) -> None:
        before = set(self.naive.rows)
        assert self.table.expire() == self.naive.expire()
        self.touched |= before - set(self.naive.rows)

    @rule()
    def clear(self) -> None:
        self.table.clear()
        self.naive.rows.clear()
        self.touched.clear()  # whoever followed the table has been told to copy all rows

    @rule(limit=st.integers(1, 20), num_shares=st.integers(1, 3))
    def reload(self, limit: int, num_shares: int) -> None:
        pieces = []
        for share in range(num_shares):
            piece = self.table.dump(share, num_shares, limit, with_expired=True)
            pieces.append(piece)
            while piece.ids.size == limit:
                piece = self.table.dump(share, num_shares, limit, piece.offset, with_expired=True)
                pieces.append(piece)
        self.table.clear()
        self.touched.clear()
        for piece in pieces:
            self.table.load(
                piece.ids,
                piece.rows,
                piece.times,
                self.table.layout.signature,
                self.table.max_update_s,
            )

    @invariant()
    def agrees(self) -> None:
        asked = np.array([*self.naive.rows, 41, -2, 1 << 48], np.int64)
        np.testing.assert_allclose(
            self.table.lookup(asked), self.naive.lookup(asked), rtol=1e-5, atol=1e-6
        )
        assert self.table.size == len(self.naive.rows)
        assert self.table.contains(asked).tolist() == [
            key in self.naive.rows for key in asked.tolist()
        ]
        entries = self.table.lookup_entry(asked)
        assert entries.times.tolist() == [
            self.naive.rows.get(key, (0, 0, -1))[2] for key in asked.tolist()
        ]
        norms = [self.naive.rows[key][1] for key in self.naive.rows]
        if norms:
            np.testing.assert_allclose(entries.state[: len(norms)], norms, rtol=1e-5)


TableMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=20)
TestTable = TableMachine.TestCase
