"""Increments: what changed since the newest checkpoint, saved in short intervals."""

import logging
import math
import secrets
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from megalith.checkpoint.directory import catalog, increments, users
from megalith.checkpoint.directory.increments import Chain, Increment
from megalith.checkpoint.format import LIST
from megalith.checkpoint.storage import files as stored
from megalith.checkpoint.storage.location import Location, locate
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
    ChangesNotNoted,
    CheckpointDamaged,
    CheckpointNotFound,
    MegalithError,
    SaveFailed,
)

logger = logging.getLogger(__name__)

_EVERY_S = 0.25  # between two looks at whether an increment is due
# A new checkpoint takes the place of increments that are larger than this share of the old one, so
# that a restore reads at most half as much again. Small ones are left alone until there are many.
_MOST_SHARE = 0.5
_LEAST_BYTES = 64 << 20
_MOST_INCREMENTS = 1000
# After a full save that failed in their place: each try holds increments up, for as long as it
# takes. Planned saves are made at their times.
_FULL_PAUSE_S = 600.0


class IncrementTrouble(NamedTuple):
    """Since when increments fail, Unix seconds, and why the last one did."""

    since_s: float
    error: str


class IncrementSaves:
    """Takes an increment every `every_s` seconds, once there is a checkpoint; 0 = none.

    Seconds count from the begin of the last increment or full save: what was trained since then is
    perhaps in no file. So after a save that took long an increment is due at once. One that takes
    longer than `every_s` is followed by the next. After one that failed they count from its end: a
    disk that fails slowly gets a pause too.

    `run` belongs to one thread. `_lock` guards where seconds count from, and `_trouble`.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        saver: Saver,
        start_point: StartPoint,
        unsaved: Unsaved,
        counts: IncrementCounts,
        model_dir: Location,
        every_s: float,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._coordinator = coordinator
        self._saver = saver
        self._start_point = start_point
        self._unsaved = unsaved
        self._counts = counts
        self._model_dir = model_dir
        self._every_s = every_s
        self._clock = clock
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._counted_from = self._monotonic()
        self._trouble: IncrementTrouble | None = None
        self._chain: Chain | None = None  # as it was after the last increment; of one thread
        self._full_again_at = -math.inf  # one in place of many increments has failed; of one thread

    def run(self, stopping: threading.Event) -> None:
        take_if_due = guarded("the increment", self._take_if_due)
        while self._every_s and not stopping.wait(self._wait_s()):
            take_if_due()

    def saved(self, record: SaveRecord) -> None:
        """A full save has ended. If the job starts from it, older increments are needless."""
        if record.error or not record.is_own or not record.is_whole:
            return

        self._count_from(self._monotonic() - record.seconds)
        try:
            if catalog.is_newest(self._model_dir, locate(record.path)):
                increments.remove_all(self._model_dir, users.in_use(self._model_dir))
        except (MegalithError, OSError) as error:
            logger.warning("increments that are not needed any more stay: %s", error)

    @property
    def trouble(self) -> IncrementTrouble | None:
        """None while increments succeed, and before the first one."""
        with self._lock:
            return self._trouble

    def _failed(self, error: Exception) -> None:
        with self._lock:
            since_s = self._trouble.since_s if self._trouble else self._clock()
            self._trouble = IncrementTrouble(since_s, str(error) or type(error).__name__)

        self._counts.failed += 1

    def _count_from(self, at: float) -> None:
        """An increment or a save has begun then, or was tried, on the monotonic clock."""
        with self._lock:
            self._counted_from = max(self._counted_from, at)

    def _left_s(self) -> float:
        """Until an increment is due; 0 or less if one is."""
        with self._lock:
            return self._counted_from + self._every_s - self._monotonic()

    def _wait_s(self) -> float:
        left_s = self._left_s()
        longest_s = min(_EVERY_S, self._every_s)
        return left_s if 0 < left_s < longest_s else longest_s

    def _take_if_due(self) -> None:
        if self._left_s() > 0 or self._coordinator.state().phase is not Phase.RUNNING:
            return

        base = self._start_point.newest
        if base is None or self._coordinator.lacks_rows:
            return  # there is nothing to go on from, or nobody may start from what there is
        if not self._coordinator.has_unsaved_pushes:
            return

        began = self._monotonic()
        try:
            self._take_or_save(base)
        except ChangesNotNoted as error:
            if self.trouble is None:
                logger.warning("no increments are made: %s", error)

            self._failed(error)
        except (ChangesForgotten, CheckpointDamaged, CheckpointNotFound) as error:
            logger.warning("a full save takes the place of an increment: %s", error)
            self._counts.replaced += 1
            self._save()
            # From its end: where more ids change in an interval than a delta log holds, full saves
            # would follow each other without a pause.
            began = self._monotonic()
        except (MegalithError, OSError) as error:
            logger.warning("an increment failed, the next one is planned: %s", error)
            self._failed(error)
            began = self._monotonic()
        except Exception as error:  # a fault of this program is no reason to keep it from people
            self._failed(error)
            began = self._monotonic()
            raise
        finally:
            self._count_from(began)

    def _chain_of(self, base: Location) -> Chain:
        """With all increments; those that this thread has read or written are not read again."""
        known = self._chain
        is_known = known is not None and known.directory == base
        if known is None or not is_known or not increments.is_unchanged(known):
            self._chain = None
            known = increments.read_chain(base)
            self._chain = known

        return known

    def _take_or_save(self, base: Location) -> None:
        chain = self._chain_of(base)
        if not chain.base.save_id:
            raise ChangesForgotten(f"{base} is of an early version, which had no increments")
        if not stored.is_same(base.parent, self._model_dir):
            raise ChangesForgotten(f"{base} is in another directory, which stays as it is")

        if is_long(chain) and self._monotonic() >= self._full_again_at:
            logger.info("a full save takes the place of %d increments", chain.number)
            if self._save():
                return

            self._full_again_at = self._monotonic() + _FULL_PAUSE_S

        self._saver.in_turn(self._take)

    def _save(self) -> bool:
        """Whether a full save has become complete.

        If not, there may still be room for an increment, and what it has would be lost without it.
        """
        try:
            self._saver.save(is_stopgap=True)
        except MegalithError as error:
            logger.warning("the full save in place of an increment failed: %s", error)
            return False

        return True

    def _take(self, shards: ShardWriting) -> None:
        """Write one increment; no save is under way."""
        base = self._start_point.newest
        if base is None:
            return
        if not catalog.is_newest(self._model_dir, base):
            raise SaveFailed(
                f"{self._model_dir / LIST} names another checkpoint than {base} as the newest, so "
                "no job would start from an increment of it; a full save puts that right: "
                "megalith ctl save"
            )

        started = self._monotonic()
        self._count_from(started)
        self._coordinator.wait_for_returning_ps()
        if self._coordinator.lacks_rows:
            return  # one that was waited for has restored too little: no job would start from it

        chain = self._chain_of(base)
        link = chain.next_link()
        step = shards.newest_step()
        began_at_s = max(self._clock(), chain.last.saved_at_s)
        save_id = secrets.token_hex(4)
        self._coordinator.check_current()  # else a newer controller's increment would look left
        folder = increments.begin(base, link.number, step, save_id)
        try:
            saved = shards.write(folder, step, save_id, began_at_s, link)
            self._coordinator.check_current()
            path = increments.publish(folder, base, link.number, save_id)
            self._chain = chain.with_next(Increment(path, saved))
        except BaseException:
            if not increments.is_published(folder):
                discard(folder, save_id)

            raise

        seconds = self._monotonic() - started
        num_bytes = sum(file.bytes for file in saved.files)
        logger.info(
            "saved increment path=%s step=%d bytes=%d seconds=%.2f", path, step, num_bytes, seconds
        )
        base_path = str(base.absolute())
        self._unsaved.saved(base_path, step, link.number)
        self._coordinator.checkpoint_saved(base_path, began_at_s, shards.pushes_written())
        self._counts.taken += 1
        with self._lock:
            self._trouble = None


def is_long(chain: Chain) -> bool:
    """Whether a new checkpoint should take the place of the increments."""
    if chain.number >= _MOST_INCREMENTS:
        return True

    most = max(_LEAST_BYTES, _MOST_SHARE * chain.base_bytes)
    return chain.increment_bytes > most
