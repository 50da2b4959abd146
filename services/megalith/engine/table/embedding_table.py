"""The embedding table: int64 ids to rows of floats that learn."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from megalith.engine.admission.filters import AdmissionFilter, admission_filter, readjusted
from megalith.engine.kernels import actions, erase, gather, scan, write
from megalith.engine.kernels.layout import Secret
from megalith.engine.table import checks
from megalith.engine.table.delta_log import DeltaLog, check_capacity
from megalith.engine.table.limits import limits, reserve
from megalith.engine.table.row_layout import RowLayout
from megalith.engine.table.secret import draw
from megalith.engine.table.stats import LoadResult, LocalCounts, WriteResult
from megalith.engine.table.writer import EVERYTHING, Writer
from megalith.errors import InvalidRequest, TableConflict
from megalith.kernels.dtypes import F32, I64, Bools
from megalith.schema import TableConfig

_STATUS = np.full(4, -1)  # of reinitialize, by outcome of the write
_STATUS[write.EXISTING] = 1
_STATUS[write.CREATED] = 0


class RowEntries(NamedTuple):
    """Whole rows. An absent id has time -1 and zeros."""

    values: F32
    state: F32
    times: I64


class Chunk(NamedTuple):
    """A piece of a dump: `rows` holds embedding and state.

    `offset` is where the next call goes on.
    """

    offset: int
    ids: I64
    rows: F32
    times: I64


class EmbeddingTable:
    """A collisionless table. Any number of threads may call any method.

    What is locked: each partition of the index (a thirty-second of the ids) has a latch, a version
    counter that guards its slots and the rows they refer to. A write holds one latch at a time, for
    128 ids. A lookup takes none: it reads, and reads again what a writer may have touched
    meanwhile. So a row is always seen whole, by lookups and by dumps, while a batch is not atomic:
    another thread may come between two of its ids. `clear` holds all latches. The pool of free rows
    has a latch of its own, held for a few instructions. Counters and data time have a lock in the
    writer.

    Calls with invalid arguments raise before anything changes. What a write leaves out (ids not
    admitted, ids without room, gradients that are not finite if those are to be skipped, updates
    after which a row would not be finite) it counts: see `stats`.
    """

    def __init__(
        self,
        config: TableConfig,
        *,
        admission: AdmissionFilter | None = None,
        clock: Callable[[], float] = time.time,
        secret: Secret | None = None,
    ) -> None:
        """`admission` takes the place of what the configuration asks for.

        `secret` is what the hash of ids depends on; without it the table draws one, so that two
        tables keep the same ids in different orders.
        """
        self.config = config
        self.layout = RowLayout(config)
        self._clock = clock

        if admission is None and config.admission is not None:
            admission = admission_filter(config.admission)

        check_capacity(config.touched_capacity, config.name)

        self._admission = admission
        self._config_and_filter = (config, admission)

        template = self.layout.template
        self._rows, self._index = reserve(config, template, secret or draw())
        self._empty_bytes = self._index.nbytes

        most = limits(config, self._rows, self._empty_bytes)
        self._rows.limit(*most)

        self.changes = DeltaLog(self._index, config.touched_capacity)
        self._writer = Writer(config, self.layout, self._index, self._rows, admission, self.changes)

    # ------------------------------------------------------------------ reading

    def lookup(self, ids: I64, out: F32 | None = None) -> F32:
        """The embeddings of ids, zeros for absent ones; nothing is created.

        A given `out` is filled and returned.
        """
        checks.check_ids(ids, self.config.name)

        if out is None:
            out = np.empty((ids.size, self.layout.dim), np.float32)
        else:
            checks.check_writable(out, ids.size, self.layout.dim, self.config.name, "output rows")

        layout = self.layout
        index = self._index.arrays
        values = self._rows.arrays.values
        found = gather.gather(index, values, layout.width, ids, out)

        segments = zip(layout.retrievers, layout.weight_offsets, layout.dims, strict=True)
        for retriever, column, dim in segments:
            retriever.forward(out, column, dim)

        with self._writer.lock:
            self._writer.counts.looked_up += ids.size
            self._writer.counts.found += found

        return out

    def lookup_entry(self, ids: I64) -> RowEntries:
        """Embedding, optimizer state and time of each id, read together."""
        checks.check_ids(ids, self.config.name)
        width = self.layout.width
        rows = np.zeros((ids.size, width), np.float32)
        times = np.empty(ids.size, np.int64)

        index = self._index.arrays
        values = self._rows.arrays.values
        gather.gather_entries(index, values, width, ids, rows, times)

        dim = self.layout.dim
        weights = rows[:, :dim]
        states = rows[:, dim:]

        return RowEntries(weights, states, times)

    def contains(self, ids: I64) -> Bools:
        checks.check_ids(ids, self.config.name)
        out = np.empty(ids.size, np.bool_)
        gather.contains(self._index.arrays, ids, out)
        return out

    def __len__(self) -> int:
        return self._index.used

    @property
    def size(self) -> int:
        """Rows in the table."""
        return self._index.used

    @property
    def nbytes(self) -> int:
        """Bytes of index and rows: what the memory budget counts."""
        return self._index.nbytes + self._rows.nbytes

    @property
    def num_over_budget(self) -> int:
        """Rows beyond those that the memory budget allows, for example because it was lowered."""
        return max(0, self.size - self._rows.num_allowed)

    @property
    def max_update_s(self) -> int:
        """Data time: the newest request time of any write."""
        return self._writer.max_update_s

    def stats(self) -> LocalCounts:
        """A copy of the counts, with what the table holds now."""
        with self._writer.lock:
            counts = replace(self._writer.counts)

        counts.rows = self.size
        counts.bytes = self.nbytes
        counts.touched_overflow = self.changes.forgotten
        counts.max_rows = self._rows.max_rows
        counts.touched = self.changes.size
        return counts

    @property
    def admission(self) -> AdmissionFilter | None:
        """What decides about new ids; None admits all."""
        return self._admission

    @property
    def config_and_filter(self) -> tuple[TableConfig, AdmissionFilter | None]:
        """Both as they belong together, also while another thread changes them."""
        return self._config_and_filter

    # ------------------------------------------------------------------ writing

    def assign(self, ids: I64, values: F32, req_time_s: int = 0) -> WriteResult:
        """Set embeddings; the optimizer state of existing rows stays.

        The last of repeated ids wins.
        """
        return self._assign(actions.Assign(self.layout.dim), ids, values, req_time_s)

    def assign_add(self, ids: I64, values: F32, req_time_s: int = 0) -> WriteResult:
        """Add to embeddings, in absent rows to their initial value.

        A sum that is not finite is undone and counted.
        """
        return self._assign(actions.AssignAdd(self.layout.dim), ids, values, req_time_s)

    def check_values(self, ids: I64, values: F32) -> None:
        """Raise what `assign` and `assign_add` would, changing nothing."""
        name = self.config.name
        checks.check_ids(ids, name)
        checks.check_floats(values, ids.size, self.layout.dim, name, "values")
        checks.check_finite(values, name, "values")

    def _assign(self, action: Any, ids: I64, values: F32, req_time_s: int) -> WriteResult:
        self.check_values(ids, values)
        times = self._writer.note_time(req_time_s)
        admitted = self._writer.admit(ids)
        return self._writer.write(action, ids, values, times, admitted)

    def apply_gradients(
        self,
        ids: I64,
        grads: F32,
        learning_rates: Sequence[float] | F32 | None = None,
        *,
        req_time_s: int = 0,
        step: int = 0,
        dedup: bool = False,
    ) -> WriteResult:
        """One optimizer step for each position, in order.

        With `dedup` it is one step for each distinct id, with the sum of its gradients, and the
        filter is told how often the id occurs. The SDK sums before it sends, so no server asks for
        that; it is for a table that is trained in its own process. Pulled weights behind the
        gradients, which dc takes, are not summed: those of an id's first position count.

        Absent ids that are admitted get a row first. Rates default to those of the optimizers at
        `step`. A step that would leave weights or state not finite is undone and counted as
        `nonfinite`, like gradients that are skipped.
        """
        rates = self.check_gradients(ids, grads, learning_rates, step)
        return self.apply_checked(ids, grads, rates, req_time_s=req_time_s, step=step, dedup=dedup)

    def apply_checked(
        self,
        ids: I64,
        grads: F32,
        rates: F32,
        *,
        req_time_s: int = 0,
        step: int = 0,
        dedup: bool = False,
    ) -> WriteResult:
        """`apply_gradients` for a caller that got its rates from `check_gradients`."""
        given = len(ids)
        counts = None

        if self.config.skip_nonfinite:
            finite = checks.finite_mask(grads)
            if finite is not None:
                ids = ids[finite]
                grads = grads[finite]

        skipped = given - len(ids)

        if dedup:
            ids, grads, counts = checks.sum_by_id(ids, grads, self.layout.dim)
            distinct = len(ids)
            finite = self._finite_sums(grads)
            if finite is not None:
                ids = ids[finite]
                grads = grads[finite]
                counts = counts[finite]

            skipped += distinct - len(ids)

        times = self._writer.note_time(req_time_s)
        admitted = self._writer.admit(ids, counts)
        action = actions.Update(self.layout.stages(rates), step)
        result = self._writer.write(action, ids, grads, times, admitted)

        for retriever in self.layout.retrievers:
            retriever.advance(step)

        with self._writer.lock:
            self._writer.counts.nonfinite += skipped

        return replace(result, nonfinite=result.nonfinite + skipped)

    def check_gradients(
        self,
        ids: I64,
        grads: F32,
        learning_rates: Sequence[float] | F32 | None = None,
        step: int = 0,
        *,
        dedup: bool = False,
    ) -> F32:
        """Raise what `apply_gradients` would, changing nothing.

        Returns the learning rates that it would use.

        Sums by id, which may overflow, are looked at only with `dedup`: it costs adding them up
        twice.
        """
        name = self.config.name
        width = self.layout.gradient_width
        checks.check_ids(ids, name)
        checks.check_floats(grads, ids.size, width, name, "gradients")

        if not 0 <= step < 2**48:
            raise InvalidRequest(f"table {name}: step {step} is outside 0..2^48-1")

        if not self.config.skip_nonfinite:
            checks.check_finite(grads, name, "gradients")

        rates = self.layout.rates(learning_rates, step)
        if dedup:
            _, sums, _ = checks.sum_by_id(ids, grads, self.layout.dim)
            self._finite_sums(sums)

        return rates

    def _finite_sums(self, sums: F32) -> Bools | None:
        """Which sums by id did not overflow, None if none did.

        Raises if such rows are not to be skipped.
        """
        if not self.config.skip_nonfinite:
            checks.check_finite(sums, self.config.name, "gradients summed by id")
            return None

        return checks.finite_mask(sums)

    def reinitialize(self, ids: I64) -> I64:
        """Make rows as new, creating absent ones without asking the filter.

        The status of each id: 1 existed, 0 was created, -1 was not, because the table is full.
        Whoever else creates or drops rows meanwhile, of several callers exactly the one that
        creates a row gets 0 for it. The time of the rows is the wall clock's, which is no data time
        and does not move `max_update_s`.
        """
        name = self.config.name
        checks.check_ids(ids, name)

        wall_clock_s = int(self._clock())
        now_s = checks.check_time(wall_clock_s, name)
        times = np.array([now_s], np.int64)

        action = actions.Reinitialize(self.layout.fills)
        inputs = np.empty((ids.size, 0), np.float32)
        outcome = np.empty(ids.size, np.uint8)
        self._writer.write(action, ids, inputs, times, EVERYTHING, outcome=outcome)

        return _STATUS[outcome]

    def reconfigure(self, config: TableConfig) -> None:
        """Take new settings, such as rates or expiry, and keep the rows.

        An admission filter keeps its counts unless its kind or size changes. A memory budget below
        what the table has refuses new ids until enough rows are gone; only `clear` gives memory
        back. Rows of another layout are a TableConflict.
        """
        if config == self.config:
            return

        # What may fail comes first, and changes nothing then.
        layout = self.check_config(config)
        max_rows, max_slots = limits(config, self._rows, self._empty_bytes)
        has_other_admission = config.admission != self.config.admission

        wanted = None
        if has_other_admission and config.admission is not None:
            wanted = admission_filter(config.admission)

        if config.touched_capacity != self.config.touched_capacity:
            self.changes.resize(config.touched_capacity)

        admission = self._admission
        if has_other_admission:
            admission = readjusted(admission, wanted)

        self._rows.limit(max_rows, max_slots)
        self._admission = admission
        self.config = config
        self._config_and_filter = (config, admission)
        self.layout = layout
        self._writer.reconfigure(config, layout, admission)

    def check_config(self, config: TableConfig) -> RowLayout:
        """Raise what `reconfigure` would, changing nothing; the layout that rows would have."""
        layout = RowLayout(config)
        if layout.signature != self.layout.signature:
            raise TableConflict(
                f"table {config.name} exists with rows {self.layout.signature}, "
                f"asked for {layout.signature}; "
                "use another name, start from an empty model directory, or give a table that came "
                "out of a checkpoint the new layout: --allow-new-layout, or "
                "create_tables(allow_new_layout=True). Other optimizers then begin anew, and rows "
                "of another width are dropped"
            )

        if config.admission is not None and config.admission != self.config.admission:
            admission_filter(config.admission)

        check_capacity(config.touched_capacity, config.name)
        limits(config, self._rows, self._empty_bytes)
        return layout

    # ------------------------------------------------------------------ keeping and dropping

    def expect(self, num_rows: int) -> None:
        """Make room for so many rows in the index of an empty table, which no other thread uses.

        It need not grow while they come. A table with a memory budget does nothing: what it may
        take depends on how it grows.
        """
        if self.config.memory_budget_bytes or self.size:
            return

        self._index.make_capacities(min(num_rows, self._rows.max_rows))

    def clear(self) -> None:
        """Drop all rows and give their memory back; `max_update_s` and the counters stay."""
        scan.enter_all(self._index.arrays.parts)
        try:
            self._index.clear()
            self._rows.clear()
        finally:
            scan.leave_all(self._index.arrays.parts)

        self.changes.forget_all()

    def erase(self, ids: I64) -> int:
        """Drop the rows of ids, whatever their age; how many there were.

        Their memory is used again.
        """
        checks.check_ids(ids, self.config.name)

        index = self._index.arrays
        rows = self._rows.arrays
        dropped = np.empty(ids.size, np.int64)

        count = erase.erase(index, rows, ids, dropped)
        self.changes.note(dropped[:count])

        return int(count)

    def expire(self, now_s: int | None = None) -> int:
        """Drop the rows that are expired at data time `now_s` (default: `max_update_s`).

        How many were dropped.
        """
        if now_s is None:
            now_s = self.max_update_s

        return self._writer.expire(now_s)

    def dump(
        self,
        share: int = 0,
        num_shares: int = 1,
        limit: int = 65536,
        offset: int = 0,
        *,
        with_expired: bool = False,
    ) -> Chunk:
        """The next rows of a share, fewer than `limit` only at its end.

        Begin with offset 0 and go on with that of the chunk. Shares cut the ids evenly by hash.
        Every row that exists during the whole walk is met once, however the table grows meanwhile.
        Rows expired at `max_update_s` are left out unless asked
        for.
        """
        if not (0 <= share < num_shares and limit >= 1 and offset >= 0):
            raise InvalidRequest(
                f"dump: share {share} of {num_shares}, limit {limit}, offset {offset} do not fit"
            )

        begin = (share << 64) // num_shares
        end = ((share + 1) << 64) // num_shares
        ids = np.empty(limit, np.int64)
        times = np.empty(limit, np.int64)
        codes = np.empty(limit, np.uint64)
        rows = np.empty((limit, self.layout.width), np.float32)

        count = 0

        if begin + offset < end:
            expire_s = self._writer.expiry.seconds_by_slot
            if with_expired:
                expire_s = np.empty(0, np.int64)  # nothing expires

            count = scan.dump(
                self._index.arrays,
                self._rows.arrays,
                np.uint64(begin + offset),
                np.uint64(end - 1),
                expire_s,
                self.max_update_s,
                codes,
                ids,
                rows,
                times,
            )

        following = end - begin
        if count == limit:
            following = int(codes[count - 1]) + 1 - begin

        return Chunk(following, ids[:count], rows[:count], times[:count])

    def load(
        self,
        ids: I64,
        rows: F32,
        times: I64,
        signature: str | None = None,
        max_update_s: int | None = None,
        *,
        drop_expired: bool = False,
    ) -> LoadResult:
        """Set whole rows, as `dump` gave them; neither filter nor delta log take part.

        `signature` is that of the table they come from (`layout.signature`): other optimizers are
        refused. `max_update_s` is the data time of that table. Without it the newest of `times` is
        taken, which after a `reinitialize` is the wall clock's.

        A new row without a time (0) gets the table's data time, as in every write, and is never too
        old.

        With `drop_expired`, rows that are expired at the table's data time are left out and
        counted. Rows that come in several calls are judged alike only if each call names the newest
        data time of all. If an expiry may drop only a share of this table's rows
        (`max_expire_share`), none is left out: the next expiry drops what it may.
        """
        name = self.config.name
        self._check_signature(signature)

        checks.check_ids(ids, name)
        checks.check_floats(rows, ids.size, self.layout.width, name, "rows")
        checks.check_times(times, ids.size, name)
        checks.check_distinct(ids, name)

        if max_update_s is None:
            max_update_s = int(times.max(initial=0))

        self._writer.note_time(max_update_s)

        expired = 0
        expiry = self._writer.expiry
        if drop_expired and not expiry.is_bounded:
            is_expired = expiry.expired(ids, times, self.max_update_s)
            expired = int(np.count_nonzero(is_expired))

            if expired:
                self._writer.note_expired(ids[is_expired])
                is_kept = ~is_expired
                ids = ids[is_kept]
                rows = rows[is_kept]
                times = times[is_kept]

        action = actions.Assign(self.layout.width)
        result = self._writer.write(action, ids, rows, times, EVERYTHING, track=False)
        replaced = ids.size - result.created - result.refused
        return LoadResult(result.created, replaced, result.refused, expired)

    def load_new(
        self,
        ids: I64,
        embeddings: F32,
        states: F32,
        times: I64,
        signature: str,
        max_update_s: int | None,
        *,
        drop_expired: bool = False,
    ) -> LoadResult | None:
        """As `load`, in half the time, where every row is to come in and its id has none yet.

        None, and nothing done, if some rows are to be left out, if the table has a memory budget,
        or if it has no room for all. An id that has a row keeps it, and counts as replaced.
        Embeddings and states are as in a file, and finite.
        """
        name = self.config.name
        dim = self.layout.dim
        self._check_signature(signature)

        checks.check_ids(ids, name)
        checks.check_floats(embeddings, ids.size, dim, name, "embeddings")
        checks.check_floats(states, ids.size, self.layout.width - dim, name, "states")
        checks.check_times(times, ids.size, name)

        if max_update_s is None or self.config.memory_budget_bytes:
            return None

        expiry = self._writer.expiry
        newest_s = max(max_update_s, self.max_update_s)
        if drop_expired and not expiry.is_bounded and not expiry.keeps_all(times, newest_s):
            return None

        self._writer.note_time(max_update_s)
        return self._writer.load_new(ids, embeddings, states, times)

    def _check_signature(self, signature: str | None) -> None:
        own = self.layout.signature
        if signature is not None and signature != own:
            name = self.config.name
            raise TableConflict(f"table {name} has rows {own}, cannot load rows {signature}")
