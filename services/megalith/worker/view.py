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
class State:
    """The newest state from the controller."""

    phase: Phase = Phase.WAITING
    epoch: int = 0
    is_barrier_placed: bool = False
    finished_workers: frozenset[int] = frozenset()


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

    def wait_for(self, condition: Callable[[State], bool]) -> bool:
        """Block until the state satisfies `condition` (True) or the worker stops (False)."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_stopping or condition(self._state))
            return not self._is_stopping
