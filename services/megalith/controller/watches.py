"""Looking every second: who is silent, whether a newer controller serves the job, metrics."""

import logging
import threading
import time

from megalith.controller.coordinator import Coordinator
from megalith.controller.guarded import guarded
from megalith.controller.job_metrics import JobMetrics
from megalith.controller.members.directives import Phase
from megalith.controller.members.roster import Patience, Role
from megalith.controller.ownership import ModelDirOwnership
from megalith.controller.selection.formation import Formation
from megalith.runtime.process.lifecycle import ExitRequest

_LONGEST_S = 1.0  # between two looks

logger = logging.getLogger(__name__)

_LOOK_S = 0.5  # between two looks at what only time decides: vacant shards, missing answers
_LINE_S = 5.0  # between two lines about parameter servers that are missing


class MemberWatch:
    """Looks a few times within the shortest patience. `run` belongs to one thread."""

    def __init__(
        self,
        coordinator: Coordinator,
        ownership: ModelDirOwnership,
        job_metrics: JobMetrics,
        exit_request: ExitRequest,
        patience: Patience,
    ) -> None:
        self._coordinator = coordinator
        self._ownership = ownership
        self._job_metrics = job_metrics
        self._exit_request = exit_request
        self._every_s = min(_LONGEST_S, patience.silence_s / 4, patience.suspect_s / 4)

    def run(self, stopping: threading.Event) -> None:
        looks = (
            guarded("looking for a newer controller", self._step_down_if_replaced),
            guarded("watching members", self._coordinator.watch),
            guarded("job metrics", self._job_metrics.watch),
        )
        while not stopping.wait(self._every_s):
            for look in looks:
                look()

    def _step_down_if_replaced(self) -> None:
        """Leave the job to a controller that was started while this one seemed dead."""
        if self._ownership.is_replaced:
            self._exit_request.request(1, self._ownership.replacement)


class Forming:
    """Has parameter servers chosen, and says how many are missing. `run` belongs to one thread."""

    def __init__(self, coordinator: Coordinator, formation: Formation, num_awaited: int) -> None:
        self._coordinator = coordinator
        self._formation = formation
        self._num_awaited = num_awaited

    def run(self, stopping: threading.Event) -> None:
        next_line = 0.0
        advance = guarded("choosing parameter servers", self._formation.advance)
        while not stopping.is_set():
            advance()
            is_forming = self._coordinator.state().phase is Phase.FORMING
            if is_forming and time.monotonic() >= next_line:
                left = self.num_left_ps()
                logger.info("Got %d ps, %d left!", self._num_awaited - left, left)
                next_line = time.monotonic() + _LINE_S

            self._formation.wait_for_change(_LOOK_S)

    def num_left_ps(self) -> int:
        """Parameter servers that are waited for."""
        if self._formation.is_selective:
            return self._formation.num_left

        missing = 0
        for seat, _, _ in self._coordinator.seats():
            if seat.role is Role.PS and not seat.is_connected:
                missing += 1

        return missing
