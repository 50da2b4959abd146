"""Memory whose addresses are taken at once and whose pages come as they are used.

So a table grows in place.
"""

import logging
import mmap
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

HUGE_PAGE = 2 << 20
# Not in the mmap module of Python 3.11; the value of Linux.
_MAP_NORESERVE = 0x4000 if sys.platform == "linux" else 0
_DEFAULT_MAPPINGS = 65530  # Linux's own default, for systems that do not tell

logger = logging.getLogger(__name__)


class Addresses:
    """How many addresses and mappings of the process are taken by reservations.

    `_lock` guards both numbers. A thread that holds it may take it again: where an object is made
    under it, Python may collect a reservation there and then, which gives its own back.

    A process has 2^47 bytes of addresses on today's machines, and the system bounds its mappings.
    Threads and the heap need some of both, so that tables must leave enough.
    """

    TOTAL = 1 << 47

    def __init__(self, most_mappings: int) -> None:
        self.most_mappings = most_mappings
        self._lock = threading.RLock()
        self._reserved = 0
        self._mappings = 0

    def take(self, nbytes: int, mappings: int) -> None:
        with self._lock:
            self._reserved += nbytes
            self._mappings += mappings

    def give(self, nbytes: int, mappings: int) -> None:
        self.take(-nbytes, -mappings)

    @property
    def mappings(self) -> int:
        with self._lock:
            return self._mappings

    def share(self, num_tables: int) -> int:
        """The most that one more table may reserve, beside so many others.

        While there is plenty, a 64th of what is left of 0.6 of all. Later tables get the total
        divided by 16 times their number, which adds up to a third of all for 2,000 tables and to
        0.55 for 50,000: it never runs out.
        """
        with self._lock:
            left = int(0.6 * self.TOTAL) - self._reserved

        fair = self.TOTAL // (16 * (num_tables + 8))
        return max(left // 64, fair)


def _most_mappings() -> int:
    try:
        return int(Path("/proc/sys/vm/max_map_count").read_text())
    except (OSError, ValueError):
        return _DEFAULT_MAPPINGS


ADDRESSES = Addresses(_most_mappings())  # of this process: addresses are what all its tables share


class Reservation:
    """Zeroed, private, page-aligned memory.

    Nothing is ever moved or unmapped while an array of it lives. Only what was written counts as
    memory of the process: reserving a terabyte costs nothing. Where the system refuses (strict
    overcommit, `ulimit -v`, too many mappings) it is an OSError; the caller may ask for less.

    Pages are small until `use_huge_pages`, also where the system would give huge ones to everybody:
    a small table touches 33 places, and would take 66 MB.
    """

    MAPPINGS = 2  # at most: with small pages and with huge ones

    def __init__(self, nbytes: int) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        self._map = mmap.mmap(-1, nbytes + HUGE_PAGE, flags=flags)

        ADDRESSES.take(nbytes, self.MAPPINGS)
        giver = weakref.finalize(self, ADDRESSES.give, nbytes, self.MAPPINGS)
        giver.atexit = False

        # The part of it that begins with a huge page
        whole = np.frombuffer(self._map, np.uint8)
        address = whole.ctypes.data
        self._begin = -address % HUGE_PAGE

        end = self._begin + nbytes
        self.bytes: NDArray[np.uint8] = whole[self._begin : end]

        self.use_small_pages()

    def array(self, dtype: Any) -> NDArray[Any]:
        """All of it as one flat array."""
        return self.bytes.view(dtype)

    def use_huge_pages(self, begin: int = 0) -> None:
        """Huge pages from `begin` on for what is touched from now on.

        Without them every random read of a large table misses the TLB.
        """
        pages = -(-begin // HUGE_PAGE)
        self._advise("MADV_HUGEPAGE", self._begin + pages * HUGE_PAGE)

    def use_small_pages(self) -> None:
        self._advise("MADV_NOHUGEPAGE", 0)

    def _advise(self, name: str, begin: int) -> None:
        """Up to the end of the mapping: so there are two parts with different advice at most."""
        option = getattr(mmap, name, None)
        length = len(self._map) - begin
        if option is None or length <= 0:
            return

        try:
            self._map.madvise(option, begin, length)
        except OSError:
            logger.debug("advice refused %s length=%d", name, length)

    def release(self) -> None:
        """Give all pages back; the memory reads as zeros again."""
        if sys.platform == "linux":
            self._map.madvise(mmap.MADV_DONTNEED)
        else:  # elsewhere DONTNEED may keep the contents
            self.bytes[:] = 0
