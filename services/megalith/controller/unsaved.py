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

    def saved(self, path: str, step: int) -> None:
        """A checkpoint is complete."""
        with self._lock:
            self._path = path
            self._step = step

    @property
    def path(self) -> str:
        """The newest checkpoint; empty = there is none."""
        with self._lock:
            return self._path

    def text(self) -> str:
        """Like "steps 12..40 since <path>"; empty when the newest checkpoint holds everything, or nothing was done.

        Any push that a ps has reported counts too: clients beside the workers push without steps.
        """
        with self._lock:
            since = f"since {self._path}" if self._path else "of this job: there is no checkpoint"
            step = self._coordinator.global_step
            if step > self._step:
                return f"steps {self._step}..{step} {since}"
            if self._coordinator.has_unsaved_pushes:
                return (
                    f"pushes of SDK clients {since}"
                    if self._coordinator.num_workers == 0
                    else f"pushes {since}"
                )
            return ""
