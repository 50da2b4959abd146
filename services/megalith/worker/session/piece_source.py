"""The pieces of this worker, as the controller hands them out."""

import logging
import threading
from collections.abc import Callable, Sequence

from megalith.control import Controller
from megalith.control.retry import PASSING
from megalith.wire.pieces import FoundFile, PieceAnswer, PiecePlan, PieceProgress, PieceRequest
from megalith.worker.pieced_input import progress_of

logger = logging.getLogger(__name__)

_ASK_S = 10.0  # for one answer; the controller writes its journal before


class ControllerPieces:
    """What the worker holds, and how far each piece is trained.

    The thread that reads asks, the thread that trains says what is trained, and reports take all of
    it. `_lock` guards what they share. Only the thread that reads uses `_is_away`.
    """

    def __init__(self, controller: Controller, index: int, incarnation: Callable[[], str]) -> None:
        self._controller = controller
        self._index = index
        self._incarnation = incarnation
        self._lock = threading.Lock()
        self._progress: dict[int, PieceProgress] = {}
        self._is_unsure = False
        self._is_away = False  # the controller, at the last question

    def ask(
        self, plan: PiecePlan, most: int, found: Sequence[FoundFile] = (), is_idle: bool = False
    ) -> PieceAnswer | None:
        """A question whose answer is lost is asked again with the same answer."""
        with self._lock:
            said = tuple(self._progress.values())
            was_unsure = self._is_unsure
            self._is_unsure = False

        request = PieceRequest(
            self._index, self._incarnation(), plan, said, most, tuple(found), is_idle
        )
        try:
            answer = self._controller.take_pieces(request, _ASK_S)
        except PASSING as error:
            self._say_away(error)
            with self._lock:
                self._is_unsure = self._is_unsure or was_unsure

            return None

        self._is_away = False
        self._hear(said, answer)
        return answer

    def _hear(self, said: Sequence[PieceProgress], answer: PieceAnswer) -> None:
        with self._lock:
            for each in said:
                if each.is_done or each.number not in answer.held:
                    del self._progress[each.number]
                if not each.is_done and each.number not in answer.held:
                    logger.warning("piece %d was given to another worker", each.number)

            for piece in answer.pieces:
                self._progress[piece.number] = PieceProgress(piece.number, piece.offset)

    def _say_away(self, error: Exception) -> None:
        if not self._is_away:
            self._is_away = True
            logger.warning("no more pieces of the input until the controller answers: %s", error)

    @property
    def is_unsure(self) -> bool:
        """Whether this worker was away since it last asked: pieces may be others' by now."""
        with self._lock:
            return self._is_unsure

    def rejoined(self) -> None:
        """The session was lost, and is open again."""
        with self._lock:
            self._is_unsure = True

    def trained(self, cursor: bytes) -> None:
        """A batch with this cursor is trained. Pieces that are another's by now do not count.

        A piece whose other rows are gone is done before its last batch is trained, and stays so.
        """
        progress = progress_of(cursor)
        with self._lock:
            for each in progress:
                known = self._progress.get(each.number)
                if known is not None and not known.is_done:
                    self._progress[each.number] = each

    def progress(self) -> tuple[PieceProgress, ...]:
        with self._lock:
            return tuple(self._progress.values())
