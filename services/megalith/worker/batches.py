"""The batches of a worker's share, the next ones drawn ahead by a thread."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from numpy.typing import ArrayLike

from megalith.client import Ids
from megalith.errors import InvalidRequest
from megalith.worker.task import Task

NumberOf = Callable[[int], int | None]  # the batch number of a position; None after the share's end


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """A task's batch and its ids by table, which are searched once for its pull and its push."""

    batch: Any
    ids: dict[str, Ids]


class Batches:
    """Batches by position in the share. Used by one thread; another one draws `ahead` of them."""

    def __init__(self, task: Task[Any], number_of: NumberOf, ahead: int) -> None:
        self._task = task
        self._number_of = number_of
        self._ahead = ahead
        self._drawn: dict[int, Future[TrainingBatch]] = {}
        self._thread: ThreadPoolExecutor | None = None
        if ahead:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="input")

    def has(self, position: int) -> bool:
        return self._number_of(position) is not None

    def get(self, position: int) -> TrainingBatch:
        """The batch of a position, which exists; drawing those after it begins."""
        if self._thread is None:
            return self._draw(self._number(position))

        after = range(position, position + self._ahead + 1)
        wanted = [each for each in after if self.has(each)]

        for stale in self._drawn.keys() - wanted:
            self._drawn.pop(stale).cancel()

        for each in wanted:
            if each not in self._drawn:
                number = self._number(each)
                self._drawn[each] = self._thread.submit(self._draw, number)

        return self._drawn[position].result()

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def _draw(self, number: int) -> TrainingBatch:
        batch = self._task.batch(number)
        ids = {}
        for table, values in self._task.ids(batch).items():
            ids[table] = _ids(table, values)

        return TrainingBatch(batch, ids)

    def _number(self, position: int) -> int:
        number = self._number_of(position)
        if number is None:
            raise InvalidRequest(f"position {position} is after the end of the share")

        return number


def _ids(table: str, values: ArrayLike | Ids) -> Ids:
    if isinstance(values, Ids):
        return values

    try:
        return Ids(values)
    except InvalidRequest as error:
        raise InvalidRequest(f"table {table}: {error}") from error
