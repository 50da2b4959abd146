"""Results a bounded number of items ahead of their consumer."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from megalith.wire.errors import InvalidRequest

T = TypeVar("T")
R = TypeVar("R")


def ahead(items: Iterable[T], work: Callable[[T], R], depth: int) -> Iterator[tuple[T, R]]:
    """(item, work(item)) in order; `work` runs in one thread, for up to `depth` items beyond the one yielded.

    Items are read in the caller's thread, each when the one `depth` before it is asked for: the input may be endless.
    An error of `work` is raised in the place of its item. Closing the iterator drops what has not begun and waits for
    what has. With depth 0 there is no thread.
    """
    if depth < 0:
        raise InvalidRequest(f"prefetch: depth {depth} is negative")
    if depth == 0:
        return ((item, work(item)) for item in items)
    return _ahead(items, work, depth)


def _ahead(items: Iterable[T], work: Callable[[T], R], depth: int) -> Iterator[tuple[T, R]]:
    window: deque[tuple[T, Future[R]]] = deque()
    thread = ThreadPoolExecutor(1, "megalith-prefetch")
    try:
        for item in items:
            window.append((item, thread.submit(work, item)))
            if len(window) > depth:
                first, future = window.popleft()
                yield first, future.result()
        for first, future in window:
            yield first, future.result()
    finally:
        thread.shutdown(cancel_futures=True)
