"""The gate between two steps: closed while the barrier is placed or the cluster is not whole."""

from collections.abc import Callable

from megalith.worker.progress import Progress
from megalith.worker.view import ClusterView, Phase, State


class Gate:
    """Passed by the training thread before each step.

    `drain` is called before this worker says that it is blocked: it returns once everything that earlier steps have
    under way has been applied, so that a blocked worker changes nothing on any server.
    """

    def __init__(
        self, view: ClusterView, progress: Progress, announce: Callable[[], None], drain: Callable[[], None]
    ) -> None:
        self._view, self._progress, self._announce, self._drain = view, progress, announce, drain

    def may_step(self) -> bool:
        """Wait until a step may begin (True) or the worker stops (False)."""
        while not _is_open(self._view.state) and not self._view.is_stopping:
            if self._view.state.is_barrier_placed:
                self._block()
            else:
                self._view.wait_for(lambda state: _is_open(state) or state.is_barrier_placed)
        return not self._view.is_stopping

    def _block(self) -> None:
        """Wait at the barrier, and say so."""
        self._drain()
        self._progress.set(is_blocked=True)
        self._announce()
        self._view.wait_for(lambda state: not state.is_barrier_placed)
        self._progress.set(is_blocked=False)
        self._announce()


def _is_open(state: State) -> bool:
    return state.phase is Phase.RUNNING and not state.is_barrier_placed
