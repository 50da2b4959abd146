"""The global step: how many batches the workers of a job have trained, exact whoever dies.

    worker_steps_3   [first + batches of worker 0, first + batches of worker 1, first + batches of worker 2]
    global_step      first + batches of all of them

`first` is the step at which this run began. A worker raises its place with each push; to raise is to take the larger
value, so a push that is sent again, a batch that is trained again and a ps that comes back with old values change
nothing that the next push does not mend. Places of an earlier run are not above `first` and count nothing.
"""

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megalith.wire.schema import VariableConfig
from megalith.worker.view import State

GLOBAL_STEP = "global_step"  # int64 on a ps: for everybody who wants to know; never above the truth


class StepCounter:
    """What one worker knows of the steps of all.

    The lock guards what was seen: the training thread counts, and the chief's initialization makes lost counts again.
    """

    def __init__(self, index: int) -> None:
        self._index = index
        self._lock = threading.Lock()
        self._places = np.zeros(0, np.int64)
        self._step = 0  # the newest global step seen
        self._published = 0  # the newest value of GLOBAL_STEP seen

    @property
    def step(self) -> int:
        with self._lock:
            return self._step

    @property
    def is_published(self) -> bool:
        """Whether GLOBAL_STEP says what this worker knows. A push of one worker may not know of another's."""
        with self._lock:
            return self._published >= self._step

    def unpublish(self) -> None:
        """A ps was replaced: what GLOBAL_STEP was seen to be may be lost."""
        with self._lock:
            self._published = 0

    def variables(self, state: State, position: int) -> list[VariableConfig]:
        """What the chief creates; they start from what it knows."""
        return [VariableConfig(name, value) for name, value in self.least(state, position).items()]

    def least(self, state: State, position: int) -> dict[str, NDArray[np.int64]]:
        """What the variables are at least, by name, once this worker has done `position` batches."""
        first = state.first_step
        with self._lock:
            places = self._merged(first + np.array(state.positions, np.int64))
            places[self._index] = max(places[self._index], first + position)
            step = max(self._step, state.global_step, _total(places, first))
        return {_name_of_places(places.size): places, GLOBAL_STEP: np.array(step, np.int64)}

    def answered(self, state: State, values: Mapping[str, NDArray[Any]]) -> int:
        """The global step, now that the variables are known to have these values."""
        with self._lock:
            self._places = self._merged(values[_name_of_places(len(state.positions))])
            self._published = int(values[GLOBAL_STEP])
            self._step = max(self._step, self._published, _total(self._places, state.first_step))
            return self._step

    def _merged(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        return (
            np.maximum(self._places, places) if self._places.size == places.size else places.copy()
        )


def _name_of_places(num_workers: int) -> str:
    """A job with another number of workers, which may restore this one's checkpoint, has a vector of its own."""
    return f"worker_steps_{num_workers}"


def _total(places: NDArray[np.int64], first: int) -> int:
    return first + int(np.maximum(places - first, 0).sum())
