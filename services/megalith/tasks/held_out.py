"""Input of batches that are simply there, one after the other."""

from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from megalith.worker.input import Input, InputBatch

B_co = TypeVar("B_co", covariant=True)


class ListedInput(Input[B_co], Generic[B_co]):
    """Of three workers, for example, worker-1 reads the batches 1, 4, 7 and so on of the list.

    The cursor is how many of the list were passed. `batches` begins anew with each call, so they
    are to be a list, or made by something that can be gone through twice.
    """

    def __init__(self, batches: Iterable[B_co], index: int, count: int) -> None:
        self._batches = batches
        self._index = index
        self._count = count

    def batches(self, cursor: bytes) -> Iterator[InputBatch[B_co]]:
        passed = int(cursor or b"0")
        for number, batch in enumerate(self._batches):
            is_mine = number % self._count == self._index
            if number < passed or not is_mine:
                continue

            after = b"%d" % (number + 1)
            yield InputBatch(batch, after, where=f"batch {number}")
