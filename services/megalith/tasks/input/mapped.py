"""An input whose batches are made of those of another one."""

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from megalith.wire.reports import InputCounts
from megalith.worker.input import Input, InputBatch, PieceSource

A = TypeVar("A")
B = TypeVar("B")


class MappedInput(Input[B], Generic[A, B]):
    """The batches of `source`, each made into another by `change`. Cursors are the source's."""

    def __init__(self, source: Input[A], change: Callable[[InputBatch[A]], InputBatch[B]]) -> None:
        self._source = source
        self._change = change

    def batches(self, cursor: bytes) -> Iterator[InputBatch[B]]:
        for drawn in self._source.batches(cursor):
            yield self._change(drawn)

    def remaining(self, cursor: bytes) -> int | None:
        return self._source.remaining(cursor)

    def resumed(self, saved: Sequence[bytes], index: int, count: int) -> bytes:
        return self._source.resumed(saved, index, count)

    def left_out(self) -> InputCounts:
        return self._source.left_out()

    def draw_from(self, source: PieceSource) -> None:
        self._source.draw_from(source)

    def stop(self) -> None:
        self._source.stop()

    def close(self) -> None:
        self._source.close()
