"""Results a bounded number of items ahead of their consumer."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from megalith.wire import forking
from megalith.wire.errors import InvalidRequest

T = TypeVar("T")
R = TypeVar("R")


def ahead(
    items: Iterable[T], prepare: Callable[[T], Callable[[], R]], depth: int
) -> Iterator[tuple[T, R]]:
    """(item, prepare(item)()) in order; the work runs in one thread, for up to `depth` items beyond the one yielded.

    Items are read in the caller's thread, each when the one `depth` before it is asked for: the input may be endless.
    `prepare` runs there too, before the next item is read: it takes what the work needs of an item whose arrays the
    next item may fill anew. An error of either is raised in the place of its item.

    Closing the iterator drops what has not begun and waits for what has. With depth 0 there is no thread. In a forked
    child it cannot be read on: its thread is the parent's.
    """
    if depth < 0:
        raise InvalidRequest(f"prefetch: depth {depth} is negative")
    if depth == 0:
        return ((item, prepare(item)()) for item in items)
    return _ahead(items, prepare, depth)


def _ahead(
    items: Iterable[T], prepare: Callable[[T], Callable[[], R]], depth: int
) -> Iterator[tuple[T, R]]:
    window: deque[tuple[T, Future[R]]] = deque()
    thread = ThreadPoolExecutor(1, "megalith-prefetch")
    process = os.getpid()
    try:
        for item in items:
            window.append((item, _begun(thread, prepare, item)))
            if len(window) > depth:
                first, future = window.popleft()
                yield first, future.result()
                _check_process(process)
        for first, future in window:
            yield first, future.result()
            _check_process(process)
    finally:
        if os.getpid() == process:
            thread.shutdown(cancel_futures=True)


def _begun(
    thread: ThreadPoolExecutor, prepare: Callable[[T], Callable[[], R]], item: T
) -> "Future[R]":
    try:
        return thread.submit(prepare(item))
    except Exception as error:
        failed: Future[R] = Future()
        failed.set_exception(error)
        return failed


def _check_process(process: int) -> None:
    if os.getpid() != process:
        raise forking.of_the_parent("this prefetch")
