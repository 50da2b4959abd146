"""The end of a job as the chief sees it: it is done after everybody else, but does not wait for ever."""

import logging
import time
from collections.abc import Callable

from megalith.worker.gate import Gate
from megalith.worker.view import ClusterView

logger = logging.getLogger(__name__)

_LOG_EVERY_S = 60.0


def wait_for_others(
    gate: Gate,
    view: ClusterView,
    num_workers: int,
    timeout_s: float,
    log_every_s: float = _LOG_EVERY_S,
    clock: Callable[[], float] = time.monotonic,
) -> bool:
    """Block until workers 1.. are finished or `timeout_s` is over (True), or this worker stops (False)."""
    others = frozenset(range(1, num_workers))
    deadline = clock() + timeout_s
    while not gate.wait_for(
        lambda state: others <= state.finished_workers,
        max(0.0, min(log_every_s, deadline - clock())),
    ):
        remaining = sorted(others - view.state.finished_workers)
        if view.is_stopping:
            return False
        if clock() >= deadline:
            logger.warning("Reach timeout seconds! Remaining worker count: %d.", len(remaining))
            return True
        logger.info("waiting for workers %s", remaining)
    if others:
        logger.info("All other workers had been finished.")
    return True
