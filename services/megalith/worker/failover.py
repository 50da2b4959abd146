"""What a worker does when servers are away for longer than one step waits for them."""

import logging
from collections.abc import Callable

from megalith.wire.errors import DeadlinePassed, OutcomeUnknown, Overloaded, StaleEpoch, Unavailable

logger = logging.getLogger(__name__)

# ABORTED, DEADLINE_EXCEEDED, UNAVAILABLE (nobody at an address, PeerUnreachable, is one of them) and a server that has
# too much to do for now; and a write that was not answered, which is asked about again. Everything else is a fault that
# another try would meet again: it ends the worker.
RETRIABLE = (StaleEpoch, DeadlinePassed, Unavailable, Overloaded, OutcomeUnknown)


class Failover:
    """Takes a step again after it failed for a passing reason, up to a budget.

    Each failure waits `wait_s`. As long as the cluster is the same one, tries are not counted: the servers may answer
    again. A try after the cluster changed (a new epoch) counts against `max_retries`; a step that succeeds gives the
    budget back. The reference counts over the whole life of a job and starts with a budget of 0, so that its first
    replaced ps ends a job that does not ask for partial recovery; here the budget is for one interruption.

    A step is computed again only if no server has applied any of its push, nor may have. While that is not known, a try
    asks for the outcome of that very push.
    """

    def __init__(
        self,
        wait_s: float,
        max_retries: int,
        epoch: Callable[[], int],
        pause: Callable[[float], bool],
        on_failover: Callable[[], None],
    ) -> None:
        self._wait_s, self._max_retries, self._epoch = wait_s, max_retries, epoch
        self._pause, self._on_failover = pause, on_failover

    def run(self, step: Callable[[], None]) -> None:
        """Until the step succeeds, the budget is spent, or `pause` returns False: then the last error is raised."""
        epoch, retries = self._epoch(), 0
        while True:
            try:
                return step()
            except RETRIABLE as error:
                self._on_failover()
                if not self._pause(self._wait_s):
                    raise
                if self._epoch() == epoch:
                    logger.warning("Temporary error: %s. Retrying...", error)
                    continue
                epoch, retries = self._epoch(), retries + 1
                if retries > self._max_retries:
                    raise
                logger.warning(
                    "the cluster changed: try %d of %d after: %s", retries, self._max_retries, error
                )
