"""What a worker does when servers are away for longer than one step waits for them."""

import logging
from collections.abc import Callable

from megalith.control.retry import PASSING
from megalith.errors import OutcomeUnknown

logger = logging.getLogger(__name__)

# What passes for the SDK passes for a step too. A write whose outcome is not known is asked about
# again, which the SDK leaves to its caller. Everything else is a fault that another try would meet
# again: it ends the worker.
RETRIABLE = (*PASSING, OutcomeUnknown)


class Failover:
    """Takes a step again after it failed for a passing reason, up to a budget.

    Each failure waits `wait_s`. As long as the cluster is the same one, tries are not counted: the
    servers may answer again. A try after the cluster changed (a new epoch) counts against
    `max_retries`; a step that succeeds gives the budget back. Monolith counts over the whole life
    of a job and starts with a budget of 0, so that its first replaced ps ends a job that does not
    ask for partial recovery; here the budget is for one interruption.

    A step is computed again only if no server has applied any of its push, nor may have. While that
    is not known, a try asks for the outcome of that very push.
    """

    def __init__(
        self,
        wait_s: float,
        max_retries: int,
        epoch: Callable[[], int],
        pause: Callable[[float], bool],
        on_failover: Callable[[], None],
    ) -> None:
        self._wait_s = wait_s
        self._max_retries = max_retries
        self._epoch = epoch
        self._pause = pause
        self._on_failover = on_failover

    def run(self, step: Callable[[], None]) -> None:
        """Take the step until it succeeds.

        Raises its last error once the budget is spent, or once `pause` returns False.
        """
        epoch = self._epoch()
        retries = 0

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

                epoch = self._epoch()
                retries += 1
                if retries > self._max_retries:
                    raise

                logger.warning(
                    "the cluster changed: try %d of %d after: %s", retries, self._max_retries, error
                )
