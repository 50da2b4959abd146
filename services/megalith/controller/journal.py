"""What a controller must know to go on for one that died: kept in the model directory while the job runs."""

import contextlib
import dataclasses
import json
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megalith.controller.barrier import BarrierState, Holder, HolderKind
from megalith.controller.losses import Loss
from megalith.runtime.files import open_plain, write_atomically
from megalith.runtime.guard import guarded

logger = logging.getLogger(__name__)

FILE_NAME = "controller_state.json"
_ENDED_FILE = "controller_ended_run.txt"
_MAX_RUN_ID = 256
_MAX_ENDED = 1000  # runs; a member that was away for longer than so many is not expected
_FORMAT = 3
MAX_COUNT = (
    2**53
)  # steps, epochs and positions stay below it; no run gets there, and JSON keeps such numbers exact
_EVERY_S = 0.25  # progress of workers that a new controller may not know; barriers and maps are written at once
_OUTCOME_S = 60.0  # for whoever starts controllers again to do so
_FLUSH_S = 5.0  # an operator's call does not wait longer than this for a slow disk


@dataclass(frozen=True, slots=True)
class JournaledMember:
    """Who holds a place, how far a worker is, and what a ps holds and has saved."""

    address: str = ""
    incarnation: str = ""
    position: int = 0
    total_batches: int = 0
    pushes_unknown: int = 0
    rows: int = 0
    pushes: int = 0
    pushes_saved: int = 0
    tables: int = 0
    variables: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the job ended, and when in Unix time."""

    succeeded: bool
    reason: str
    at_s: float


@dataclass(frozen=True, slots=True)
class Journal:
    """One moment of a controller. `ps` and `workers` are by index; `routed` are the ps incarnations of the map."""

    job: str
    epoch: int
    initialized_epoch: int
    global_step: int
    first_step: int
    barrier: BarrierState
    routed: tuple[str, ...]
    ps: tuple[JournaledMember, ...]
    workers: tuple[JournaledMember, ...]
    run_id: str = ""  # empty in the journal of a version that had none
    rows_lost: int = 0
    pushes_unknown: int = 0
    losses: tuple[Loss, ...] = ()
    outcome: Outcome | None = None  # of a job whose controller died before everybody knew

    @property
    def incarnations(self) -> frozenset[str]:
        return frozenset(
            member.incarnation for member in (*self.ps, *self.workers) if member.incarnation
        )

    def check(self) -> None:
        """ValueError if it holds a number that no run has: the next controller would pass it on to everybody."""
        counts = {
            "epoch": self.epoch,
            "initialized_epoch": self.initialized_epoch,
            "global_step": self.global_step,
            "first_step": self.first_step,
            "barrier id": self.barrier.id,
        }
        for index, worker in enumerate(self.workers):
            counts[f"position of worker {index}"] = worker.position
            counts[f"total_batches of worker {index}"] = worker.total_batches
        for name, value in counts.items():
            if type(value) is not int or not 0 <= value < MAX_COUNT:
                raise ValueError(f"{name} is {value!r}, outside 0..{MAX_COUNT - 1}")


def read(model_dir: Path) -> Journal | None:
    """The journal that an earlier controller left; None when there is none, or none that can be trusted.

    One that cannot be trusted is set aside under another name, so that somebody can look at it.
    """
    path = model_dir / FILE_NAME
    try:
        journal = _parse(json.loads(path.read_bytes()))
        journal.check()
        return journal
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        aside = path.with_name(f"{FILE_NAME}-unusable")
        logger.warning(
            "%s cannot be read (%s) and is set aside as %s; a hold on training that it kept is forgotten, and members "
            "that come back say what they know",
            path,
            error,
            aside.name,
        )
        with contextlib.suppress(OSError):
            os.replace(path, aside)
        return None


def left_for(model_dir: Path, job: str, shape: tuple[int, int], now_s: float) -> Journal | None:
    """The journal of a run that may go on with this controller, or whose outcome it is to tell; None = a new run.

    `shape` is (number of ps, number of workers). Of a job that has ended, a controller that takes the place of one that
    died says the outcome once more; one that somebody starts later begins a new run.
    """
    left = read(model_dir)
    if left is None:
        return None
    if left.job != job:
        logger.warning(
            "%s is of job %s, this is job %s: a new run", model_dir / FILE_NAME, left.job, job
        )
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
    record_ended(model_dir, left.run_id)
    return None


def record_ended(model_dir: Path, run_id: str) -> None:
    """Remember that this run is over: a member of it that was away meanwhile must not carry its rows into the next."""
    try:
        others = [ended for ended in _read_ended(model_dir) if ended != run_id]
        kept = [*others, run_id][-_MAX_ENDED:]
        write_atomically(model_dir / _ENDED_FILE, "\n".join(kept).encode())
    except OSError as error:
        logger.warning("the end of run %s is not recorded: %s", run_id, error)


def ended_runs(model_dir: Path) -> tuple[str, ...]:
    """The runs of this directory that have ended, the last one last."""
    try:
        return _read_ended(model_dir)
    except OSError as error:
        logger.warning(
            "%s: %s; members of runs that have ended are not told apart",
            _ENDED_FILE,
            error.strerror,
        )
        return ()


def _read_ended(model_dir: Path) -> tuple[str, ...]:
    try:
        with open_plain(model_dir / _ENDED_FILE, "rb") as file:
            return tuple(file.read(_MAX_ENDED * _MAX_RUN_ID).decode(errors="replace").split())
    except FileNotFoundError:
        return ()


def _parse(content: dict[str, Any]) -> Journal:
    if content.pop("format") != _FORMAT:
        raise ValueError(f"format is not {_FORMAT}")
    return Journal(
        **content
        | {
            "barrier": _barrier(content["barrier"]),
            "routed": tuple(content["routed"]),
            "ps": tuple(JournaledMember(**member) for member in content["ps"]),
            "workers": tuple(JournaledMember(**member) for member in content["workers"]),
            "losses": tuple(Loss(**loss) for loss in content.get("losses", ())),
            "outcome": Outcome(**content["outcome"]) if content.get("outcome") else None,
        }
    )


def _barrier(content: dict[str, Any]) -> BarrierState:
    holders = (
        Holder(**holder | {"kind": HolderKind(holder["kind"])}) for holder in content["holders"]
    )
    return BarrierState(content["id"], tuple(holders))


class JournalKeeper:
    """Writes what `take` returns, a few times a second when it changed, and at once on `flush` and `wake`.

    `error` says why what is kept is not the present state: a new controller would forget a hold on training.
    `_due` guards the flags between the thread that writes and those that ask. Only this user may read the file: it
    holds the members' incarnations, and whoever knows one can take that member's place. Nothing is written or removed
    once `may_write` says no: another controller serves the directory then.
    """

    def __init__(
        self,
        model_dir: Path,
        take: Callable[[], Journal],
        may_write: Callable[[], bool] = lambda: True,
    ) -> None:
        self._path = model_dir / FILE_NAME
        self._take = take
        self._may_write = may_write
        self._due = threading.Condition()
        self._asked = self._written = 0
        self._is_stopping = False
        self._error = ""
        self._last: Journal | None = None
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
        """Return once the present state is written, or a few seconds are over. Not under a lock that `take` needs."""
        with self._due:
            self._asked += 1
            asked = self._asked
            self._due.notify_all()
            is_done = self._due.wait_for(
                lambda: self._written >= asked or self._is_stopping, _FLUSH_S
            )
        if not is_done:
            logger.warning(
                "%s is not written after %.0f s; a restart now would forget this",
                self._path,
                _FLUSH_S,
            )

    def stop(self, *, is_over: bool) -> None:
        """Stop writing. `is_over` = the job has its outcome, and the next one begins anew."""
        with self._due:
            self._is_stopping = True
            self._due.notify_all()
        if self._thread.is_alive():
            self._thread.join()
            if is_over and self._may_write():
                self._path.unlink(missing_ok=True)

    def _run(self) -> None:
        write = guarded("writing the journal", self._write)
        while True:
            with self._due:
                self._due.wait_for(
                    lambda: self._asked > self._written or self._is_stopping, _EVERY_S
                )
                asked, is_last = self._asked, self._is_stopping
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
        content = json.dumps({"format": _FORMAT, **dataclasses.asdict(journal)}).encode()
        try:
            write_atomically(self._path, content, mode=0o600)
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
