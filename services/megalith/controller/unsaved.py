"""What no checkpoint holds yet."""

import threading

from megalith.controller.coordinator import Coordinator


class Unsaved:
    """Compares the newest checkpoint with what the cluster has done since.

    `_lock` guards the newest checkpoint: saves tell of theirs from several threads.
    """

    def __init__(self, coordinator: Coordinator, path: str, step: int) -> None:
        self._coordinator = coordinator
        self._lock = threading.Lock()
        self._path = path
        self._step = step
        self._pushes = 0

    def saved(self, path: str, step: int) -> None:
        """A checkpoint is complete."""
        pushes = self._coordinator.pushes()
        with self._lock:
            self._path = path
            self._step = step
            self._pushes = pushes

    @property
    def path(self) -> str:
        """The newest checkpoint; empty = there is none."""
        with self._lock:
            return self._path

    def text(self) -> str:
        """Like "steps 12..40 since <path>"; empty when the newest checkpoint holds everything, or nothing was done.

        Without workers nobody counts steps: then any push that a ps has reported since counts.
        """
        with self._lock:
            since = f"since {self._path}" if self._path else "of this job: there is no checkpoint"
            step = self._coordinator.global_step
            if step > self._step:
                return f"steps {self._step}..{step} {since}"
            if self._coordinator.num_workers == 0 and self._coordinator.pushes() != self._pushes:
                return f"pushes of SDK clients {since}"
            return ""
