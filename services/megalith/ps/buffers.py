"""Memory that requests of the bulk lane are read into, shared by all connections."""

import threading

import numpy as np
from numpy.typing import NDArray

_KEPT_BYTES = (
    64 << 20
)  # between requests, over all connections: fresh memory costs a page fault every 4 KB
_LARGEST_KEPT = 16 << 20
_SMALLEST = 1 << 16


class BufferPool:
    """Buffers that no request uses now, the newest last; `_lock` guards them.

    An idle connection holds none, so what is kept does not grow with the connections.
    """

    def __init__(self, kept_bytes: int = _KEPT_BYTES) -> None:
        self._limit = kept_bytes
        self._lock = threading.Lock()
        self._kept: list[NDArray[np.uint8]] = []
        self.kept_bytes = 0

    def take(self, nbytes: int) -> NDArray[np.uint8]:
        """A buffer of at least `nbytes`, with anything in it."""
        with self._lock:
            for place in reversed(range(len(self._kept))):
                if self._kept[place].nbytes >= nbytes:
                    buffer = self._kept.pop(place)
                    self.kept_bytes -= buffer.nbytes
                    return buffer
        # A power of two, so that requests of about the same size use each other's. Pages that nobody writes cost none.
        return np.empty(max(_SMALLEST, 1 << (nbytes - 1).bit_length()), np.uint8)

    def give_back(self, buffer: NDArray[np.uint8]) -> None:
        with self._lock:
            if buffer.nbytes <= _LARGEST_KEPT and self.kept_bytes + buffer.nbytes <= self._limit:
                self._kept.append(buffer)
                self.kept_bytes += buffer.nbytes
