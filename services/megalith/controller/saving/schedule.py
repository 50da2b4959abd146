"""When the next save is due: by the clock, by steps, or never."""

import logging
import math
import threading
import time
from collections.abc import Callable

from megalith.checkpoint.storage.location import locate
from megalith.controller.coordinator import Coordinator
from megalith.controller.guarded import guarded
from megalith.controller.job_metrics import JobMetrics
from megalith.controller.members.directives import Phase
from megalith.controller.saving.records import SaveRecord
from megalith.controller.saving.saves import Saver
from megalith.controller.saving.tide import Tide
from megalith.errors import MegalithError

logger = logging.getLogger(__name__)

_EVERY_S = 0.5  # between two looks at whether a save is due, or possible
# Between two tries of a first save, also where saves are planned by steps alone: one that fails
# costs the ps as much as one that does not
_LONGEST_RETRY_S = 600.0


class SaveSchedule:
    """Counts from the last save, asked for or planned, and from the start.

    One that is made in place of an increment does not count.

    So there is no save at the start. A first one may be due earlier than those after it, because
    there are no increments before it. If it fails it stays the first one, and is tried again after
    as many seconds, then after twice as many each time, up to ten minutes, and never later than any
    other. Outside the hours of `tide` its seconds count alone.

    `_lock` guards where it counts from.
    Times are those of a monotonic clock: setting the machine's clock neither brings a save forward
    nor delays it.
    """

    def __init__(
        self,
        every_s: float,
        every_steps: int,
        now: float,
        step: int,
        tide: Tide | None = None,
        first_s: float = 0.0,
    ) -> None:
        """`first_s` = the first save is due after so many seconds already; 0 = as any other."""
        self._planned_s = every_s
        self._planned_steps = every_steps
        self._tide = tide
        self._lock = threading.Lock()
        self._last_at = now
        self._last_step = step
        self._first_s = first_s  # 0 after the first
        self._has_failed = False  # a try of the first one

    def restart(self, now: float, step: int, *, has_failed: bool = False) -> None:
        """A save has been made, or tried."""
        with self._lock:
            # A save that fails is tried twice: the second try is no reason for a longer pause.
            is_next_save = now - self._last_at >= self._first_s
            if not has_failed:
                self._first_s = 0.0
            elif self._has_failed and is_next_save:
                longest_s = max(self._first_s, _LONGEST_RETRY_S)
                self._first_s = min(2 * self._first_s, longest_s)

            self._has_failed = has_failed
            self._last_at = now
            self._last_step = step

    def _cadence(self) -> tuple[float, int]:
        """(seconds, steps) between two saves, as they count at this time of the day."""
        every_s, every_steps = self._planned_s, self._planned_steps
        if self._tide is not None and not self._tide.is_open:
            every_s, every_steps = self._tide.save_s, 0

        with self._lock:
            first_s = self._first_s

        are_planned = every_s > 0 or every_steps > 0
        if first_s and are_planned:
            every_s = min(first_s, every_s or math.inf)

        return every_s, every_steps

    def is_due(self, now: float, step: int) -> bool:
        next_step = self.next_step
        is_due_by_steps = next_step > 0 and step >= next_step
        return is_due_by_steps or self.next_s(now) <= 0

    def next_s(self, now: float) -> float:
        """Seconds until a save is due by the clock; infinite without one."""
        every_s, _ = self._cadence()
        with self._lock:
            return self._last_at + every_s - now if every_s else math.inf

    @property
    def next_step(self) -> int:
        """The step at which a save is due; 0 without one."""
        _, every_steps = self._cadence()
        with self._lock:
            return self._last_step + every_steps if every_steps else 0


class Unsaved:
    """Compares the newest checkpoint with what the cluster has done since.

    `_lock` guards the newest checkpoint: saves tell of theirs from several threads.
    """

    def __init__(self, coordinator: Coordinator, path: str, step: int, increments: int = 0) -> None:
        self._coordinator = coordinator
        self._lock = threading.Lock()
        self._path = path
        self._step = step
        self._increments = increments
        self._began_at_s = 0.0  # the newest save that this process knows of, Unix seconds

    def saved(
        self, path: str, step: int, increments: int = 0, began_at_s: float | None = None
    ) -> None:
        """A checkpoint is complete, or an increment of one, which has so many of them now.

        `began_at_s` is said of a checkpoint, Unix seconds.
        """
        with self._lock:
            if began_at_s is not None:
                self._began_at_s = began_at_s

            self._path = path
            self._step = step
            self._increments = increments

    @property
    def path(self) -> str:
        """The newest checkpoint; empty = there is none."""
        with self._lock:
            return self._path

    @property
    def is_in_increments(self) -> bool:
        """Whether only increments have some of what was trained."""
        with self._lock:
            return self._increments > 0

    @property
    def is_behind(self) -> bool:
        """Whether the newest checkpoint itself lacks some of what was trained, or there is none.

        Or whether it has a table that was dropped since.
        """
        if not self.path or self.text() or self.is_in_increments:
            return True

        dropped = self._coordinator.dropped_tables()
        with self._lock:
            return any(at_s >= self._began_at_s for at_s in dropped.values())

    def _since(self) -> str:
        if not self._path:
            return "of this job: there is no checkpoint"
        if not self._increments:
            return f"since {self._path}"

        return f"since increment {self._increments} of {self._path}"

    def text(self) -> str:
        """Like "steps 12..40 since <path>"; empty if nothing was done that is not saved.

        Any push that a ps has reported counts too: clients beside the workers push without steps.
        """
        with self._lock:
            since = self._since()
            step = self._coordinator.global_step
            if step > self._step:
                return f"steps {self._step}..{step} {since}"

            if self._coordinator.has_unsaved_pushes:
                if self._coordinator.num_workers == 0:
                    return f"pushes of SDK clients {since}"
                return f"pushes {since}"

            return ""


class ScheduledSaves:
    """Saves when the schedule says so, and `is_wanted` too. `run` belongs to one thread."""

    def __init__(
        self,
        coordinator: Coordinator,
        saver: Saver,
        schedule: SaveSchedule,
        what: str = "the planned save",
        hold: bool = False,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        self._coordinator = coordinator
        self._saver = saver
        self._schedule = schedule
        self._what = what
        self._hold = hold
        self._is_wanted = is_wanted

    def run(self, stopping: threading.Event) -> None:
        save_if_due = guarded(self._what, self._save_if_due)
        while not stopping.wait(_EVERY_S):
            save_if_due()

    def _save_if_due(self) -> None:
        if self._coordinator.state().phase is not Phase.RUNNING:
            return
        if not self._is_due():
            return

        try:
            self._saver.save_if(self._is_due, hold=self._hold)
        except MegalithError as error:
            next_s = self._schedule.next_s(time.monotonic())
            due = "planned" if math.isinf(next_s) else f"due in {next_s:.0f} s"
            logger.warning("%s failed, the next one is %s: %s", self._what, due, error)

    def _is_due(self) -> bool:
        is_due = self._schedule.is_due(time.monotonic(), self._coordinator.global_step)
        return is_due and self._is_wanted()


class SaveNews:
    """Tells everybody who must know that a save has ended."""

    def __init__(
        self,
        coordinator: Coordinator,
        schedule: SaveSchedule,
        unsaved: Unsaved,
        job_metrics: JobMetrics,
    ) -> None:
        self._coordinator = coordinator
        self._schedule = schedule
        self._unsaved = unsaved
        self._job_metrics = job_metrics

    def tell(self, record: SaveRecord) -> None:
        self._job_metrics.saved(record)
        if not record.is_own:
            # A copy for somebody else: this job, and a ps that is replaced, do not start from it
            return

        if not record.is_stopgap:
            # Where each increment needs a full save, planned ones would never be due. And only they
            # stay: each stopgap goes with the next save.
            now = time.monotonic()
            self._schedule.restart(now, record.step, has_failed=bool(record.error))

        # A part of a model does not make up for what is not saved: nobody starts from it.
        if not record.error and record.is_whole:
            path = str(locate(record.path).absolute())
            began_at_s = record.ended_at_s - record.seconds
            self._unsaved.saved(path, record.step, began_at_s=began_at_s)
            self._coordinator.checkpoint_saved(path, began_at_s, record.pushes)
