"""Dropping expired rows now and then, beside training."""

import logging
import threading
from collections.abc import Callable, Mapping

logger = logging.getLogger(__name__)


class ExpiryThread:
    """Calls `expire` every `every_s` seconds until it is stopped; 0 never calls it.

    It returns the rows that it dropped, by table.

    A call that fails is logged, and the next one comes in its time: rows that stay a while longer
    do no harm.
    """

    def __init__(self, expire: Callable[[], Mapping[str, int]], every_s: float) -> None:
        self._expire = expire
        self._every_s = every_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="expiry", daemon=True)

    def start(self) -> None:
        if self._every_s:
            self._thread.start()

    def stop(self) -> None:
        """Wait for the call that is running: a pass over the tables."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(self._every_s):
            try:
                dropped = {table: rows for table, rows in self._expire().items() if rows}
            except Exception:
                logger.exception("expiry failed")
                continue

            if dropped:
                logger.info(
                    "expired %s", " ".join(f"{table}={rows}" for table, rows in dropped.items())
                )
