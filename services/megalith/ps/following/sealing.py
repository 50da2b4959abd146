"""When changes become versions: the clock by which all delta logs are sealed."""

import logging
import threading
import time
from collections.abc import Callable, Sequence

from megalith.engine.table.embedding_table import EmbeddingTable

logger = logging.getLogger(__name__)


class SealingClock:
    """Seals the delta logs of all tables every `every_s`, while `is_needed` says so.

    `_sealed` guards how often it was sealed, and when the last time began.
    """

    def __init__(
        self,
        tables: Callable[[], Sequence[EmbeddingTable]],
        is_needed: Callable[[], bool],
        every_s: float,
    ) -> None:
        self._tables = tables
        self._is_needed = is_needed
        self._every_s = every_s

        self._sealed = threading.Condition()
        self._count = 0
        self._began_s = 0.0

        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="sealing", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End all waits, and the thread."""
        with self._sealed:
            self._is_stopping = True
            self._sealed.notify_all()

        if self._thread.is_alive():
            self._thread.join()

    @property
    def is_stopping(self) -> bool:
        return self._is_stopping

    @property
    def count(self) -> int:
        """How often it was sealed."""
        with self._sealed:
            return self._count

    def wake(self) -> None:
        """It may be needed now."""
        with self._sealed:
            self._sealed.notify_all()

    def wait_after(self, count: int) -> tuple[int, float]:
        """Wait until it was sealed more than `count` times.

        How often it was, and when the last time began, on the monotonic clock. A stop ends the
        wait early.
        """
        with self._sealed:
            self._sealed.wait_for(lambda: self._count > count or self._is_stopping)
            return self._count, self._began_s

    def _run(self) -> None:
        while not self._is_stopping:
            began_s = time.monotonic()
            try:
                self._wait_until_needed()
                began_s = time.monotonic()
                self._seal_all(began_s)
            except Exception:  # replicas see their staleness grow meanwhile
                logger.exception("sealing failed; it is tried again")

            with self._sealed:
                left_s = began_s + self._every_s - time.monotonic()
                self._sealed.wait_for(lambda: self._is_stopping, timeout=max(0.0, left_s))

    def _wait_until_needed(self) -> None:
        with self._sealed:
            self._sealed.wait_for(lambda: self._is_stopping or self._is_needed())

    def _seal_all(self, began_s: float) -> None:
        """Only if every table was sealed are all changes before `began_s` in sets."""
        if self._is_stopping:
            return

        for table in self._tables():
            table.changes.seal()

        with self._sealed:
            self._count += 1
            self._began_s = began_s
            self._sealed.notify_all()
