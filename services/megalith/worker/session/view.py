"""What a worker knows of the cluster, and the waits that depend on it."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum


class ClusterPhase(Enum):
    """The controller's phases, as a worker needs to tell them apart."""

    WAITING = "waiting"  # forming, or a phase of a newer controller
    INITIALIZING = "initializing"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class BarrierHolds:
    """Whether training is held, and by whom.

    `newest` is the number of the newest hold, over the whole job, also when that hold has ended.
    `actions` has the action of each holder after the number of its hold, the lowest number first.
    `series` tells equal numbers apart: a controller that has lost its journal numbers holds from 1
    again, and `ClusterView` counts how often that has happened.
    """

    newest: int = 0
    is_held: bool = False
    actions: tuple[tuple[int, str], ...] = ()
    series: int = 0

    def is_numbered_anew_after(self, earlier: "BarrierHolds") -> bool:
        """Whether these holds cannot follow `earlier` in the same series.

        In a series numbers only grow, and a hold that has ended does not come back.
        """
        if self.newest < earlier.newest:
            return True

        for number, action in self.actions:
            was_seen = (number, action) in earlier.actions
            if number <= earlier.newest and not was_seen:
                return True

        return False


@dataclass(frozen=True, slots=True)
class KnownState:
    """What this worker knows of the cluster: the newest state from the controller.

    `positions` says of each worker how many batches it has trained in this run, and `cursors` where
    its input is after them; a worker that has just started begins there. The run began at the
    global step `first_step`, and counts its own batches on top of that. Its input began at
    `first_cursors`, those of the workers of a checkpoint.
    """

    phase: ClusterPhase = ClusterPhase.WAITING
    epoch: int = 0
    barrier: BarrierHolds = BarrierHolds()
    finished_workers: frozenset[int] = frozenset()
    positions: tuple[int, ...] = ()
    global_step: int = 0
    first_step: int = 0
    is_saved: bool = False  # the trained model is in a checkpoint
    cursors: tuple[bytes, ...] = ()
    first_cursors: tuple[bytes, ...] = ()


class ClusterView:
    """The newest state, with waits for it to change.

    The condition guards `_state` and `_is_stopping`.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._state = KnownState()
        self._is_stopping = False

    def update(self, state: KnownState) -> None:
        with self._changed:
            earlier = self._state.barrier
            # Noticed here, where every state arrives: the training thread sees none of those that
            # come and go during one of its steps.
            is_anew = state.barrier.is_numbered_anew_after(earlier)
            series = earlier.series + 1 if is_anew else earlier.series
            barrier = replace(state.barrier, series=series)
            self._state = replace(state, barrier=barrier)
            self._changed.notify_all()

    def stop(self) -> None:
        """Release every wait for good."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()

    @property
    def state(self) -> KnownState:
        with self._changed:
            return self._state

    @property
    def is_stopping(self) -> bool:
        with self._changed:
            return self._is_stopping

    def pause(self, seconds: float) -> bool:
        """Let that time go by (True), unless the worker stops (False)."""
        self.wait_for(lambda state: False, seconds)
        return not self.is_stopping

    def wait_for_end(self) -> bool:
        """Block until the job is over (True), or the worker stops (False)."""
        return self.wait_for(lambda state: state.phase is ClusterPhase.FINISHED)

    def wait_for(
        self, condition: Callable[[KnownState], bool], timeout_s: float | None = None
    ) -> bool:
        """Block until the state satisfies `condition` (True).

        False if the worker stops, or the time is over.
        """

        def is_answered() -> bool:
            return self._is_stopping or condition(self._state)

        with self._changed:
            is_in_time = self._changed.wait_for(is_answered, timeout_s)
            return is_in_time and not self._is_stopping
