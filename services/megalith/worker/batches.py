"""The batches of a worker's share, drawn from its input by a thread."""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from numpy.typing import ArrayLike

from megalith.client import Ids
from megalith.errors import InvalidRequest
from megalith.worker.input import Input, InputBatch
from megalith.worker.task import Task

logger = logging.getLogger(__name__)

_CLOSE_S = 5.0  # for the thread to end; an input that waits for data may not notice


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """A task's batch and its ids by table, which are searched once for its pull and its push.

    The input goes on at `cursor` after it.
    """

    batch: Any
    ids: dict[str, Ids]
    cursor: bytes = b""
    req_time_s: int = 0
    where: str = ""


class Batches:
    """The batches after a cursor, by position; that of the first one is `position`.

    A batch stays until it is forgotten, because a step that failed is taken again. A thread draws
    `ahead` batches more than were asked for. `step` is asked for the global step, which is noted on
    errors of the input. The condition guards all that changes.
    """

    def __init__(
        self,
        task: Task[Any],
        input_: Input[Any],
        cursor: bytes,
        position: int,
        ahead: int,
        step: Callable[[], int],
    ) -> None:
        self._task = task
        self._step = step
        self._input = input_
        self._ahead = ahead
        self._changed = threading.Condition()
        self._cursor = cursor  # of the last batch that was drawn
        self._first = position  # of those that are held
        self._held: deque[TrainingBatch] = deque()
        self._wanted = position  # the thread draws up to here
        self._is_at_end = False
        self._error: BaseException | None = None  # for whoever asks for the next batch
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="input", daemon=True)
        self._thread.start()

    def wait_for(self, position: int, timeout_s: float | None) -> bool:
        """Whether it is known in that time if there is a batch at that position."""
        with self._changed:
            self._want(position)
            return self._changed.wait_for(lambda: self._is_known(position), timeout_s)

    def has(self, position: int) -> bool:
        """Whether there is a batch at that position; waits for the input.

        True also if drawing it has failed, and `get` raises why.
        """
        self.wait_for(position, None)
        with self._changed:
            return not self._is_beyond_end(position)

    def is_drawn(self, position: int, timeout_s: float) -> bool:
        """Whether the batch of a position is there within that time."""
        self.wait_for(position, timeout_s)
        with self._changed:
            return position < self._first + len(self._held)

    def get(self, position: int) -> TrainingBatch:
        """The batch of a position, which exists. What went wrong in drawing it is raised."""
        self.wait_for(position, None)
        with self._changed:
            offset = position - self._first
            if offset < 0 or self._is_beyond_end(position):
                raise InvalidRequest(f"there is no batch at position {position}")
            if offset < len(self._held):
                return self._held[offset]

            error = self._error
            self._error = None  # if it is asked for again, it is drawn again
            self._changed.notify_all()

        if error is None:
            raise InvalidRequest("the input was closed")

        error.add_note(f"step {self._step()}")
        raise error

    def forget_before(self, position: int) -> None:
        """These will not be asked for again."""
        with self._changed:
            while self._held and self._first < position:
                self._held.popleft()
                self._first += 1

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

        self._input.stop()
        self._thread.join(_CLOSE_S)
        if self._thread.is_alive():
            logger.warning("the input still waits for data; it is left behind")

    def _want(self, position: int) -> None:
        wanted = position + 1 + self._ahead
        if wanted > self._wanted:
            self._wanted = wanted
            self._changed.notify_all()

    def _is_known(self, position: int) -> bool:
        is_drawn = position < self._first + len(self._held)
        return is_drawn or self._is_at_end or self._is_closed or self._error is not None

    def _is_beyond_end(self, position: int) -> bool:
        return self._is_at_end and position >= self._first + len(self._held)

    def _run(self) -> None:
        try:
            while self._may_draw():
                self._draw_until_end_or_error()
        finally:
            self._input.close()

    def _draw_until_end_or_error(self) -> None:
        try:
            batches = self._input.batches(self._cursor)
            while self._may_draw():
                self._draw(batches)
        except BaseException as error:  # whatever it is, the training thread raises it
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _draw(self, batches: Iterator[InputBatch[Any]]) -> None:
        drawn = next(batches, None)
        held = None if drawn is None else self._with_ids(drawn)
        with self._changed:
            if held is None:
                self._is_at_end = True
            else:
                self._held.append(held)
                self._cursor = held.cursor

            self._changed.notify_all()

    def _may_draw(self) -> bool:
        """Wait until another batch is wanted (True), or none will be (False)."""

        def is_wanted() -> bool:
            num_drawn = self._first + len(self._held)
            return num_drawn < self._wanted and self._error is None

        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._is_at_end or is_wanted())
            return not self._is_closed and not self._is_at_end

    def _with_ids(self, drawn: InputBatch[Any]) -> TrainingBatch:
        ids = {}
        for table, values in self._task.ids(drawn.batch).items():
            ids[table] = _ids(table, values)

        return TrainingBatch(drawn.batch, ids, drawn.cursor, drawn.req_time_s, drawn.where)


def _ids(table: str, values: ArrayLike | Ids) -> Ids:
    if isinstance(values, Ids):
        return values

    try:
        return Ids(values)
    except InvalidRequest as error:
        raise InvalidRequest(f"table {table}: {error}") from error
