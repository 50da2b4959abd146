"""Carrying out a table's writes: admission, room, and counting what became of every position."""

import threading
from typing import Any

import numpy as np

from megalith.engine.admission.filters import AdmissionFilter
from megalith.engine.kernels import gather, loading, scan, write
from megalith.engine.kernels.codes import ids_of
from megalith.engine.kernels.layout import POOL_NEWEST_S
from megalith.engine.kernels.write import Notes
from megalith.engine.table import checks
from megalith.engine.table.delta_log import DeltaLog
from megalith.engine.table.expiry import Expiry
from megalith.engine.table.index import IndexMemory
from megalith.engine.table.row_layout import RowLayout
from megalith.engine.table.rows import RowMemory
from megalith.engine.table.stats import LoadResult, LocalCounts, WriteResult
from megalith.kernels.dtypes import F32, I64, U8, Bools
from megalith.schema import TableConfig

EVERYTHING = np.ones(1, np.bool_)  # as `admitted`: all positions
# Data time between expiries that a full table starts; each is a pass over the index
_EXPIRE_AGAIN_S = 3600


class Writer:
    """The write side of one table. Any number of threads may call any method.

    `lock` guards `counts`, the newest data time and that of the last forced expiry; it is never
    held in a kernel. `_dating` is held by the one write that gives the table its first data time,
    for a pass over the index.
    """

    def __init__(
        self,
        config: TableConfig,
        layout: RowLayout,
        index: IndexMemory,
        rows: RowMemory,
        admission: AdmissionFilter | None,
        changes: DeltaLog,
    ) -> None:
        self._config = config
        self._layout = layout
        self._index = index
        self._rows = rows
        self._changes = changes
        self._admission = admission
        self.expiry = Expiry(config)
        self.lock = threading.Lock()
        self.counts = LocalCounts()
        self._dating = threading.Lock()
        self._max_update_s = 0
        self._forced_expiry_s = -_EXPIRE_AGAIN_S

    def reconfigure(
        self, config: TableConfig, layout: RowLayout, admission: AdmissionFilter | None
    ) -> None:
        """Write by other settings from the next call on.

        A call under way finishes by the old ones.
        """
        self._config = config
        self._layout = layout
        self._admission = admission
        self.expiry = Expiry(config)

    @property
    def max_update_s(self) -> int:
        with self.lock:
            return self._max_update_s

    def note_time(self, time_s: int) -> I64:
        """Move data time forward, and give the time as kernels take it: one for all positions.

        A write without a time (0) leaves the rows theirs; a row that it makes gets the newest data
        time.
        """
        time_s = checks.check_time(time_s, self._config.name)
        if time_s > self.max_update_s == 0:
            self._begin_data_time(time_s)

        with self.lock:
            if time_s > self._max_update_s:
                self._max_update_s = time_s
                self._rows.arrays.pool[POOL_NEWEST_S] = time_s

        return np.array([time_s], np.int64)

    def _begin_data_time(self, time_s: int) -> None:
        """Give the rows that were written before the table had a data time its first one.

        Nobody knows their age. Without a time they would count as 56 years old and go with the next
        expiry, which therefore hears of data time only when they have theirs.
        """
        with self._dating:
            if self.max_update_s > 0:
                return  # another thread was first

            self._rows.arrays.pool[POOL_NEWEST_S] = time_s
            scan.date_rows(self._index.arrays, time_s)
            with self.lock:
                self._max_update_s = time_s

    def admit(self, ids: I64, counts: I64 | None = None) -> Bools:
        """Which positions may get a row.

        The filter sees absent ids only, by default each as one sighting.
        """
        if self._admission is None:
            return EVERYTHING

        ids = checks.frozen(ids)
        admitted = np.empty(ids.size, np.bool_)
        gather.contains(self._index.arrays, ids, admitted)

        absent = np.flatnonzero(~admitted)
        if absent.size:
            sightings = np.ones(absent.size, np.int64)
            if counts is not None:
                sightings = counts[absent]

            admitted[absent] = self._admission.admit(ids[absent], sightings)

        return admitted

    def write(
        self,
        action: Any,
        ids: I64,
        inputs: F32,
        times: I64,
        admitted: Bools,
        *,
        outcome: U8 | None = None,
        track: bool = True,
    ) -> WriteResult:
        """Act on every row, making room by expiry if there is none; what happened.

        With `track` the written rows get the touched bit, and the ids of those that did not have
        it come into the delta log. A given `outcome` is filled with what became of each position,
        as codes of the write kernel.
        """
        ids = checks.frozen(ids)
        inputs = checks.frozen(inputs)
        if outcome is None:
            outcome = np.empty(ids.size, np.uint8)

        is_tracked = track and self._changes.is_on
        num_tracked = ids.size if is_tracked else 0
        touched = np.empty(num_tracked, np.uint64)
        tally = np.zeros(2, np.int64)
        notes = Notes(outcome, touched, tally)

        most_entries = self._rows.num_taken + ids.size
        self._index.expect(most_entries)

        try:
            made = self._act(action, ids, inputs, times, admitted, notes)
        finally:  # whatever happens: a row that has the bit is not noted again
            if is_tracked:
                time_s = int(times[0])  # loading, which has one for each row, is untracked
                if time_s <= self._max_update_s:  # a later one is no data time
                    self._changes.note_event(time_s)

            forgotten = self._note_changes(notes)

        return self._count(made, notes, forgotten)

    def load_new(self, ids: I64, embeddings: F32, states: F32, times: I64) -> LoadResult | None:
        """Make rows of the ids that have none; those that have are counted as replaced, and kept.

        None, and nothing done, if there are not rows for all of them. Nothing is tracked.
        """
        most_entries = self._rows.num_taken + ids.size
        self._index.expect(most_entries)

        tally = np.zeros(loading.TALLY, np.int64)
        has_rows = loading.load_new(
            self._index.arrays,
            self._rows.arrays,
            checks.frozen(ids),
            checks.frozen(embeddings.reshape(-1)),
            checks.frozen(states.reshape(-1)),
            checks.frozen(times),
            tally,
        )
        if not has_rows:
            return None

        created = int(tally[loading.CREATED])
        refused = int(tally[loading.REFUSED])
        with self.lock:
            self.counts.created += created
            self.counts.refused += refused

        return LoadResult(created, ids.size - created - refused, refused)

    def _act(
        self, action: Any, ids: I64, inputs: F32, times: I64, admitted: Bools, notes: Notes
    ) -> U8:
        """What became of the positions; empty if all rows existed."""
        table = (self._index.arrays, self._rows.arrays, self._layout.fills)
        absent = write.write(*table, action, ids, inputs, times, admitted, notes)

        outcome = notes.outcome
        if not absent:
            return outcome[:0]

        refused = np.flatnonzero(outcome == write.REFUSED)
        if refused.size and self._make_room():
            left_ids = checks.frozen(ids[refused])
            left_inputs = checks.frozen(inputs[refused])
            left_times = times
            if times.size > 1:
                left_times = times[refused]

            again = np.empty(refused.size, np.uint8)
            retry = Notes(again, notes.touched, notes.tally)
            write.write(*table, action, left_ids, left_inputs, left_times, EVERYTHING, retry)
            outcome[refused] = again

        return outcome

    def _note_changes(self, notes: Notes) -> int:
        """Put the ids of rows that got the touched bit into the log; how many it forgot for it.

        Nothing is allocated: without the note, later changes of these rows would be missed too.
        """
        num_touched = notes.tally[0]
        codes = notes.touched[:num_touched]
        ids = codes.view(np.int64)  # in place of the codes
        ids_of(self._index.arrays.secret, codes, ids)

        return self._changes.note(ids)

    def expire(self, now_s: int) -> int:
        """Drop what is expired at `now_s`, as far as the share allows; how many rows that were."""
        expiry = self.expiry  # once: `reconfigure` may put another in its place
        index = self._index.arrays

        quota = expiry.quota(index, self._index.used, now_s)
        dropped = expiry.drop(index, self._rows.arrays, now_s, quota)
        self.note_expired(dropped)

        return dropped.size

    def note_expired(self, ids: I64) -> None:
        """Rows of these ids are not here because they are expired."""
        self._changes.note(ids)
        with self.lock:
            self.counts.expired += ids.size

    def _make_room(self) -> bool:
        """Expire on behalf of a full table, unless one did in the last hour of data time."""
        with self.lock:
            now_s = self._max_update_s
            if now_s - self._forced_expiry_s < _EXPIRE_AGAIN_S:
                return False

            self._forced_expiry_s = now_s

        return self.expire(now_s) > 0

    def _count(self, outcome: U8, notes: Notes, forgotten: int) -> WriteResult:
        """Count what became of the positions; `outcome` may be empty if all of them existed."""
        undone = int(notes.tally[1])
        created = int(np.count_nonzero(outcome == write.CREATED))
        refused = int(np.count_nonzero(outcome == write.REFUSED))
        barred = int(np.count_nonzero(outcome == write.BARRED))

        with self.lock:
            self.counts.created += created
            self.counts.refused += refused
            self.counts.barred += barred
            self.counts.nonfinite += undone

        return WriteResult(created, refused, barred, undone, forgotten)
