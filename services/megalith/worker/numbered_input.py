"""Input whose batches have numbers, and its cursor: how far the share of one worker is read."""

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from megalith.errors import InvalidRequest
from megalith.runtime.counting import counted
from megalith.worker.input import Input, InputBatch

logger = logging.getLogger(__name__)

_CURSOR = re.compile(rb"numbered batches=(\d+) workers=(\d+) batch_size=(\d+)(?: of=(\w+))?")


@dataclass(frozen=True, slots=True)
class _Cursor:
    """So many batches of a share are read, where so many workers share batches of that size.

    `of` is that of the input.
    """

    batches: int
    workers: int
    batch_size: int
    of: str = ""

    @classmethod
    def parse(cls, cursor: bytes) -> Self:
        match = _CURSOR.fullmatch(cursor)
        if match is None:
            raise InvalidRequest(
                f"the input cursor {cursor[:60]!r} is of another kind of input; "
                "to read from the start, set --input-cursors false"
            )

        batches, workers, batch_size, of = match.groups(default=b"")
        return cls(int(batches), int(workers), int(batch_size), of.decode())

    def encoded(self) -> bytes:
        text = f"numbered batches={self.batches} workers={self.workers}"
        of = f" of={self.of}" if self.of else ""
        return f"{text} batch_size={self.batch_size}{of}".encode()


class NumberedInput(Input[Any]):
    """The batches of one worker. Of 3 workers, for example, worker-1 reads 1, 4, 7 and so on.

    `batch` makes the batch of a number. `num_batches` is that of all workers together; 0 = endless.
    Batch n of size s has the examples n * s and up. Where that is not so, `of` stands for what
    decides which examples a number has: letters and digits. If it is another one in a checkpoint,
    the input is read from its start.
    """

    def __init__(
        self,
        batch: Callable[[int], Any],
        num_batches: int,
        index: int,
        num_workers: int,
        batch_size: int = 0,
        of: str = "",
    ) -> None:
        self._batch = batch
        self._of = of
        self._index = index
        self._num_workers = num_workers
        self._batch_size = batch_size
        self._share: int | None = None
        if num_batches:
            rounded_up = -(-(num_batches - index) // num_workers)
            self._share = max(0, rounded_up)

    def batches(self, cursor: bytes) -> Iterator[InputBatch[Any]]:
        read = _read_before(cursor)
        while self._share is None or read < self._share:
            number = self._index + read * self._num_workers
            where = f"batch {number}"
            try:
                batch = self._batch(number)
            except Exception as error:
                error.add_note(where)
                raise

            read += 1
            yield InputBatch(batch, self._cursor(read), where=where)

    def remaining(self, cursor: bytes) -> int | None:
        if self._share is None:
            return None

        return max(0, self._share - _read_before(cursor))

    def resumed(self, saved: Sequence[bytes], index: int, count: int) -> bytes:
        return self._cursor(self._read_until(saved))

    def _cursor(self, read: int) -> bytes:
        return _Cursor(read, self._num_workers, self._batch_size, self._of).encoded()

    def _read_until(self, first_cursors: Sequence[bytes]) -> int:
        begun = [_Cursor.parse(cursor) for cursor in first_cursors if cursor]
        if not begun:
            return 0

        # An empty one is of a worker that had not begun. It shared batches of the same size.
        not_begun = replace(begun[0], batches=0)
        saved = [_Cursor.parse(cursor) if cursor else not_begun for cursor in first_cursors]

        if any(cursor.of != self._of for cursor in saved):
            logger.warning(
                "the batches of the checkpoint have other examples: files, batch size or seed have "
                "changed; the input is read from its start, so that nothing is left out"
            )
            return 0

        layouts = {(cursor.workers, cursor.batch_size) for cursor in saved}
        if len(layouts) > 1:
            # The workers of an earlier run had read batches of another size, and who goes on for
            # which of them is not known
            logger.warning(
                "the checkpoint was saved before all workers had begun to read batches of another "
                "size: the input is read from its start, so that nothing is left out"
            )
            return 0

        is_alike = all(self._is_alike(cursor) for cursor in saved)
        if is_alike and len(saved) == self._num_workers:
            return saved[self._index].batches

        # The shares were others. Everything before the first batch that is missing is read: what
        # comes after it is read again, so that nothing is left out.
        first_missing = min(
            (worker + cursor.batches * cursor.workers) * cursor.batch_size
            for worker, cursor in enumerate(saved)
        )
        number = first_missing // max(1, self._batch_size)
        read = max(0, -(-(number - self._index) // self._num_workers))
        logger.warning(
            "the input was divided among %s, and is among %d now, or the batches have another "
            "size: it goes on at batch %d, the first that somebody had not read; later ones that "
            "others had read are read again",
            counted(len(saved), "worker"),
            self._num_workers,
            number,
        )
        return read

    def _is_alike(self, cursor: _Cursor) -> bool:
        return (cursor.workers, cursor.batch_size) == (self._num_workers, self._batch_size)


def _read_before(cursor: bytes) -> int:
    return _Cursor.parse(cursor).batches if cursor else 0
