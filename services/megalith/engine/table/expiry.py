"""When a row is too old: data time, days by slot, and how much may go at once."""

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from megalith.engine.kernels import scan
from megalith.engine.kernels.layout import Index, Rows
from megalith.kernels.dtypes import I64, Bools
from megalith.schema import TableConfig
from megalith.schema.admission import NUM_SLOTS

DAY_S = 86400


class Quota(NamedTuple):
    """Which expired rows one expiry may drop."""

    least_s: int  # those overdue by more seconds than this
    ties: int  # and so many of those overdue by exactly that
    most: int  # but no more than this altogether


@lru_cache(maxsize=16)
def _seconds_by_slot(expire_days: int, by_slot: tuple[tuple[int, int], ...]) -> I64:
    """Seconds of each slot; nobody writes to them.

    They are 256 KB, and kept because tables mostly expire alike.
    """
    seconds = np.full(NUM_SLOTS, expire_days * DAY_S, np.int64)
    for slot, days in by_slot:
        seconds[slot] = days * DAY_S

    return seconds


def dated(times: I64, now_s: int) -> I64:
    """The times of rows, with data time `now_s` for those that have none (0).

    Nobody knows the age of such a row: it was written without a time to a server that had not seen
    one, while another server had. As a time, 0 would make it 56 years old.
    """
    return np.where(times == 0, now_s, times)


class Expiry:
    """A row of slot s expires when `now - last update >= days of s`.

    Now is the newest time in the data. The wall clock never counts: data replayed from last year
    keeps its rows like data of today.
    """

    def __init__(self, config: TableConfig) -> None:
        by_slot = tuple(sorted(config.expire_days_by_slot.items()))
        self.seconds_by_slot = _seconds_by_slot(config.expire_days, by_slot)
        self._least_seconds = self.seconds_by_slot.min()
        self._max_share = config.max_expire_share

    def expired(self, ids: I64, times: I64, now_s: int) -> Bools:
        """Which of these rows are expired at `now_s`, by the rule of the kernels (`scan.overdue`).

        Rows of a file may have no time; see `dated`.
        """
        slots = (ids >> 48) & (NUM_SLOTS - 1)
        ages = now_s - dated(times, now_s)
        is_expired: Bools = ages >= self.seconds_by_slot[slots]
        return is_expired

    def keeps_all(self, times: I64, now_s: int) -> bool:
        """Whether surely none of these rows is expired at `now_s`; a quick look at the oldest."""
        oldest_s = int(times.min(initial=now_s))
        return now_s - oldest_s < int(self._least_seconds)

    @property
    def is_bounded(self) -> bool:
        """Whether one expiry may drop only a share of the rows."""
        return self._max_share < 1

    def quota(self, index: Index, size: int, now_s: int) -> Quota:
        """What one expiry of a table of `size` rows may drop at `now_s`.

        That is the longest overdue rows, up to the share.
        """
        if not self.is_bounded:
            return Quota(-1, 0, size)

        most = int(size * self._max_share)
        late = np.empty(size, np.int64)
        count = scan.list_overdue(index, self.seconds_by_slot, now_s, late)

        late = late[:count]
        if late.size <= most:
            return Quota(-1, 0, most)

        # Rows overdue by more than the last allowed one go, and of its equals as many as are left
        # over.
        last = late.size - most - 1
        least_s = int(np.partition(late, last)[last])
        later = int(np.count_nonzero(late > least_s))

        return Quota(least_s, most - later, most)

    def drop(self, index: Index, rows: Rows, now_s: int, quota: Quota) -> I64:
        """Drop expired rows within the quota, whatever was written since it was made; their ids."""
        ids = np.empty(quota.most, np.int64)  # pages come as they are written
        seconds = self.seconds_by_slot
        dropped = scan.drop_overdue(index, rows, seconds, now_s, *quota, ids)

        return ids[:dropped]  # no copy: a row that is gone must not fail to be noted
