"""Dense-only saves: the variables alone, on a clock of their own, in a directory of their own."""

import logging
import time
from collections.abc import Mapping
from pathlib import Path

from megalith.checkpoint.directory import catalog, exempt_list
from megalith.checkpoint.storage.location import Location
from megalith.controller.coordinator import Coordinator
from megalith.controller.job_metrics import JobMetrics, SaveMode
from megalith.controller.saving.leftovers import remove_leftovers
from megalith.controller.saving.records import SaveRecord
from megalith.controller.saving.schedule import SaveSchedule
from megalith.errors import MegalithError

logger = logging.getLogger(__name__)


def prepare(directory: Location) -> None:
    """Make the directory, or mend what an earlier controller has left there.

    What cannot be mended keeps no job from training. Each save into it says that it fails.
    """
    try:
        if isinstance(directory, Path):
            directory.mkdir(exist_ok=True)

        catalog.complete_list(directory)
        catalog.recover_list(directory)
        exempt_list.create(directory)
        remove_leftovers(directory)
    except (MegalithError, OSError) as error:
        logger.error("dense-only saves will fail until this is corrected: %s", error)


class DenseOnlyNews:
    """Notes what became of dense-only saves, and whether the next one is wanted.

    Saves and questions come from one thread.
    """

    def __init__(
        self, coordinator: Coordinator, schedule: SaveSchedule, job_metrics: JobMetrics
    ) -> None:
        self._coordinator = coordinator
        self._schedule = schedule
        self._job_metrics = job_metrics
        self._pushes: Mapping[int, int] = {}  # in the last one for sure, by session of the ps

    def tell(self, record: SaveRecord) -> None:
        self._job_metrics.saved(record, SaveMode.DENSE_ONLY)
        self._schedule.restart(time.monotonic(), record.step)
        if not record.error:
            self._pushes = record.pushes

    def is_wanted(self) -> bool:
        """Not of a part of a model, and not of what the last one has already."""
        if self._coordinator.lacks_rows:
            return False

        return self._coordinator.has_pushes_beyond(self._pushes)
