"""Input whose batches have numbers, and its cursor: how far the share of one worker is read.

A cursor is opaque to everybody else. Reports carry it to the controller, the journal and
checkpoints keep it, and a worker that begins gets it back.
"""

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from megalith.errors import InvalidRequest

logger = logging.getLogger(__name__)

_CURSOR = re.compile(rb"numbered batches=(\d+) workers=(\d+) batch_size=(\d+)")


@dataclass(frozen=True, slots=True)
class _Cursor:
    """So many batches of a share are read, where so many workers share batches of that size."""

    batches: int
    workers: int
    batch_size: int

    @classmethod
    def parse(cls, cursor: bytes) -> Self:
        match = _CURSOR.fullmatch(cursor)
        if match is None:
            raise InvalidRequest(
                f"the input cursor {cursor[:60]!r} is of another kind of input; "
                "to read from the start, set --input-cursors false"
            )

        return cls(*map(int, match.groups()))

    def encoded(self) -> bytes:
        text = f"numbered batches={self.batches} workers={self.workers}"
        return f"{text} batch_size={self.batch_size}".encode()


class NumberedInput:
    """The batches of one worker. Of 3 workers, for example, worker-1 reads 1, 4, 7 and so on.

    `num_batches` is that of all workers together; 0 = endless. A position counts the batches that
    were trained in this run, while the cursor counts those of the whole share.
    """

    def __init__(self, num_batches: int, index: int, num_workers: int, batch_size: int = 0) -> None:
        self._index = index
        self._num_workers = num_workers
        self._batch_size = batch_size
        self._share: int | None = None
        if num_batches:
            rounded_up = -(-(num_batches - index) // num_workers)
            self._share = max(0, rounded_up)

        self._before = 0  # batches of the share that were read before position 0

    def begin(self, cursor: bytes, first_cursors: Sequence[bytes], position: int) -> None:
        """Go on at `cursor`, where this run stands at `position`.

        A worker that has no cursor yet begins where the checkpoint of this run was saved:
        `first_cursors` has a cursor for each worker of that time, and none without a checkpoint.
        """
        read = _Cursor.parse(cursor).batches if cursor else self._read_until(first_cursors)
        self._before = read - position

    def number_of(self, position: int) -> int | None:
        """The number of the batch at that position; None after the end of the share."""
        read = self._before + position
        if self._share is not None and read >= self._share:
            return None

        return self._index + read * self._num_workers

    def cursor_at(self, position: int) -> bytes:
        """Where a worker goes on that has trained so many batches in this run."""
        return _Cursor(self._before + position, self._num_workers, self._batch_size).encoded()

    @property
    def total(self) -> int | None:
        """The position at which the share ends; None if it does not."""
        return None if self._share is None else max(0, self._share - self._before)

    def _read_until(self, first_cursors: Sequence[bytes]) -> int:
        begun = [_Cursor.parse(cursor) for cursor in first_cursors if cursor]
        if not begun:
            return 0

        # An empty one is of a worker that had not begun. It shared batches of the same size.
        not_begun = replace(begun[0], batches=0)
        saved = [_Cursor.parse(cursor) if cursor else not_begun for cursor in first_cursors]

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
            "the input was shared by %d workers, and is by %d now, or the batches have another "
            "size: it goes on at batch %d, the first that somebody had not read; later ones that "
            "others had read are read again",
            len(saved),
            self._num_workers,
            number,
        )
        return read

    def _is_alike(self, cursor: _Cursor) -> bool:
        return (cursor.workers, cursor.batch_size) == (self._num_workers, self._batch_size)
