"""Files of increments that are read before they are needed, on a few threads.

Increments are put on top of each other in their order, and most are small. On an object store the
way to a file takes longer than to put its rows in, so the next ones are on their way meanwhile.
"""

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, NamedTuple, TypeVar

from megalith.checkpoint.layout.manifest import ShardFile
from megalith.checkpoint.storage.location import Location

T = TypeVar("T")

THREADS = 8  # each waits for the storage most of the time
MOST_BYTES = 64 << 20  # of files that are being read, or were read and are not taken yet


class _Reading(NamedTuple, Generic[T]):
    """A file on its way, and what it counts for."""

    content: Future[T]
    size: int


class ReadAhead(Generic[T]):
    """What `read` makes of files, which are taken about in the order in which they are given.

    As many are read ahead as have `most_bytes` together. A file for which there is no room, as for
    one that is larger, is left to whoever takes it. Any thread may take; `_lock` guards what waits
    and what is on its way.
    """

    def __init__(
        self,
        files: Iterable[tuple[Location, ShardFile]],
        read: Callable[[Location, ShardFile], T],
        pool: ThreadPoolExecutor,
        most_bytes: int,
    ) -> None:
        self._read = read
        self._pool = pool
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._waiting: dict[Location, tuple[Location, ShardFile]] = {}
        for directory, file in files:
            if file.bytes <= most_bytes:
                self._waiting[directory / file.name] = directory, file

        self._reading: dict[Location, _Reading[T]] = {}
        self._num_bytes = 0
        with self._lock:
            self._read_more()

    def take(self, directory: Location, file: ShardFile) -> T | None:
        """What was read, once, or the error of that; None if the caller is to read the file."""
        path = directory / file.name
        with self._lock:
            self._waiting.pop(path, None)
            reading = self._reading.pop(path, None)

        if reading is None:
            return None

        try:
            return reading.content.result()
        finally:
            with self._lock:
                self._num_bytes -= reading.size
                self._read_more()

    def _read_more(self) -> None:
        """Begin with those that there is room for. `_lock` is held."""
        while self._waiting:
            path = next(iter(self._waiting))
            directory, file = self._waiting[path]
            if self._num_bytes + file.bytes > self._most_bytes:
                return

            del self._waiting[path]
            self._num_bytes += file.bytes
            content = self._pool.submit(self._read, directory, file)
            self._reading[path] = _Reading(content, file.bytes)
