"""What a worker reads: batches, each with the cursor at which the input goes on after it.

    task.input(mode, index, count) -> Input
    input.batches(cursor)          -> InputBatch, InputBatch, ...

A cursor is bytes that only the input looks into. The worker reports the cursor of the last batch
whose push was acknowledged; the journal and checkpoints keep it. Whoever goes on for the worker
gets it back. So no batch is lost, and those between that cursor and the end of the old worker are
read again.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, Protocol, TypeVar

from megalith.errors import InvalidRequest
from megalith.runtime.counting import counted
from megalith.wire.pieces import FoundFile, PieceAnswer, PiecePlan
from megalith.wire.reports import InputCounts

B_co = TypeVar("B_co", covariant=True)


class Mode(StrEnum):
    """What batches are read for."""

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "predict"


@dataclass(frozen=True, slots=True)
class InputBatch(Generic[B_co]):
    """A batch, and where the input goes on after it.

    `req_time_s` is the Unix time of its data, by which rows expire; 0 if the data has none. `where`
    is where it was read, for messages. For example "clicks/day1.parquet, row group 3". `origins`
    are all the places of its rows, as its input knows them: so a bad row can be found again.
    """

    batch: B_co
    cursor: bytes
    req_time_s: int = 0
    where: str = ""
    origins: tuple[object, ...] = ()


class PieceSource(Protocol):
    """Who hands out pieces."""

    def ask(
        self, plan: PiecePlan, most: int, found: Sequence[FoundFile] = (), is_idle: bool = False
    ) -> PieceAnswer | None:
        """At most so many pieces; None if nobody can be asked now. See TakePiecesRequest."""

    @property
    def is_unsure(self) -> bool:
        """Whether pieces may be another worker's by now: ask before reading on."""

    def trained(self, cursor: bytes) -> None:
        """A batch with this cursor is trained."""


class Input(ABC, Generic[B_co]):
    """The batches of one worker. `batches` runs on a thread of its own."""

    @abstractmethod
    def batches(self, cursor: bytes) -> Iterator[InputBatch[B_co]]:
        """The batches after a cursor; b"" is the start of the input.

        It may wait for data as long as it likes: holds and stops of the training do not wait for
        it. It ends where the input ends. After an error it is called again, with the cursor of the
        last batch.
        """

    def remaining(self, cursor: bytes) -> int | None:
        """How many batches come after a cursor; None if that is not known."""
        return None

    def resumed(self, saved: Sequence[bytes], index: int, count: int) -> bytes:
        """The cursor at which worker `index` of `count` goes on from a checkpoint.

        `saved` has a cursor for each worker of the checkpoint; b"" is one that had read nothing.
        With as many workers as then, each has its own. An input that can divide the rest anew
        among another number overrides this.
        """
        if len(saved) == count:
            return saved[index]

        workers = counted(len(saved), "worker")
        raise InvalidRequest(
            f"the checkpoint was saved by {workers}, and this input cannot go on with "
            f"{count}: start {workers}, or read from the start by --input-cursors false"
        )

    def left_out(self) -> InputCounts:
        """What was passed over since the input was opened. Called by other threads, often."""
        return InputCounts()

    def draw_from(self, source: PieceSource) -> None:
        """Take pieces from there; called before `batches` if the input is handed out."""
        raise InvalidRequest(f"{type(self).__name__} is not read in pieces; use --sharding static")

    def stop(self) -> None:
        """Stop waiting for data: `batches` ends soon. Called by another thread, at most once."""
        return None

    def close(self) -> None:
        """The worker has read enough. Called once, on the thread that reads."""
        return None
