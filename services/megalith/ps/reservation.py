"""Memory whose addresses are taken at once and whose pages come as they are used, so that a table grows in place."""

import logging
import mmap
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megalith.wire.errors import LimitExceeded

HUGE_PAGE = 2 << 20
# Not in the mmap module of Python 3.11; the value of Linux.
_MAP_NORESERVE = 0x4000 if sys.platform == "linux" else 0

logger = logging.getLogger(__name__)


class Reservation:
    """Zeroed, private, page-aligned memory. Nothing is ever moved or unmapped while an array of it lives.

    Only what was written counts as memory of the process: reserving a terabyte costs nothing. Where the system refuses
    (strict overcommit, `ulimit -v`), ask again for less: see `largest`.
    """

    def __init__(self, nbytes: int) -> None:
        self._map = mmap.mmap(-1, nbytes + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)
        whole = np.frombuffer(self._map, np.uint8)
        self._begin = -whole.ctypes.data % HUGE_PAGE
        self.bytes: NDArray[np.uint8] = whole[self._begin : self._begin + nbytes]

    @classmethod
    def largest(cls, nbytes: int, least: int) -> "Reservation":
        """As many bytes as the system grants, at most `nbytes`, halving down to `least`."""
        while True:
            try:
                return cls(nbytes)
            except OSError as error:
                if nbytes <= least:
                    raise LimitExceeded(
                        f"the system refuses to reserve {nbytes} bytes of addresses: {error}"
                    ) from error
                nbytes = max(least, nbytes // 2)
                logger.warning("address space refused, trying less nbytes=%d", nbytes)

    def array(self, dtype: Any) -> NDArray[Any]:
        """All of it as one flat array."""
        return self.bytes.view(dtype)

    def use_huge_pages(self, begin: int, end: int) -> None:
        """Huge pages in [begin, end) from now on: without them every random read of a large table misses the TLB."""
        option = getattr(mmap, "MADV_HUGEPAGE", None)
        first = -(-begin // HUGE_PAGE) * HUGE_PAGE
        length = end // HUGE_PAGE * HUGE_PAGE - first
        if option is None or length <= 0:
            return
        try:
            self._map.madvise(option, self._begin + first, length)
        except OSError:
            logger.debug("huge pages refused length=%d", length)

    def release(self) -> None:
        """Give all pages back; the memory reads as zeros again."""
        if sys.platform == "linux":
            self._map.madvise(mmap.MADV_DONTNEED)
        else:  # elsewhere DONTNEED may keep the contents
            self.bytes[:] = 0
