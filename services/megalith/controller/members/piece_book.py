"""Which pieces of the input are done, who holds which, and who gets the next ones.

Pieces have numbers and are handed out in their order:

    0 ... done, but for those that are open ... | next ... not handed out yet ... | total

An *open* piece was handed out and is not done. A worker holds it, or it was taken back from one
that is lost and is the first to be handed out again. So the book is as large as what is open,
however many pieces there are.
"""

import json
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Self

from megalith.controller.members.found_files import FoundFiles, LateFiles
from megalith.errors import InvalidRequest
from megalith.runtime.counting import counted
from megalith.wire.pieces import (
    BOOK_PREFIX,
    ENDLESS,
    Piece,
    PieceAnswer,
    PieceCounts,
    PiecePlan,
    PieceProgress,
    PieceRequest,
)

logger = logging.getLogger(__name__)

# Whether the process of that incarnation acts no more for the worker of that index.
IsGone = Callable[[int, str], bool]

_FORMAT = 1
_NOBODY = ""  # the incarnation of who holds what is free
MOST_HELD = 4096  # by one worker: the journal has all of them


@dataclass(slots=True)
class _OpenPiece:
    """It goes on at `offset`. Without an `incarnation` nobody holds it."""

    offset: int = 0
    index: int = -1
    incarnation: str = _NOBODY


class PieceBook:
    """The pieces of one run. Not thread-safe: the coordinator's lock guards it.

    It begins with the first request, whose plan it has from then on. A book of a checkpoint goes on
    if the plan is of the same input, and begins anew otherwise.

    `version` grows with each change that the next controller must know.
    """

    def __init__(self) -> None:
        self._plan: PiecePlan | None = None  # None until a worker of this run has asked
        self._of = ""

        self._is_followed = False
        self._total = 0
        self._next = 0

        self._open: dict[int, _OpenPiece] = {}
        self._names: dict[int, str] = {}  # of pieces that are files, until they are done
        self._files = FoundFiles()
        self._late = LateFiles()
        self._is_ended = False  # of an input that is followed: nobody waits for files any more
        self._returned = 0

        self.version = 0

    # --- what workers say and ask ---

    def take(self, request: PieceRequest, is_gone: IsGone) -> PieceAnswer:
        """Hear how far a worker is with its pieces, and give it more.

        Pieces that were given to it and that it does not know of are given again: an answer was
        lost. Pieces of workers that are gone go first, because an epoch waits for them.
        """
        self._open_for(request.plan)
        self.report(request.incarnation, request.progress)
        late = self._add_files(request)
        self._take_back(is_gone)

        given = self._not_heard_of(request)
        if not given:
            given = self._hand_out(request)

        if request.is_idle and self._is_read and not self._is_ended:
            self._is_ended = True
            self.version += 1

        held = self._held_by(request.incarnation)
        return PieceAnswer(
            pieces=tuple(map(self._piece, given)),
            held=frozenset(held),
            is_end=self.is_complete,
            closed_hour=self._files.closed,
            known_files=self._total if self._is_followed else 0,
            late_files=tuple(late),
        )

    def report(self, incarnation: str, progress: Iterable[PieceProgress]) -> None:
        """How far a worker is. What it says of pieces that are not its own changes nothing."""
        for each in progress:
            piece = self._open.get(each.number)
            if piece is None or piece.incarnation != incarnation:
                continue

            piece.offset = max(piece.offset, each.offset)
            if each.is_done:
                self._close(each.number)

    def _close(self, number: int) -> None:
        del self._open[number]
        self._names.pop(number, None)
        self.version += 1

    def _open_for(self, plan: PiecePlan) -> None:
        """Begin with this plan, or InvalidRequest if this run has another."""
        if plan == self._plan:
            return

        if self._plan is not None:
            raise InvalidRequest(
                f"the workers of this run read different inputs: {self._plan} and {plan}; start "
                "all of them with the same data, batch size, seed and --epochs"
            )

        if self._of and self._of != plan.of:
            logger.warning(
                "the pieces of the checkpoint are of other data: files or seed have changed; the "
                "input is read from its start, so that nothing is left out"
            )
            self._forget()

        self._plan = plan
        self._of = plan.of
        self._is_followed = plan.is_followed
        if not plan.is_followed:
            self._total = plan.total
        self.version += 1

    def _forget(self) -> None:
        self._total = 0
        self._next = 0
        self._open.clear()
        self._names.clear()
        self._files = FoundFiles()

    def _add_files(self, request: PieceRequest) -> list[str]:
        """Take the files that nobody has told of; those that came too late, for it to count.

        An hour that was open when the worker looked may be closed by now.
        """
        late: list[str] = []
        if not self._is_followed:
            return late

        for file in request.found:
            if self._files.is_late(file):
                # The journal has it with the next change: no piece depends on it.
                if self._late.is_counted_by(request.incarnation, file):
                    late.append(file.path)
            elif not self._is_ended and self._files.add(file):
                self._names[self._total] = file.path
                self._total += 1
                self.version += 1

        return late

    def _take_back(self, is_gone: IsGone) -> None:
        for number, piece in self._open.items():
            if not piece.incarnation or not is_gone(piece.index, piece.incarnation):
                continue

            logger.warning(
                "worker-%d trains no more: its piece %d goes to another at %d",
                piece.index,
                number,
                piece.offset,
            )
            piece.incarnation = _NOBODY
            piece.index = -1
            self._returned += 1
            self.version += 1

    def _not_heard_of(self, request: PieceRequest) -> list[int]:
        """What was given to this worker, and what it does not know: an answer was lost."""
        known = {each.number for each in request.progress}
        held = self._held_by(request.incarnation)
        return [number for number in held if number not in known]

    def _hand_out(self, request: PieceRequest) -> list[int]:
        num_held = len(self._held_by(request.incarnation))
        most = min(request.most, MOST_HELD - num_held)
        most = max(0, most)

        free = sorted(self._held_by(_NOBODY))
        given = free[:most]

        while len(given) < most and self._next < self._total:
            given.append(self._next)
            self._open[self._next] = _OpenPiece()
            self._next += 1

        for number in given:
            piece = self._open[number]
            piece.index = request.index
            piece.incarnation = request.incarnation

            self.version += 1

        return given

    def _held_by(self, incarnation: str) -> list[int]:
        found = []
        for number, piece in self._open.items():
            if piece.incarnation == incarnation:
                found.append(number)

        return found

    def _piece(self, number: int) -> Piece:
        offset = self._open[number].offset
        name = self._names.get(number, "")
        return Piece(number, offset, name)

    # --- how far the input is ---

    @property
    def is_known(self) -> bool:
        """Whether there is anything in it, of this run or of the checkpoint that it began from."""
        return bool(self._of)

    @property
    def is_in_use(self) -> bool:
        """Whether workers of this run take pieces."""
        return self._plan is not None

    @property
    def _is_read(self) -> bool:
        return self._next >= self._total and not self._open

    @property
    def is_complete(self) -> bool:
        """All pieces are done, and there will be no more."""
        is_counted = self._is_ended or not self._is_followed
        return self.is_in_use and is_counted and self._is_read

    def counts(self) -> PieceCounts:
        total = max(self._total, self._next)
        if total >= ENDLESS:
            total = 0

        num_open = len(self._open)
        num_free = len(self._held_by(_NOBODY))
        return PieceCounts(
            total=total,
            done=self._next - num_open,
            held=num_open - num_free,
            returned=self._returned,
            is_followed=self._is_followed,
        )

    def untrained(self) -> list[str]:
        """What is left out if the job ends now, for people."""
        if self._is_read or self._total >= ENDLESS:
            return []

        counts = self.counts()
        left = counts.total - counts.done
        pieces = counted(counts.total, "piece")
        were = "was" if left == 1 else "were"
        return [f"{left:,} of {pieces} of the input {were} not trained to their end"]

    # --- as text, for the journal and for checkpoints ---

    def encoded(self, *, with_holders: bool) -> bytes:
        """With who holds what, as the next controller needs it; a checkpoint has no holders."""
        pieces = []
        for number, piece in self._open.items():
            holder = [piece.index, piece.incarnation] if with_holders else [-1, ""]
            pieces.append([number, piece.offset, *holder])

        content = {
            "pieces": _FORMAT,
            "of": self._of,
            "is_followed": self._is_followed,
            "total": self._total,
            "next": self._next,
            "open": pieces,
            "names": {str(number): name for number, name in self._names.items()},
            "files": self._files.texts(),
            "closed": self._files.closed,
            "late": self._late.tellers if with_holders else {},
            "is_ended": self._is_ended and with_holders,
        }
        return json.dumps(content).encode()

    @classmethod
    def parse(cls, text: bytes) -> Self:
        """ValueError for what is no book."""
        try:
            return cls._of_content(json.loads(text))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"no book of pieces: {text[:60]!r} ({error})") from None

    @classmethod
    def _of_content(cls, content: dict[str, Any]) -> Self:
        if content["pieces"] != _FORMAT:
            raise ValueError(f"of format {content['pieces']}, expected {_FORMAT}")

        book = cls()
        book._of = str(content["of"])
        book._is_followed = bool(content["is_followed"])

        book._total = _count(content["total"])
        book._next = _count(content["next"])
        book._is_ended = bool(content["is_ended"])
        closed = int(content["closed"])
        book._files = FoundFiles.of_texts(content["files"], closed)
        # The journal of an earlier version has none.
        book._late = LateFiles(dict(content.get("late", {})))
        for text, name in content["names"].items():
            number = int(text)
            book._names[number] = str(name)

        for each in content["open"]:
            book._reopen(*each)

        return book

    def _reopen(self, number: int, offset: int, index: int, incarnation: str) -> None:
        if _count(number) >= self._next:
            raise ValueError(f"piece {number} is open and was not handed out")

        piece = _OpenPiece()
        piece.offset = _count(offset)
        piece.index = int(index)
        piece.incarnation = str(incarnation)
        self._open[number] = piece

    def go_on(self) -> None:
        """Keep the plan: the run of this book goes on under another controller."""
        if self._of:
            total = 0 if self._is_followed else self._total
            self._plan = PiecePlan(self._of, total, self._is_followed)


def is_book(cursor: bytes) -> bool:
    return cursor.startswith(BOOK_PREFIX)


def book_of(cursors: tuple[bytes, ...]) -> PieceBook:
    """The book with which a run begins that starts from a checkpoint with these cursors."""
    if len(cursors) == 1 and is_book(cursors[0]):
        return PieceBook.parse(cursors[0])

    return PieceBook()


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no count")

    return value
