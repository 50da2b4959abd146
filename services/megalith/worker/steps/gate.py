"""The gate between two steps: closed while training is held or the cluster is not whole."""

import logging
from collections.abc import Callable, Sequence

from megalith.worker.session.progress import Progress
from megalith.worker.session.view import BarrierHolds, ClusterPhase, ClusterView, KnownState

logger = logging.getLogger(__name__)

BarrierCallback = Callable[[str], None]
STOP = "Stop"  # the action after which a worker ends its share instead of going on


class Gate:
    """Passed by the training thread before each step.

    A worker that waits here because training is held is *blocked*: it changes nothing on any
    server. Three things happen before it says so, in this order:

    1. `drain` makes sure of everything that earlier steps have sent whether it is applied. That may
       take any time, and returns False only if the worker stops meanwhile.
    2. `callbacks` get the action of each holder, once for each hold. One that raises is logged.
    3. The progress says that the worker is blocked, and `announce` reports it.
    """

    def __init__(
        self,
        view: ClusterView,
        progress: Progress,
        announce: Callable[[], None],
        drain: Callable[[], bool],
        callbacks: Sequence[BarrierCallback] = (),
    ) -> None:
        self._view = view
        self._progress = progress
        self._announce = announce
        self._drain = drain
        self._callbacks = (self._note_stop, *callbacks)
        self._called_for = 0  # number of the newest hold whose action the callbacks have had
        self._series = 0  # the series that number belongs to
        self._is_blocked = False
        self._must_stop = False

    def may_step(self) -> bool:
        """Wait until a step may begin (True).

        False if the worker stops, or was told to end its share.
        """
        is_running = self.wait_for(lambda state: state.phase is ClusterPhase.RUNNING)
        return is_running and not self._must_stop

    def pause(self, seconds: float) -> bool:
        """Let that time go by (True); time in which training is held does not count.

        False if the worker stops, or was told to end its share.
        """
        self.wait_for(lambda state: False, seconds)
        return not self._view.is_stopping and not self._must_stop

    def wait_for(
        self, condition: Callable[[KnownState], bool], timeout_s: float | None = None
    ) -> bool:
        """Block until nobody holds training and `condition` is met (True).

        False if the worker stops, or the time is over. Whenever training is held meanwhile, this
        worker is blocked, and that time does not count.
        """

        def is_held_or_met(state: KnownState) -> bool:
            return state.barrier.is_held or condition(state)

        try:
            while not self._view.is_stopping:
                state = self._view.state
                if state.barrier.is_held:
                    self._block(state.barrier)
                    continue

                self._unblock()
                if condition(state):
                    return True
                if not self._view.wait_for(is_held_or_met, timeout_s):
                    return False

            return False
        finally:
            self._unblock()

    def _block(self, barrier: BarrierHolds) -> None:
        """Be blocked until a holder comes or goes; only `_unblock` ends it."""
        if not self._is_blocked and not self._drain():
            return

        self._call_for_new_holds(barrier)
        self._is_blocked = True
        self._progress.set(is_blocked=True, barrier_id=barrier.newest)
        self._announce()
        self._view.wait_for(lambda now: now.barrier != barrier)

    def _unblock(self) -> None:
        if self._is_blocked:
            self._is_blocked = False
            self._progress.set(is_blocked=False, barrier_id=0)
            self._announce()

    def _call_for_new_holds(self, barrier: BarrierHolds) -> None:
        if barrier.series != self._series:
            self._series = barrier.series
            self._called_for = 0

        for number, action in barrier.actions:
            if number > self._called_for:
                self._called_for = number
                for callback in self._callbacks:
                    self._call(callback, action)

    def _call(self, callback: BarrierCallback, action: str) -> None:
        try:
            callback(action)
        except Exception:
            logger.exception("a barrier callback failed action=%r; training goes on", action)

    def _note_stop(self, action: str) -> None:
        if action == STOP:
            self._must_stop = True
