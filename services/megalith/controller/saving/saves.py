"""Saving a checkpoint: every ps writes its shard.

The folder gets its name last, which makes the checkpoint exist.
"""

import contextlib
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

from megalith.checkpoint.directory import catalog, exempt_list, row_counts
from megalith.checkpoint.directory.catalog import Recorded
from megalith.checkpoint.directory.retention import Retention
from megalith.checkpoint.format import LIST
from megalith.checkpoint.layout.manifest import Manifest
from megalith.checkpoint.storage import files as stored
from megalith.checkpoint.storage.location import Location, locate
from megalith.checkpoint.storage.preparation import prepared
from megalith.controller.coordinator import Coordinator
from megalith.controller.saving import checkpoint_dir
from megalith.controller.saving.leftovers import discard
from megalith.controller.saving.records import SavedCheckpoint, SaveRecord, SaveUnderWay
from megalith.controller.saving.saved_input import SavedInput
from megalith.controller.saving.shard_writing import ShardWriting
from megalith.controller.saving.start_point import StartPoint
from megalith.controller.saving.whole_model import ShardSaved
from megalith.errors import (
    LimitExceeded,
    MegalithError,
    ModelDirInUse,
    SaveFailed,
    SaveTimedOut,
    ShardLost,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")

_APPEAR_S = 5.0  # for the files of other machines to be seen here
_TRIES = 2  # of one save, as Monolith does it
_MAX_WAITING = 4  # each waits on a thread that stop, resume and status need too


@dataclass(frozen=True, slots=True)
class _UnderWay:
    """The save that is being written."""

    folder: Location
    step: int
    began_at: float  # of the monotonic clock


class Saver:
    """One save at a time, in the order of the calls.

    The turn of `_shards` is held for a whole save. `on_saved` gets the record of each save on the
    thread that saved; one that fails is tried once more, and has a record for each try.

    Saves into the job's own directory keep to the `retention`; without one nothing is removed.

    One that is `beside` another saver writes variables alone, into a directory of its own. The two
    never save at once.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        model_dir: Location,
        timeout_s: float,
        hold_s: float = 30.0,
        clock: Callable[[], float] = time.time,
        on_saved: Callable[[SaveRecord], None] = lambda record: None,
        start_point: StartPoint | None = None,
        retention: Retention | None = None,
        appear_s: float = _APPEAR_S,
        keeps_cursors: bool = True,
        input_name: str = "",
        at_start: SavedInput | None = None,
        beside: "Saver | None" = None,
    ) -> None:
        self._coordinator = coordinator
        self._model_dir = model_dir
        self._clock = clock
        self._hold_s = hold_s
        self._on_saved = on_saved
        self._start_point = start_point or StartPoint(model_dir)
        self._retention = retention
        self.last: SaveRecord | None = None
        self.num_removed = 0  # checkpoints that were not kept
        self._stopgap = ""  # name of the newest own checkpoint, if it is in place of an increment
        self._under_way: _UnderWay | None = None
        self._is_perhaps_listed = False  # what the last save has written
        self._queue = threading.BoundedSemaphore(_MAX_WAITING)
        self._is_dense_only = beside is not None
        self._shards: ShardWriting
        if beside is None:
            self._shards = ShardWriting(
                coordinator,
                timeout_s,
                appear_s,
                keeps_cursors,
                input_name,
                at_start,
            )
        else:
            self._shards = beside._shards

    def save(
        self,
        directory: str = "",
        hold: bool = False,
        is_last: bool = False,
        is_stopgap: bool = False,
    ) -> SavedCheckpoint:
        """Write a checkpoint of the current step and wait until it is complete.

        SaveFailed leaves the old one. With `hold` training is held meanwhile, with the action
        "Save": the checkpoint is one moment of all workers, except of those that do not block in
        time. If `is_last`, training is held before the turn of this save comes, and stays held
        after one that succeeds. A stopgap is in place of an increment, and goes with the next save.
        """
        with self._queued():
            if hold and is_last:
                return self._held(lambda: self._in_its_turn(directory), stays_held=True)

            with self._shards.turn:
                if hold:
                    saved = self._held(lambda: self._tried(directory, is_stopgap))
                else:
                    saved = self._tried(directory, is_stopgap)

                if is_stopgap:
                    self._stopgap = saved.path.name

                return saved

    def save_if(self, is_wanted: Callable[[], bool], *, hold: bool = False) -> None:
        """A save that nobody asked for, unless it is not wanted any more when its turn comes.

        The save that it waited for may have all of it.
        """
        with self._queued(), self._shards.turn:
            if not is_wanted():
                return

            if hold:
                self._held(lambda: self._tried(""))
            else:
                self._tried("")

    @contextlib.contextmanager
    def _queued(self) -> Iterator[None]:
        """LimitExceeded if too many wait already."""
        if not self._queue.acquire(blocking=False):
            raise LimitExceeded(
                f"{_MAX_WAITING} saves are under way or waiting already; wait for one of them"
            )

        try:
            yield
        finally:
            self._queue.release()

    def _in_its_turn(self, directory: str) -> SavedCheckpoint:
        """The save of a job that is held for it.

        One that is under way rests as long as somebody trains, for up to a third of
        --save-timeout-s: this one would run out of its time while it waits.
        """
        with self._shards.turn:
            return self._tried(directory)

    def in_turn(self, write: Callable[[ShardWriting], T]) -> T:
        """Have shards written for something else than a full save, when no save is under way."""
        with self._shards.turn:
            return write(self._shards)

    def progress(self) -> SaveUnderWay | None:
        """Of the save that is being written; None if none is."""
        under_way = self._under_way
        if under_way is None:
            return None

        seconds = time.monotonic() - under_way.began_at
        return SaveUnderWay(under_way.step, seconds, _bytes_in(under_way.folder))

    def _held(
        self, save: Callable[[], SavedCheckpoint], *, stays_held: bool = False
    ) -> SavedCheckpoint:
        let_go = self._coordinator.hold("Save", "save", self._hold_s)
        is_saved = False
        try:
            moving_workers = self._coordinator.moving_workers()
            saved = save()
            is_saved = True
            return replace(saved, moving_workers=moving_workers)
        finally:
            if not (is_saved and stays_held):
                let_go()

    def _tried(self, directory: str, is_stopgap: bool = False) -> SavedCheckpoint:
        """Save, and once more if a ps or a disk has failed.

        A ps that is lost has to be replaced first, which takes longer than a save may wait. A ps
        that was too slow may be writing still, and a second try beside it would only be slower, and
        keep increments waiting twice as long. And a checkpoint that is complete, but perhaps not
        listed, is not written twice.
        """
        for number in range(1, _TRIES):
            try:
                return self._recorded(directory, is_stopgap)
            except SaveFailed as error:
                is_hopeless = isinstance(error, ShardLost | SaveTimedOut)
                if is_hopeless or self._is_perhaps_listed:
                    raise

                logger.warning("try %d of %d of a save failed: %s", number, _TRIES, error)

        return self._recorded(directory, is_stopgap)

    def _recorded(self, directory: str, is_stopgap: bool) -> SavedCheckpoint:
        started = time.monotonic()
        record = SaveRecord(
            0.0,
            0.0,
            self._coordinator.global_step,
            is_own=not directory,
            is_stopgap=is_stopgap,
        )
        failure = "unforeseen"
        try:
            target = self._target(directory)
            record = replace(record, is_own=target == self._model_dir)
            saved = self._save(target, record.is_own)
            failure = ""
            record = replace(
                record,
                step=saved.step,
                path=str(saved.path),
                rows=saved.rows,
                bytes=saved.bytes,
                removed=saved.removed,
                is_whole=saved.is_whole,
            )
            return saved
        except OSError as error:
            reason = stored.why(error, locate(directory) if directory else self._model_dir)
            failure = f"cannot write the checkpoint: {reason}; the previous one stands"
            raise SaveFailed(failure) from error
        except MegalithError as error:
            failure = str(error)
            raise
        finally:
            self.last = replace(
                record,
                ended_at_s=self._clock(),
                seconds=time.monotonic() - started,
                error=failure,
                pushes=self._shards.pushes_written(),
            )
            self._tell(self.last)

    def _tell(self, record: SaveRecord) -> None:
        """Whoever is told may fail: how the save went stays as it is."""
        try:
            self._on_saved(record)
        except (MegalithError, OSError) as error:
            logger.warning("what follows from a save could not be done: %s", error)

    def _save(self, target: Location, is_own: bool) -> SavedCheckpoint:
        self._coordinator.wait_for_returning_ps()
        if not is_own and self._coordinator.lacks_rows:
            raise SaveFailed(
                "rows of this model are missing, and whoever starts from a copy would not know it; "
                "save into the job's own directory, where the complete checkpoint stays the newest"
            )

        step = self._shards.newest_step()
        save_id = secrets.token_hex(4)
        started = time.monotonic()
        catalog.free_directory(target, step)  # what cannot get its name is not written
        # A clock that was set back must not make this checkpoint older than those before it.
        began_at_s = max(self._clock(), catalog.newest_time_s(target))
        is_published = False
        self._is_perhaps_listed = False
        folder = catalog.begin(target, step, save_id, is_own=is_own)
        self._under_way = _UnderWay(folder, step, started)

        try:
            saved = self._shards.write(
                folder, step, save_id, began_at_s, dense_only=self._is_dense_only
            )
            if not is_own:
                _check_free(target)  # a job may have been started there meanwhile

            self._coordinator.check_current()
            folder = catalog.publish(folder, target, step, save_id)
            is_published = True
            is_whole = not self._coordinator.lacks_rows
            recorded = self._record(target, folder, began_at_s, is_own, is_whole)
        except BaseException as error:
            # Unless the list names it, nobody knows of it yet, so nobody misses it.
            if not is_published or catalog.withdraw(target, folder):
                discard(folder, save_id)
            elif isinstance(error, OSError):
                self._is_perhaps_listed = True
                raise SaveFailed(
                    f"{folder} is complete and stays, but whether {LIST} names it as "
                    f"the newest is not known: {error}"
                ) from error

            raise
        finally:
            self._under_way = None

        removed_stopgap = self._stopgap if self._stopgap in recorded.removed else ""
        if is_own:
            self._stopgap = ""
            self._note(recorded, saved)

        if not is_whole:
            logger.error(
                "%s is saved apart: rows are missing in it, so the next job starts from the "
                "checkpoint before it",
                folder,
            )
        elif not recorded.is_newest:
            logger.warning(
                "%s is saved, but a newer checkpoint was saved into %s meanwhile: that one stays "
                "the newest",
                folder,
                target,
            )
        elif is_own:
            self._start_point.saved(folder)

        num_bytes = sum(file.bytes for file in saved.files)
        seconds = time.monotonic() - started
        logger.info(
            "saved path=%s rows=%d bytes=%d seconds=%.2f", folder, saved.rows, num_bytes, seconds
        )
        return SavedCheckpoint(
            folder,
            step,
            saved.rows,
            num_bytes,
            seconds,
            removed=recorded.removed,
            removed_stopgap=removed_stopgap,
            is_whole=is_whole,
        )

    def _note(self, recorded: Recorded, saved: Manifest) -> None:
        """What a save of the job's own changes beside the list. The checkpoint stands without."""
        self.num_removed += len(recorded.removed)
        for name in recorded.removed:
            logger.info("removed %s, which is not kept", self._model_dir / name)

        try:
            exempt_list.note_save(self._model_dir, self._clock())
            if not self._is_dense_only:
                row_counts.write(self._model_dir, saved)
        except OSError as error:
            logger.warning("the checkpoint is saved, a file beside it is not: %s", error)

    def _record(
        self, target: Location, folder: Location, saved_at_s: float, is_own: bool, is_whole: bool
    ) -> Recorded:
        """Name the checkpoint in the list, and remove what is not kept of the job's own.

        Once it is named it stays: without its folder the job would not start again.
        """
        check_current = self._coordinator.check_current
        try:
            return catalog.record_latest(
                target,
                folder,
                saved_at_s,
                check_current,
                is_whole,
                self._retention if is_own else None,
                (),
                self._stopgap,
            )
        except OSError as error:
            if not catalog.is_listed(target, folder):
                raise

            logger.warning(
                "%s is saved and in the list, which may not outlive a power failure: %s",
                folder,
                error,
            )

            return Recorded(catalog.is_newest(target, folder))

    def _target(self, directory: str) -> Location:
        """The directory to save into; the job's own one under another name is still its own."""
        if not directory:
            return self._model_dir

        target = prepared(directory)
        if stored.is_same(target, self._model_dir):
            return self._model_dir

        _check_free(target)
        return target

    def answer(self, session: int, saved: ShardSaved) -> None:
        """A ps is done with its shard; an answer to an older save is ignored."""
        self._shards.answer(session, saved)


def _check_free(directory: Location) -> None:
    """ModelDirInUse for the model directory of another job."""
    if checkpoint_dir.is_of_a_job(directory):
        raise ModelDirInUse(
            f"cannot save into {directory}: it is the model directory of another job, or has its "
            "checkpoints, and that job would start from this job's model the next time; "
            "choose a directory that no job uses, or leave it out for this job's own"
        )


def _bytes_in(folder: Location) -> int:
    """Of a save under way, as far as it can be seen from here."""
    with contextlib.suppress(OSError):
        return stored.bytes_in(folder)

    return 0
