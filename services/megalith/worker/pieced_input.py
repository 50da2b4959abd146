"""Input that is handed out: a worker reads the pieces that it is given, and asks for more.

    source.ask(...)       -> pieces, or none for now, or the end
    input.batches(cursor) -> InputBatch, InputBatch, ...
    source.trained(batch.cursor), once the push of the batch is acknowledged

The cursor of a batch says how far it leads into the pieces that it is of. Only the source looks
into it, and whoever gets such a piece next goes on there.
"""

import json
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from megalith.errors import InvalidRequest
from megalith.wire.pieces import ENDLESS, Piece, PieceAnswer, PiecePlan, PieceProgress
from megalith.worker.input import Input, InputBatch, PieceSource

B = TypeVar("B")

POLL_S = 0.25  # between two questions of a worker that has nothing to read
_NUMBERS_AT_ONCE = 16  # batches; a question costs a write of the journal


@dataclass(frozen=True, slots=True)
class DrawnBatch(Generic[B]):
    """A batch, and how far it leads into each piece that it has rows of."""

    batch: B
    progress: tuple[PieceProgress, ...]
    where: str = ""
    origins: tuple[object, ...] = ()  # see `InputBatch`


class PiecedInput(Input[B], ABC, Generic[B]):
    """The batches of one worker, of pieces that it asks for. For one thread, but for `stop`.

    Its cursors are not for `batches`: where a piece goes on is said by who hands it out. After an
    error it goes on after the last batch that was drawn.
    """

    def __init__(self, plan: PiecePlan, most: int, poll_s: float = POLL_S) -> None:
        self._plan = plan
        self._most = most
        self._poll_s = poll_s
        self._given_source: PieceSource | None = None
        self._held: dict[int, Piece] = {}  # each from where nothing of it is drawn yet
        self._given_besides: list[Piece] = []  # to a question for none; not read yet
        self._stopped = threading.Event()

    def draw_from(self, source: PieceSource) -> None:
        self._given_source = source

    def batches(self, cursor: bytes) -> Iterator[InputBatch[B]]:
        self._begin()
        self._given_besides.clear()
        to_read = deque(self._held.values())
        while not self._stopped.is_set():
            answer: PieceAnswer | None = None
            if not to_read:
                answer = self._ask(self._most)
                if answer is not None:
                    to_read.extend(answer.pieces)

            if to_read:
                piece = to_read.popleft()
                if self._is_mine(piece.number):
                    yield from self._drawn(self._read(piece))

                to_read.extend(self._given_besides)
                self._given_besides.clear()
                continue

            yield from self._drawn(self._rest())
            if answer is not None and answer.is_end:
                return

            self._stopped.wait(self._poll_s)

    def stop(self) -> None:
        self._stopped.set()

    # --- what a kind of input decides ---

    def _begin(self) -> None:
        """Forget what is read and not drawn."""
        return None

    @abstractmethod
    def _read(self, piece: Piece) -> Iterator[DrawnBatch[B]]:
        """The batches that are full; what is left is for the next piece, or for `_rest`."""

    def _rest(self) -> Iterator[DrawnBatch[B]]:
        """What is read and not drawn, when there is nothing to read for now."""
        return iter(())

    def _ask(self, most: int) -> PieceAnswer | None:
        return self._heard(self._source.ask(self._plan, most))

    # --- what all kinds need ---

    @property
    def _source(self) -> PieceSource:
        if self._given_source is None:
            raise InvalidRequest("pieces are handed out by a controller: use --sharding static")

        return self._given_source

    def _heard(self, answer: PieceAnswer | None) -> PieceAnswer | None:
        """Take what was given, and forget what is another worker's by now."""
        if answer is None:
            return None

        lost = self._held.keys() - answer.held
        for number in lost:
            del self._held[number]

        for piece in answer.pieces:
            self._held[piece.number] = piece

        return answer

    def _is_mine(self, number: int) -> bool:
        """Whether to read on in a piece; asks if it may have been taken back."""
        if self._source.is_unsure:
            answer = self._ask(0)
            # An earlier question, late on its way, may have been given pieces that this answer
            # tells of for the first time.
            if answer is not None:
                self._given_besides.extend(answer.pieces)

        return number in self._held

    def _nothing_in(self, piece: Piece) -> None:
        """A piece without rows is done."""
        self._held.pop(piece.number, None)
        done = PieceProgress(piece.number, piece.offset, is_done=True)
        cursor = cursor_of([done])
        self._source.trained(cursor)

    def _drawn(self, drawn: Iterable[DrawnBatch[B]]) -> Iterator[InputBatch[B]]:
        for each in drawn:
            for progress in each.progress:
                self._note(progress)

            cursor = cursor_of(each.progress)
            yield InputBatch(each.batch, cursor, where=each.where, origins=each.origins)

    def _note(self, progress: PieceProgress) -> None:
        number = progress.number
        if number not in self._held:
            return

        if progress.is_done:
            del self._held[number]
        else:
            piece = self._held[number]
            self._held[number] = replace(piece, offset=progress.offset)


class NumberedPieces(PiecedInput[Any]):
    """Numbered batches, each of which is a piece. `num_batches` of 0 is an endless input.

    `of` stands for what decides which examples a number has.
    """

    def __init__(self, batch: Callable[[int], Any], num_batches: int, of: str) -> None:
        plan = PiecePlan(f"numbered {of}", num_batches or ENDLESS)
        super().__init__(plan, _NUMBERS_AT_ONCE)
        self._batch = batch

    def _read(self, piece: Piece) -> Iterator[DrawnBatch[Any]]:
        number = piece.number
        batch = self._batch(number)
        done = PieceProgress(number, 1, is_done=True)
        yield DrawnBatch(batch, (done,), f"batch {number}")


def cursor_of(progress: Iterable[PieceProgress]) -> bytes:
    content = []
    for each in progress:
        content.append([each.number, each.offset, each.is_done])

    return json.dumps(content).encode()


def progress_of(cursor: bytes) -> list[PieceProgress]:
    return [PieceProgress(*each) for each in json.loads(cursor)]
