"""What may happen between two steps beside the task's own wishes: signals, files and the clock."""

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from megalith.controller.saving.permit import SavePermit
from megalith.controller.step_files import StepFiles
from megalith.local.wishes import Operator

logger = logging.getLogger(__name__)

_LOOK_S = 1.0


class RankOperator(Operator):
    """Of one rank; its wishes count for all of them.

    Every rank may be told to stop by `is_stopped`. Rank 0 looks at the clock and at the files of
    the model directory, about once a second: only it is given a `folder`.
    """

    def __init__(
        self,
        folder: Path | None,
        first_step: int,
        *,
        save_every_s: float = 0.0,
        save_every_steps: int = 0,
        save_only_online: bool = False,
        figures_every_s: float = 0.0,
        is_stopped: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(first_step, save_every_steps)
        self._save_every_s = save_every_s
        self._figures_every_s = figures_every_s
        self._is_stopped = is_stopped
        self._clock = clock
        self._step = first_step
        self._req_time_s = 0
        self._saved_at = clock()
        self._counted_at = clock()
        self._look_at = clock()
        self._is_save_asked = False
        self._is_stop_asked = False
        self._files: StepFiles | None = None
        self._permit: SavePermit | None = None
        if folder is not None:
            self._permit = SavePermit(folder, None, save_only_online)
            self._files = StepFiles(
                folder,
                first_step,
                step=lambda: self._step,
                req_time_s=lambda: self._req_time_s,
                save=self._ask_for_save,
                stop=lambda _: self._ask_for_stop(),
            )

    def wants_save(self, step: int) -> bool:
        self._step = step
        if self._files is not None and self._clock() >= self._look_at:
            self._look_at = self._clock() + _LOOK_S
            self._files.look()

        return self._is_save_asked or self._is_planned(step)

    def wants_stop(self) -> bool:
        return self._is_stop_asked or self._is_stopped()

    def wants_counts(self) -> bool:
        every_s = self._figures_every_s
        is_due = every_s > 0 and self._clock() - self._counted_at >= every_s
        return is_due and self._files is not None

    def counted(self, rows_by_table: Mapping[str, int]) -> None:
        self._counted_at = self._clock()
        if self._files is not None:
            for table, rows in rows_by_table.items():
                logger.info("table=%s rows=%d", table, rows)

    def has_trained(self, req_time_s: int) -> None:
        self._req_time_s = max(self._req_time_s, req_time_s)

    def saved(self) -> None:
        self._is_save_asked = False
        self._saved_at = self._clock()

    def _is_planned(self, step: int) -> bool:
        is_time = self._save_every_s > 0 and self._clock() - self._saved_at >= self._save_every_s
        is_due = is_time or super().wants_save(step)
        return is_due and self._permit is not None and self._permit.is_given()

    def _ask_for_save(self) -> None:
        self._is_save_asked = True

    def _ask_for_stop(self) -> None:
        self._is_stop_asked = True
