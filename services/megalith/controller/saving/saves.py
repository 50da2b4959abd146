"""Saving a checkpoint: every ps writes its shard.

The folder gets its name last, which makes the checkpoint exist.
"""

import contextlib
import logging
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from megalith.checkpoint import catalog, manifest
from megalith.checkpoint.format import LIST, MANIFEST
from megalith.checkpoint.manifest import Manifest, ShardFile
from megalith.controller.coordinator import Coordinator
from megalith.controller.members import job_files
from megalith.controller.members.directives import SaveShard
from megalith.controller.saving import whole_model
from megalith.controller.saving.start_point import StartPoint
from megalith.controller.saving.whole_model import ShardSaved
from megalith.errors import LimitExceeded, MegalithError, ModelDirInUse, SaveFailed, ShardLost
from megalith.runtime.files import prepare_model_dir, remove_temporaries

logger = logging.getLogger(__name__)

_APPEAR_S = 5.0  # for the files of other machines to be seen here
_LOOK_S = 0.1  # between two looks at files
_DISCARD_TRIES = 20
_TEMPORARY_S = 3600.0  # after which a half written file is nobody's, whatever clocks say
_MAX_WAITING = 4  # each waits on a thread that stop, resume and status need too


@dataclass(frozen=True, slots=True)
class SavedCheckpoint:
    """A save that is complete.

    `moving_workers` are those that did not block in time, if the save was to hold training: the
    checkpoint may have a part of a step of theirs.
    """

    path: Path
    step: int
    rows: int
    moving_workers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SaveRecord:
    """How the last save went. `path` is empty when it failed, `error` when it did not.

    `is_own` = into the job's model directory; a job starts from no other one. `pushes` are those
    that are in it for sure, by session of the ps.
    """

    ended_at_s: float
    seconds: float
    step: int
    path: str = ""
    error: str = ""
    is_own: bool = True
    pushes: Mapping[int, int] = field(default_factory=dict)


class Saver:
    """One save at a time, in the order of the calls.

    `_turn` is held for a whole save. `_answered` guards what the sessions of the current save have
    answered. `on_saved` gets the record of each save on the thread that saved.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        model_dir: Path,
        timeout_s: float,
        hold_s: float = 30.0,
        clock: Callable[[], float] = time.time,
        on_saved: Callable[[SaveRecord], None] = lambda record: None,
        start_point: StartPoint | None = None,
        appear_s: float = _APPEAR_S,
    ) -> None:
        self._coordinator = coordinator
        self._model_dir = model_dir
        self._timeout_s = timeout_s
        self._clock = clock
        self._hold_s = hold_s
        self._on_saved = on_saved
        self._start_point = start_point or StartPoint(model_dir)
        self._appear_s = appear_s
        self.last: SaveRecord | None = None
        self._turn = threading.Lock()
        self._queue = threading.BoundedSemaphore(_MAX_WAITING)
        self._answered = threading.Condition()
        self._save_id = ""
        self._answers: dict[int, ShardSaved] = {}

    def save(self, directory: str = "", hold: bool = False) -> SavedCheckpoint:
        """Write a checkpoint of the current step and wait until it is complete.

        SaveFailed leaves the old one. With `hold` training is held meanwhile, with the action
        "Save": the checkpoint is one moment of all workers, except of those that do not block in
        time.
        """
        if not self._queue.acquire(blocking=False):
            raise LimitExceeded(
                f"{_MAX_WAITING} saves are under way or waiting already; wait for one of them"
            )

        try:
            with self._turn:
                return self._held(directory) if hold else self._recorded(directory)
        finally:
            self._queue.release()

    def _held(self, directory: str) -> SavedCheckpoint:
        let_go = self._coordinator.hold("Save", "save", self._hold_s)
        try:
            moving_workers = self._coordinator.moving_workers()
            saved = self._recorded(directory)
            return replace(saved, moving_workers=moving_workers)
        finally:
            let_go()

    def _recorded(self, directory: str) -> SavedCheckpoint:
        started = time.monotonic()
        step = self._coordinator.global_step
        path = ""
        failure = ""
        is_own = not directory
        try:
            target = self._target(directory)
            is_own = target == self._model_dir
            saved = self._save(target, is_own)
            step = saved.step
            path = str(saved.path)
            return saved
        except OSError as error:
            failure = f"cannot write the checkpoint: {error}; the previous one stands"
            raise SaveFailed(failure) from error
        except MegalithError as error:
            failure = str(error)
            raise
        finally:
            seconds = time.monotonic() - started
            failure = failure or ("" if path else "unforeseen")
            self.last = SaveRecord(
                self._clock(), seconds, step, path, failure, is_own, self._pushes_written()
            )
            self._on_saved(self.last)

    def _save(self, target: Path, is_own: bool) -> SavedCheckpoint:
        if not is_own and self._coordinator.lacks_rows:
            raise SaveFailed(
                "rows of this model are missing, and whoever starts from a copy would not know it; "
                "save into the job's own directory, where the complete checkpoint stays the newest"
            )

        step = self._coordinator.global_step
        save_id = secrets.token_hex(4)
        started = time.monotonic()
        catalog.free_directory(target, step)  # what cannot get its name is not written
        folder = catalog.work_directory(target, step, save_id, is_own=is_own).absolute()
        # A clock that was set back must not make this checkpoint older than those before it.
        began_at_s = max(self._clock(), catalog.newest_time_s(target))
        is_published = False
        folder.mkdir()

        try:
            saved = self._write(folder, step, save_id, began_at_s)
            if not is_own:
                _check_free(target)  # a job may have been started there meanwhile

            self._coordinator.check_current()
            folder = catalog.publish(folder, target, step)
            is_published = True
            is_newest = self._record(target, folder, began_at_s)
        except BaseException as error:
            # Unless the list names it, nobody knows of it yet, so nobody misses it.
            if not is_published or catalog.withdraw(target, folder):
                _discard(folder)
            elif isinstance(error, OSError):
                raise SaveFailed(
                    f"{folder} is complete and stays, but whether {LIST} names it as "
                    f"the newest is not known: {error}"
                ) from error

            raise

        if self._coordinator.lacks_rows:
            logger.error(
                "%s is saved apart: rows are missing in it, so the next job starts from the "
                "checkpoint before it",
                folder,
            )
        elif not is_newest:
            logger.warning(
                "%s is saved, but a newer checkpoint was saved into %s meanwhile: that one stays "
                "the newest",
                folder,
                target,
            )
        elif is_own:
            self._start_point.saved(folder)

        logger.info(
            "saved path=%s rows=%d seconds=%.2f", folder, saved.rows, time.monotonic() - started
        )
        return SavedCheckpoint(folder, step, saved.rows)

    def _record(self, target: Path, folder: Path, saved_at_s: float) -> bool:
        """Name the checkpoint in the list; whether it is the newest there.

        Once it is named it stays: without its folder the job would not start again.
        """
        check_current = self._coordinator.check_current
        is_whole = not self._coordinator.lacks_rows
        try:
            return catalog.record_latest(target, folder, saved_at_s, check_current, is_whole)
        except OSError as error:
            if not catalog.is_listed(target, folder):
                raise

            logger.warning(
                "%s is saved and in the list, which may not outlive a power failure: %s",
                folder,
                error,
            )

            return catalog.is_newest(target, folder)

    def _pushes_written(self) -> dict[int, int]:
        with self._answered:
            return {session: answer.pushes for session, answer in self._answers.items()}

    def _target(self, directory: str) -> Path:
        """The directory to save into; the job's own one under another name is still its own."""
        if not directory:
            return self._model_dir

        target = prepare_model_dir(directory)
        if target.samefile(self._model_dir):
            return self._model_dir

        _check_free(target)
        return target

    def _write(self, folder: Path, step: int, save_id: str, began_at_s: float) -> Manifest:
        """Have every ps write its files into `folder`, and the manifest after them."""
        order = SaveShard(save_id, str(folder), step)
        with self._answered:
            self._save_id = save_id
            self._answers = {}

        sessions = self._coordinator.order_save(order)
        shards = self._collect(sessions)
        self._check_whole(shards)
        files: list[ShardFile] = []
        for shard in shards.values():
            files += shard.files

        self._check_files(folder, files)
        saved = Manifest(step=step, num_ps=len(sessions), saved_at_s=began_at_s, files=tuple(files))
        manifest.write(folder, saved)
        return saved

    def _check_files(self, folder: Path, files: list[ShardFile]) -> None:
        """SaveFailed unless each file is here, with the size that its ps says.

        A ps that does not share this directory writes elsewhere. Network file systems may show a
        file a moment late.
        """
        deadline = time.monotonic() + self._appear_s
        for file in files:
            while (size := _size_of(folder / file.name)) != file.bytes:
                if time.monotonic() > deadline:
                    raise SaveFailed(
                        f"a ps says that it wrote {file.bytes} bytes to {folder / file.name}, and "
                        f"{'no such file is' if size is None else f'{size} bytes are'} here; "
                        "does every ps see the same directory as the controller?"
                    )

                time.sleep(_LOOK_S)

    def _check_whole(self, shards: dict[int, ShardSaved]) -> None:
        """SaveFailed for a table that some ps lacks, and for a variable that lacks a part."""
        missing = whole_model.missing_in(shards, self._coordinator.index_of)
        if missing:
            raise SaveFailed(
                f"the model is not whole: {'; '.join(missing)}. A ps that was replaced lacks what "
                "was created since the checkpoint that it started from. Create it again, which "
                "keeps what exists elsewhere: call create_tables and create_variables, or restart "
                "the chief. Then save again; the previous checkpoint stands"
            )

    def answer(self, session: int, saved: ShardSaved) -> None:
        """A ps is done with its shard; an answer to an older save is ignored."""
        with self._answered:
            if saved.save_id == self._save_id:
                self._answers[session] = saved
                self._answered.notify_all()

    def _collect(self, sessions: list[int]) -> dict[int, ShardSaved]:
        deadline = time.monotonic() + self._timeout_s
        with self._answered:
            while missing := [session for session in sessions if session not in self._answers]:
                # A lost ps never answers; its stream's end wakes nobody here, so look twice a
                # second.
                self._answered.wait(0.5)
                for session in missing:
                    if session not in self._answers and not self._coordinator.is_alive(session):
                        raise ShardLost(
                            "a ps was lost during the save; the previous checkpoint stands, "
                            "save again"
                        )

                if time.monotonic() > deadline:
                    raise SaveFailed(
                        f"{len(missing)} ps did not finish within {self._timeout_s:.0f} s"
                    )

            failed = [answer.error for answer in self._answers.values() if answer.error]
            if failed:
                raise SaveFailed("; ".join(failed))

            return {session: self._answers[session] for session in sessions}


def remove_leftovers(model_dir: Path) -> None:
    """Remove what is left of own saves whose controller died.

    For the owner of the directory, before it saves. What another job is saving there, or has
    left, stays.
    """
    remove_temporaries(model_dir, _TEMPORARY_S)
    own = catalog.own_work_directories(model_dir)
    for path in own:
        logger.warning("removing %s, left of a save whose controller died", path)
        _discard(path)

    for path in sorted(set(model_dir.glob("saving-*")) - set(own)):
        logger.warning(
            "%s is a save of another job, or left of one; remove it if no job saves there", path
        )


def _check_free(directory: Path) -> None:
    """ModelDirInUse for the model directory of another job."""
    if job_files.is_of_a_job(directory):
        raise ModelDirInUse(
            f"cannot save into {directory}: it is the model directory of another job, which would "
            "start from this job's model the next time; choose a directory that no job uses, or "
            "leave it out for this job's own"
        )


def _size_of(path: Path) -> int | None:
    """None if there is no such file."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def _discard(folder: Path) -> None:
    """Remove all of a save that failed or was cut short.

    A ps that is late may put another file into it meanwhile, so it is tried several times. The
    manifest goes first: if this process dies meanwhile, what is left is no checkpoint.
    """
    with contextlib.suppress(OSError):
        (folder / MANIFEST).unlink()

    for _ in range(_DISCARD_TRIES):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return

        time.sleep(_LOOK_S)

    logger.error("%s is left of a save, and could not be removed; remove it by hand", folder)
