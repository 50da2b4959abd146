"""The journal on disk: read by the next controller, kept up to date by the present one."""

import dataclasses
import json
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from megalith.controller.guarded import guarded
from megalith.controller.members import job_files
from megalith.controller.members.barrier import BarrierState, Holder, HolderKind
from megalith.controller.members.journal import Ending, Journal, JournaledMember, Outcome
from megalith.controller.members.losses import Held, Loss
from megalith.runtime.files import write_atomically
from megalith.wire.reports import LeftOut

logger = logging.getLogger(__name__)

T = TypeVar("T")

# Raised when a field is added that an older controller must not ignore. Fields that it may ignore
# are left out by `_known`, and the hold that the journal keeps is not forgotten because of them.
_FORMAT = 3
# Progress of workers that a new controller may not know; barriers and maps are written at once
_EVERY_S = 0.25
_OUTCOME_S = 60.0  # for whoever starts controllers again to do so
_FLUSH_S = 5.0  # an operator's call does not wait longer than this for a slow disk


def read(model_dir: Path) -> Journal | None:
    """The journal that an earlier controller left; None when there is none.

    One that cannot be trusted is none. It is set aside under another name, so that somebody can
    look at it.
    """
    path = model_dir / job_files.JOURNAL
    try:
        journal = _parse(json.loads(path.read_bytes()))
        journal.check()
        return journal
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        aside = path.with_name(f"{job_files.JOURNAL}-unusable")
        logger.warning(
            "%s cannot be read (%s) and is set aside as %s; a hold on training that it kept is "
            "forgotten, and members that come back say what they know",
            path,
            error,
            aside.name,
        )

        try:
            os.replace(path, aside)
        except OSError as refusal:
            logger.warning("%s stays where it is and will be overwritten: %s", path, refusal)

        return None


def left_for(model_dir: Path, job: str, shape: tuple[int, int], now_s: float) -> Journal | None:
    """The journal of a run that may go on, or whose outcome is to be told; None = a new run.

    `shape` is (number of ps, number of workers). Of a job that has ended, a controller that takes
    the place of one that died says the outcome once more; one that somebody starts later begins a
    new run.
    """
    left = read(model_dir)
    if left is None:
        return None

    if left.job != job:
        logger.warning(
            "%s is of job %s, this is job %s: a new run",
            model_dir / job_files.JOURNAL,
            left.job,
            job,
        )
        job_files.record_ended_run(model_dir, left.run_id)
        return None

    if left.outcome is None:
        return left

    is_repeated = (
        shape == (len(left.ps), len(left.workers)) and now_s - left.outcome.at_s < _OUTCOME_S
    )
    if is_repeated:
        return left

    logger.info(
        "the last run %s has ended (%s); this is a new run", left.run_id, left.outcome.reason
    )
    job_files.record_ended_run(model_dir, left.run_id)
    return None


def _parse(content: dict[str, Any]) -> Journal:
    if content.pop("format") != _FORMAT:
        raise ValueError(f"format is not {_FORMAT}")

    content.pop("generation", 0)
    # In a journal that does not say it, the epoch alone tells of a map.
    content.setdefault("was_mapped", content["epoch"] > 0)

    losses = []
    for kept in content.get("losses", ()):
        loss = Loss(**_known(Loss, kept))
        losses.append(loss)

    fields = _known(Journal, content)
    fields["barrier"] = _barrier(content["barrier"])
    fields["routed"] = tuple(content["routed"])
    fields["ps"] = tuple(map(_member, content["ps"]))
    fields["workers"] = tuple(map(_member, content["workers"]))
    fields["losses"] = tuple(losses)
    fields["run_gone"] = _maybe(Held, content.get("run_gone"))
    fields["ending"] = _maybe(Ending, content.get("ending"))
    fields["outcome"] = _maybe(Outcome, content.get("outcome"))
    fields["ended_runs"] = tuple(content.get("ended_runs", ()))
    fields["first_cursors"] = tuple(content.get("first_cursors", ()))

    return Journal(**fields)


def _maybe(kind: type[T], content: dict[str, Any] | None) -> T | None:
    return kind(**_known(kind, content)) if content else None


def _known(kind: type, content: dict[str, Any]) -> dict[str, Any]:
    """Without the fields that a newer controller has added."""
    names = {field.name for field in dataclasses.fields(kind)}
    unknown = sorted(set(content) - names)
    if unknown:
        logger.warning(
            "the journal of a newer controller says more than this one knows; ignored: %s of %s",
            ", ".join(unknown),
            kind.__name__,
        )

    return {name: value for name, value in content.items() if name in names}


def _member(content: dict[str, Any]) -> JournaledMember:
    known = _known(JournaledMember, content)
    known["gone"] = _maybe(Held, content.get("gone"))
    for name in ("left_out", "left_out_before"):
        known[name] = _maybe(LeftOut, content.get(name)) or LeftOut()

    return JournaledMember(**known)


def _barrier(content: dict[str, Any]) -> BarrierState:
    holders = []
    for holder in content["holders"]:
        known = _known(Holder, holder)
        holders.append(Holder(**known | {"kind": HolderKind(holder["kind"])}))

    return BarrierState(content["id"], tuple(holders))


class JournalKeeper:
    """Writes what `take` returns: a few times a second when it changed, and at once when asked.

    `error` says why what is kept is not the present state: a new controller would forget a hold on
    training. `_due` guards the flags between the thread that writes and those that ask. Only this
    user may read the file: it holds the members' incarnations, and whoever knows one can take that
    member's seat. Nothing is written or removed once `may_write` says no: another controller
    serves the directory then. It is asked again right before the file is replaced, because this
    process may have been paused since it was asked first.

    Runs that the journal says have ended are recorded before it is written.
    """

    def __init__(
        self,
        model_dir: Path,
        take: Callable[[], Journal],
        may_write: Callable[[], bool] = lambda: True,
        generation: int = 0,
    ) -> None:
        self._path = model_dir / job_files.JOURNAL
        self._take = take
        self._may_write = may_write
        self._generation = generation

        self._due = threading.Condition()
        self._asked = 0
        self._written = 0
        self._is_stopping = False
        self._error = ""

        self._last: Journal | None = None
        self._own: tuple[int, int] | None = None  # inode and time of the file that was written last
        self._recorded: frozenset[str] = frozenset()
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)

    @property
    def error(self) -> str:
        """Why the journal cannot be written; empty when the last try succeeded."""
        return self._error

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Write soon; safe under any lock."""
        with self._due:
            self._asked += 1
            self._due.notify_all()

    def flush(self) -> None:
        """Return once the present state is written, or a few seconds are over.

        If it could not be written, `error` says so when this returns. Not under a lock that `take`
        needs.
        """
        with self._due:
            self._asked += 1
            asked = self._asked
            self._due.notify_all()
            is_done = self._due.wait_for(
                lambda: self._written >= asked or self._is_stopping, _FLUSH_S
            )

        if not is_done:
            # Until the next write, which clears it; whoever asks for the error now is told.
            self._error = f"{self._path}: not written after {_FLUSH_S:.0f} s"
            logger.warning("%s; a restart now would forget this", self._error)

    def stop(self, *, is_over: bool) -> None:
        """Stop writing. `is_over` = the job has its outcome, and the next one begins anew."""
        with self._due:
            self._is_stopping = True
            self._due.notify_all()

        if self._thread.is_alive():
            self._thread.join()
            if is_over and self._may_replace():
                self._path.unlink(missing_ok=True)

    def _may_replace(self) -> bool:
        """Whether the file is still this keeper's to replace or remove.

        One that was changed since this keeper wrote it is looked into: a newer controller may have
        written it.
        """
        is_changed = self._own is not None and _identity(self._path) != self._own
        if is_changed and _generation_in(self._path) > self._generation:
            logger.warning("%s is a newer controller's; it is left as it is", self._path)
            return False

        return self._may_write()

    def _run(self) -> None:
        write = guarded("writing the journal", self._write)
        while True:
            with self._due:
                self._due.wait_for(
                    lambda: self._asked > self._written or self._is_stopping, _EVERY_S
                )
                asked = self._asked
                is_last = self._is_stopping

            write()
            with self._due:
                self._written = max(self._written, asked)
                self._due.notify_all()

            if is_last:
                return

    def _write(self) -> None:
        journal = self._take()
        if not self._may_write():
            return

        if journal == self._last:
            self._error = ""
            return

        self._record_ended(journal)
        header = {"format": _FORMAT, "generation": self._generation}
        content = json.dumps(header | dataclasses.asdict(journal)).encode()
        try:
            if not write_atomically(self._path, content, mode=0o600, may_replace=self._may_replace):
                return
            self._own = _identity(self._path)
        except OSError as error:
            if not self._error:
                logger.warning(
                    "%s cannot be written (%s); a restart would forget the barrier",
                    self._path,
                    error,
                )

            self._error = f"{self._path}: {error.strerror}"
        else:
            self._last = journal
            self._error = ""

    def _record_ended(self, journal: Journal) -> None:
        """Before the journal of the next run replaces theirs, which is all that tells of them."""
        for run_id in journal.ended_runs:
            is_recorded = run_id in self._recorded
            if not is_recorded and job_files.record_ended_run(self._path.parent, run_id):
                self._recorded |= {run_id}


def _generation_in(path: Path) -> int:
    """Of the controller that wrote the journal there; 0 if that cannot be read."""
    try:
        generation = json.loads(path.read_bytes()).get("generation", 0)
    except (OSError, ValueError, AttributeError, RecursionError):
        return 0

    return generation if isinstance(generation, int) else 0


def _identity(path: Path) -> tuple[int, int] | None:
    """What tells a file from one that replaced it; None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None

    return found.st_ino, found.st_mtime_ns
