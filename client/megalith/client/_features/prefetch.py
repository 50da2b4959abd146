"""Results a bounded number of items ahead of their consumer."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NoReturn, Protocol, TypeVar

from megalith.client._transport.pending_call import Result
from megalith.errors import InvalidRequest
from megalith.wire import forking

Item = TypeVar("Item")
Result_co = TypeVar("Result_co", covariant=True)


class Pending(Protocol[Result_co]):
    """Work that goes on somewhere else until its result is asked for."""

    def result(self) -> Result_co: ...

    def abandon(self, reason: Exception) -> object: ...


def ahead(
    items: Iterable[Item], begin: Callable[[Item], Pending[Result]], depth: int
) -> Iterator[tuple[Item, Result]]:
    """(item, the result of begin(item)) in order.

    Work is begun for up to `depth` items beyond the one yielded. Items are read in the caller's
    thread, each when the one `depth` before it is asked for: the input may be endless. `begin` runs
    there too, before the next item is read: it copies what the work needs of an item whose arrays
    the next item may fill anew. An error of either is raised in the place of its item.

    Closing the iterator gives up what was begun. In a forked child it cannot be read on: what was
    begun is the parent's.
    """
    if depth < 0:
        raise InvalidRequest(f"prefetch: depth {depth} is negative")

    return _ahead(items, begin, depth)


def _ahead(
    items: Iterable[Item], begin: Callable[[Item], Pending[Result]], depth: int
) -> Iterator[tuple[Item, Result]]:
    window: deque[tuple[Item, Pending[Result]]] = deque()
    process = os.getpid()
    try:
        for item in items:
            window.append((item, _begun(begin, item)))

            if len(window) > depth:
                first, pending = window.popleft()
                yield first, pending.result()
                _check_process(process)

        while window:
            first, pending = window.popleft()
            yield first, pending.result()
            _check_process(process)
    finally:
        if os.getpid() == process:
            for _, pending in window:
                pending.abandon(InvalidRequest("the prefetch was closed"))


def _begun(begin: Callable[[Item], Pending[Result]], item: Item) -> Pending[Result]:
    try:
        return begin(item)
    except Exception as error:
        return _Failed(error)


class _Failed:
    """Work that could not be begun; its error is raised in its place."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def result(self) -> NoReturn:
        raise self._error

    def abandon(self, reason: Exception) -> None:
        pass


def _check_process(process: int) -> None:
    if os.getpid() != process:
        raise forking.of_the_parent("this prefetch")
