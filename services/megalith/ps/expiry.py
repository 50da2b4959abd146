"""When a row is too old: data time, days by slot, and how much may go at once."""

import numpy as np

from megalith.ps.kernels import scan
from megalith.ps.kernels.dtypes import I64
from megalith.ps.kernels.layout import Index, Rows
from megalith.wire.admission import NUM_SLOTS
from megalith.wire.schema import TableConfig

DAY_S = 86400


class Expiry:
    """A row of slot s expires when `now - last update >= days of s`, where now is the newest time in the data.

    The wall clock never counts: data replayed from last year keeps its rows like data of today.
    """

    def __init__(self, config: TableConfig) -> None:
        self.seconds_by_slot: I64 = np.full(NUM_SLOTS, config.expire_days * DAY_S, np.int64)
        for slot, days in config.expire_days_by_slot.items():
            self.seconds_by_slot[slot] = days * DAY_S
        self._max_share = config.max_expire_share

    def drop(self, index: Index, rows: Rows, size: int, now_s: int) -> int:
        """Drop expired rows, the longest overdue first, as far as the share allows; how many were dropped."""
        allowed = int(size * self._max_share)
        least_s, ties = -1, 0
        if self._max_share < 1:
            late = np.empty(size, np.int64)
            late = late[: scan.list_overdue(index, self.seconds_by_slot, now_s, late)]
            if late.size > allowed:
                # Rows overdue by more than the last allowed one go, and of its equals as many as are left over.
                least_s = int(np.partition(late, late.size - allowed - 1)[late.size - allowed - 1])
                ties = allowed - int(np.count_nonzero(late > least_s))
        most = allowed if self._max_share < 1 else np.iinfo(np.int64).max
        return int(scan.drop_overdue(index, rows, self.seconds_by_slot, now_s, least_s, ties, most))
