"""The global step: how many batches the workers of a job have trained, exact whoever dies.

    worker_steps_3   one element for each of 3 workers: first + the batches that it has trained
    global_step      first + the batches that all of them have trained

`first` is the step at which this run began. A worker raises its element with each push. To raise is
to take the larger value, so three things change nothing that the next push does not mend: a push
that is sent again, a batch that is trained again, and a ps that comes back with old values.
Elements of an earlier run are not above `first` and count nothing.
"""

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megalith.client import Cluster
from megalith.schema import VariableConfig
from megalith.worker.session.progress import Progress
from megalith.worker.session.view import KnownState

GLOBAL_STEP = "global_step"  # int64 on a ps: for everybody who wants to know; never above the truth


class StepCounter:
    """What one worker knows of the steps of all.

    The lock guards what was seen: the training thread counts, and the chief's initialization makes
    lost counts again.
    """

    def __init__(self, index: int) -> None:
        self._index = index
        self._lock = threading.Lock()
        self._worker_steps = np.zeros(0, np.int64)
        self._step = 0  # the newest global step seen
        self._published = 0  # the newest value of GLOBAL_STEP seen

    @property
    def step(self) -> int:
        with self._lock:
            return self._step

    @property
    def is_published(self) -> bool:
        """Whether GLOBAL_STEP says what this worker knows.

        A push of one worker may not know of another's.
        """
        with self._lock:
            return self._published >= self._step

    def unpublish(self) -> None:
        """A ps was replaced: what GLOBAL_STEP was seen to be may be lost."""
        with self._lock:
            self._published = 0

    def variables(self, state: KnownState, position: int) -> list[VariableConfig]:
        """What the chief creates; they start from what it knows."""
        return [VariableConfig(name, value) for name, value in self.least(state, position).items()]

    def least(self, state: KnownState, position: int) -> dict[str, NDArray[np.int64]]:
        """What the variables are at least, by name, once `position` batches are done here."""
        first = state.first_step
        reported = first + np.array(state.positions, np.int64)
        with self._lock:
            worker_steps = self._merged(reported)
            own = worker_steps[self._index]
            worker_steps[self._index] = max(own, first + position)
            total = _total(worker_steps, first)
            step = max(self._step, state.global_step, total)

        name = _name_of_worker_steps(worker_steps.size)
        return {name: worker_steps, GLOBAL_STEP: np.array(step, np.int64)}

    def position(self, state: KnownState) -> int:
        """How many batches this worker has trained in this run, also under an earlier holder.

        As far as reports and variables have said so.
        """
        reported = state.first_step + np.array(state.positions, np.int64)
        with self._lock:
            own = int(self._merged(reported)[self._index])

        return own - state.first_step

    def answered(self, state: KnownState, values: Mapping[str, NDArray[Any]]) -> int:
        """The global step, now that the variables are known to have these values."""
        name = _name_of_worker_steps(len(state.positions))
        with self._lock:
            self._worker_steps = self._merged(values[name])
            self._published = int(values[GLOBAL_STEP])
            total = _total(self._worker_steps, state.first_step)
            self._step = max(self._step, self._published, total)
            return self._step

    def _merged(self, worker_steps: NDArray[np.int64]) -> NDArray[np.int64]:
        if self._worker_steps.size != worker_steps.size:
            return worker_steps.copy()
        return np.maximum(self._worker_steps, worker_steps)


class StepPublisher:
    """Brings the counter on the ps up to what this worker knows."""

    def __init__(self, counter: StepCounter, cluster: Cluster, progress: Progress) -> None:
        self._counter = counter
        self._cluster = cluster
        self._progress = progress

    def publish(self, state: KnownState, position: int) -> None:
        """Raise the variables that are behind, and let the progress say what they are then.

        A push counts as training that is not saved. So there is none if nothing is behind: a job
        that starts again after its end, and trains nothing, does not save its model once more.
        """
        least = self._counter.least(state, position)
        values = self._cluster.pull(variables=least).variables
        if _are_behind(values, least, state.first_step):
            values = self._cluster.push(raise_variables=least)

        self._progress.saw(self._counter.answered(state, values))


def _are_behind(
    values: Mapping[str, NDArray[Any]], least: Mapping[str, NDArray[np.int64]], first: int
) -> bool:
    """Whether a value has to be raised. What an earlier run left of a worker counts as `first`."""
    for name, value in values.items():
        counted = value if name == GLOBAL_STEP else np.maximum(value, first)
        if np.any(counted < least[name]):
            return True

    return False


def _name_of_worker_steps(num_workers: int) -> str:
    """The name of the vector, one for each number of workers.

    A job with another number of workers may restore this one's checkpoint.
    """
    return f"worker_steps_{num_workers}"


def _total(worker_steps: NDArray[np.int64], first: int) -> int:
    own_steps = np.maximum(worker_steps - first, 0)
    return first + int(own_steps.sum())
