"""Increments: what changed since the newest checkpoint, saved in short intervals."""

import logging
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path

from megalith.checkpoint import catalog, increments
from megalith.checkpoint.increments import Chain
from megalith.controller.coordinator import Coordinator
from megalith.controller.guarded import guarded
from megalith.controller.job_metrics import IncrementCounts
from megalith.controller.members.directives import Phase
from megalith.controller.saving.leftovers import discard
from megalith.controller.saving.records import SaveRecord
from megalith.controller.saving.saves import Saver
from megalith.controller.saving.schedule import Unsaved
from megalith.controller.saving.shard_writing import ShardWriting
from megalith.controller.saving.start_point import StartPoint
from megalith.errors import (
    ChangesForgotten,
    CheckpointDamaged,
    CheckpointNotFound,
    MegalithError,
)

logger = logging.getLogger(__name__)

_EVERY_S = 0.25  # between two looks at whether an increment is due
# A new checkpoint takes the place of increments that are larger than this share of the old one, so
# that a restore reads at most half as much again. Small ones are left alone until there are many.
_MOST_SHARE = 0.5
_LEAST_BYTES = 64 << 20
_MOST_INCREMENTS = 1000


class IncrementSaves:
    """Takes an increment every `every_s` seconds, once there is a checkpoint; 0 = none.

    `run` belongs to one thread. `_lock` guards when the last one was.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        saver: Saver,
        start_point: StartPoint,
        unsaved: Unsaved,
        counts: IncrementCounts,
        model_dir: Path,
        every_s: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._coordinator = coordinator
        self._saver = saver
        self._start_point = start_point
        self._unsaved = unsaved
        self._counts = counts
        self._model_dir = model_dir
        self._every_s = every_s
        self._clock = clock
        self._lock = threading.Lock()
        self._last_at = time.monotonic()

    def run(self, stopping: threading.Event) -> None:
        take_if_due = guarded("the increment", self._take_if_due)
        while self._every_s and not stopping.wait(min(_EVERY_S, self._every_s)):
            take_if_due()

    def saved(self, record: SaveRecord) -> None:
        """A full save has ended. If the job starts from it, older increments are needless."""
        if record.error or not record.is_own or not record.is_whole:
            return

        self._restart()
        if not catalog.is_newest(self._model_dir, Path(record.path)):
            return

        try:
            increments.remove_all(self._model_dir)
        except OSError as error:
            logger.warning("increments that are not needed any more stay: %s", error)

    def _restart(self) -> None:
        with self._lock:
            self._last_at = time.monotonic()

    def _is_due(self) -> bool:
        with self._lock:
            return time.monotonic() - self._last_at >= self._every_s

    def _take_if_due(self) -> None:
        if not self._is_due() or self._coordinator.state().phase is not Phase.RUNNING:
            return

        base = self._start_point.newest
        if base is None or self._coordinator.lacks_rows:
            return  # there is nothing to go on from, or nobody may start from what there is
        if not self._coordinator.has_unsaved_pushes:
            return

        try:
            self._take_or_save(base)
        except (ChangesForgotten, CheckpointDamaged, CheckpointNotFound) as error:
            logger.warning("a full save takes the place of an increment: %s", error)
            self._counts.replaced += 1
            self._save()
        except (MegalithError, OSError) as error:
            logger.warning("an increment failed, the next one is planned: %s", error)
            self._counts.failed += 1
        finally:
            self._restart()

    def _take_or_save(self, base: Path) -> None:
        chain = increments.read_chain(base)
        if not chain.base.save_id:
            raise ChangesForgotten(f"{base} is of an early version, which had no increments")
        if not base.parent.samefile(self._model_dir):
            raise ChangesForgotten(f"{base} is in another directory, which stays as it is")

        if is_long(chain):
            logger.info("a full save takes the place of %d increments", chain.number)
            self._save()
            return

        self._saver.in_turn(self._take)

    def _save(self) -> None:
        try:
            self._saver.save()
        except MegalithError as error:
            logger.warning("the full save in place of an increment failed: %s", error)

    def _take(self, shards: ShardWriting) -> None:
        """Write one increment; no save is under way."""
        base = self._start_point.newest
        if base is None or not catalog.is_newest(self._model_dir, base):
            return  # nobody would start from it: the list names another checkpoint by now

        started = time.monotonic()
        chain = increments.read_chain(base)
        link = chain.next_link()
        step = self._coordinator.global_step
        began_at_s = max(self._clock(), chain.last.saved_at_s)
        save_id = secrets.token_hex(4)
        folder = catalog.work_directory(self._model_dir, step, save_id).absolute()
        folder.mkdir()
        try:
            saved = shards.write(folder, step, save_id, began_at_s, link)
            self._coordinator.check_current()
            path = increments.publish(folder, base, link.number)
        except BaseException:
            discard(folder)
            raise

        seconds = time.monotonic() - started
        num_bytes = sum(file.bytes for file in saved.files)
        logger.info(
            "saved increment path=%s step=%d bytes=%d seconds=%.2f", path, step, num_bytes, seconds
        )
        base_path = str(base.absolute())
        self._unsaved.saved(base_path, step, link.number)
        self._coordinator.checkpoint_saved(base_path, began_at_s, shards.pushes_written())
        self._counts.taken += 1


def is_long(chain: Chain) -> bool:
    """Whether a new checkpoint should take the place of the increments."""
    if chain.number >= _MOST_INCREMENTS:
        return True

    most = max(_LEAST_BYTES, _MOST_SHARE * chain.base_bytes)
    return chain.increment_bytes > most
