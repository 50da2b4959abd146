"""The gate between two steps: closed while the barrier is placed or the cluster is not whole."""

import logging
from collections.abc import Callable, Sequence

from megalith.worker.progress import Progress
from megalith.worker.view import Barrier, ClusterView, Phase, State

logger = logging.getLogger(__name__)

BarrierCallback = Callable[[str], None]
STOP = "Stop"  # the action after which a worker ends its share instead of going on


class Gate:
    """Passed by the training thread before each step; while it waits at a barrier it is not in a step.

    `drain` is called before this worker says that it is blocked: it returns True once it is known of everything that
    earlier steps have sent whether it is applied, so that a blocked worker changes nothing on any server. While that
    is not known the worker is not blocked, however long it takes; False = the worker stops before it is. Then
    `callbacks` get the action of everybody who holds training, each once per hold, before the worker says that it is
    blocked; one that raises is logged.
    """

    def __init__(
        self,
        view: ClusterView,
        progress: Progress,
        announce: Callable[[], None],
        drain: Callable[[], bool],
        callbacks: Sequence[BarrierCallback] = (),
    ) -> None:
        self._view, self._progress, self._announce, self._drain = view, progress, announce, drain
        self._callbacks = (self._note_stop, *callbacks)
        self._called_for = 0  # number of the newest hold whose action the callbacks have had
        self._is_blocked = False
        self._must_stop = False

    def may_step(self) -> bool:
        """Wait until a step may begin (True), or the worker stops or was told to end its share (False)."""
        return self.wait_for(lambda state: state.phase is Phase.RUNNING) and not self._must_stop

    def wait_for(self, condition: Callable[[State], bool], timeout_s: float | None = None) -> bool:
        """Block until no barrier is placed and `condition` holds (True), the worker stops or time is over (False).

        Whenever a barrier is placed meanwhile, this worker is blocked at it; that time does not count.
        """
        try:
            while not self._view.is_stopping:
                state = self._view.state
                if state.barrier.id < self._called_for:
                    self._called_for = (
                        0  # a controller that has lost its journal numbers holds from 1 again
                    )
                if state.barrier.is_placed:
                    self._block(state.barrier)
                    continue
                self._unblock()
                if condition(state):
                    return True
                if not self._view.wait_for(
                    lambda now: now.barrier.is_placed or condition(now), timeout_s
                ):
                    return False
            return False
        finally:
            self._unblock()

    def _block(self, barrier: Barrier) -> None:
        """Wait at the barrier until somebody comes or goes, and say so; this worker is blocked until `_unblock`."""
        if not self._is_blocked and not self._drain():
            return
        for number, action in barrier.actions:
            if number > self._called_for:
                self._called_for = number
                for callback in self._callbacks:
                    self._call(callback, action)
        self._is_blocked = True
        self._progress.set(is_blocked=True, barrier_id=barrier.id)
        self._announce()
        self._view.wait_for(lambda now: now.barrier != barrier)

    def _unblock(self) -> None:
        if self._is_blocked:
            self._is_blocked = False
            self._progress.set(is_blocked=False, barrier_id=0)
            self._announce()

    def _call(self, callback: BarrierCallback, action: str) -> None:
        try:
            callback(action)
        except Exception:
            logger.exception("a barrier callback failed action=%r; training goes on", action)

    def _note_stop(self, action: str) -> None:
        self._must_stop = self._must_stop or action == STOP
