"""Any Python iterable of batches as input; its cursor counts them."""

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from megalith.errors import InvalidRequest
from megalith.worker.input import Input, InputBatch

B = TypeVar("B")

_CURSOR = re.compile(rb"generated batches=(\d+)")


class GeneratedInput(Input[B], Generic[B]):
    """Of n workers, worker i takes the batches i, i + n, i + 2n and so on of what `make` makes.

    `make` is called once for each start, and must give the same batches each time: those before the
    cursor are made again and passed over.
    """

    def __init__(self, make: Callable[[], Iterable[B]], *, index: int = 0, count: int = 1) -> None:
        self._make = make
        self._index = index
        self._count = count

    def batches(self, cursor: bytes) -> Iterator[InputBatch[B]]:
        first = _batches_before(cursor)
        rest = itertools.islice(self._make(), first, None)
        for number, batch in enumerate(rest, first):
            if number % self._count != self._index:
                continue

            after = f"generated batches={number + 1}"
            yield InputBatch(batch, after.encode(), where=f"batch {number}")

    def resumed(self, saved: Sequence[bytes], index: int, count: int) -> bytes:
        """Another number of workers goes on at the first batch that somebody had not read."""
        if len(saved) == count:
            return saved[index]

        first = min(_batches_before(cursor) for cursor in saved)
        return f"generated batches={first}".encode() if first else b""


def _batches_before(cursor: bytes) -> int:
    if not cursor:
        return 0

    match = _CURSOR.fullmatch(cursor)
    if match is None:
        raise InvalidRequest(
            f"the input cursor {cursor[:60]!r} is of another kind of input; "
            "to read from the start, set --input-cursors false"
        )

    return int(match[1])
