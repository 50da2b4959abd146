"""What a worker knows of the cluster, and the waits that depend on it."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum


class Phase(Enum):
    """The controller's phases, as a worker needs to tell them apart."""

    WAITING = "waiting"  # forming, or a phase of a newer controller
    INITIALIZING = "initializing"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class Barrier:
    """Whether training is held; `id` is the number of the newest hold, over the whole job.

    `actions` are those of everybody who holds it, each with the number of its hold, by that number.
    """

    id: int = 0
    is_placed: bool = False
    actions: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class State:
    """The newest state from the controller.

    `positions` are batches done, by worker, for one that has not begun; the global step was `first_step` before them.
    """

    phase: Phase = Phase.WAITING
    epoch: int = 0
    barrier: Barrier = Barrier()
    finished_workers: frozenset[int] = frozenset()
    positions: tuple[int, ...] = ()
    global_step: int = 0
    first_step: int = 0
    is_saved: bool = False  # the trained model is in a checkpoint


class ClusterView:
    """The newest state, with waits for it to change. The condition guards `_state` and `_is_stopping`."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._state = State()
        self._is_stopping = False

    def update(self, state: State) -> None:
        with self._changed:
            self._state = state
            self._changed.notify_all()

    def stop(self) -> None:
        """Release every wait for good."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()

    @property
    def state(self) -> State:
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

    def wait_for(self, condition: Callable[[State], bool], timeout_s: float | None = None) -> bool:
        """Block until the state satisfies `condition` (True), or the worker stops or time is over (False)."""
        with self._changed:
            is_met = self._changed.wait_for(
                lambda: self._is_stopping or condition(self._state), timeout_s
            )
            return is_met and not self._is_stopping
