"""What is told of a save: while it is under way, when it is complete, and afterwards."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from megalith.checkpoint.storage.location import Location


@dataclass(frozen=True, slots=True)
class SavedCheckpoint:
    """A save that is complete.

    `moving_workers` are those that did not block in time, if the save was to hold training: the
    checkpoint may have a part of a step of theirs. `removed` are the names of older checkpoints
    that are not kept any longer, and `removed_stopgap` is the one of them, if any, that was saved
    in place of an increment. One that is not `is_whole` lacks rows of the model, and no job starts
    from it by itself.
    """

    path: Location
    step: int
    rows: int
    bytes: int = 0
    seconds: float = 0.0
    moving_workers: tuple[int, ...] = ()
    removed: tuple[str, ...] = ()
    removed_stopgap: str = ""
    is_whole: bool = True


@dataclass(frozen=True, slots=True)
class SaveRecord:
    """How the last save went. `path` is empty when it failed, `error` when it did not.

    `is_own` = into the job's model directory; a job starts from no other one, nor from one that is
    not `is_whole`. `pushes` are those that are in it for sure, by session of the ps. `is_stopgap` =
    in place of an increment.
    """

    ended_at_s: float
    seconds: float
    step: int
    path: str = ""
    error: str = ""
    is_own: bool = True
    is_whole: bool = True
    is_stopgap: bool = False
    pushes: Mapping[int, int] = field(default_factory=dict)
    rows: int = 0
    bytes: int = 0
    removed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SaveUnderWay:
    """A save that is under way: `bytes` are those that all ps have written so far."""

    step: int
    seconds: float
    bytes: int
