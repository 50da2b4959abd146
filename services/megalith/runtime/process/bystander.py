"""A process whose role has no work here: it is there as long as the job, and then succeeds."""

import logging
import threading
from collections.abc import Callable

from megalith.discovery import liveness
from megalith.runtime.process.lifecycle import ExitRequest

logger = logging.getLogger(__name__)

_CONNECT_S = 60.0  # a machine that is busy is not one that is gone
_UNTIL_THERE_S = 5.0  # between two looks
_UNTIL_GONE_S = 10.0
_JOIN_S = 1.0  # a connect that hangs is not waited for


class Bystander:
    """Waits until `address` answers, looks at it until it no longer does, and asks for exit 0.

    `wait` lets that time go by, and says whether the process is to stop.
    """

    def __init__(
        self,
        address: str,
        exit_request: ExitRequest,
        *,
        probe: Callable[..., liveness.Liveness] = liveness.probe,
        wait: Callable[[float], bool] | None = None,
    ) -> None:
        self._address = address
        self._exit_request = exit_request
        self._probe = probe

        self._stopping = threading.Event()
        self._wait = wait or self._stopping.wait
        self._watching = threading.Thread(target=self._watch, name="bystander", daemon=True)

    def start(self) -> None:
        logger.info("this role has no work here; waiting for the end of worker-0 %s", self._address)
        self._watching.start()

    def stop(self, grace_s: float) -> None:
        self._stopping.set()
        self._watching.join(_JOIN_S)

    def _watch(self) -> None:
        while not self._is_there():
            if self._wait(_UNTIL_THERE_S):
                return

        logger.info("worker-0 is there")
        while self._is_there():
            if self._wait(_UNTIL_GONE_S):
                return

        self._exit_request.request(0, f"worker-0 {self._address} is gone")

    def _is_there(self) -> bool:
        return self._probe([self._address], _CONNECT_S).are_all_alive
