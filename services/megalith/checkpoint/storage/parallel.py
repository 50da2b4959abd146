"""Threads that read and change several files of a storage at once."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

REQUESTS = 16  # small ones, which wait for an object store most of the time


@contextmanager
def threads(name: str, most: int) -> Iterator[ThreadPoolExecutor]:
    """So many threads at most. After an error nothing is begun any more."""
    with ThreadPoolExecutor(most, name) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def in_parallel(
    call: Callable[[T], R], items: Iterable[T], name: str, most: int = REQUESTS
) -> list[R]:
    """What `call` makes of each item, in their order. Of its errors, that of the first item."""
    with threads(name, most) as pool:
        return list(pool.map(call, items))
