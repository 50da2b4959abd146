"""The items of an iterable, read by a thread some items ahead of whoever uses them."""

import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from megalith.client import _arguments
from megalith.errors import InvalidRequest
from megalith.wire import forking

T = TypeVar("T")


def read_ahead(items: Iterable[T], *, depth: int = 1) -> Iterator[T]:
    """The items in order; a thread reads up to `depth` of them before they are asked for.

    The thread begins with the first item that is asked for. An error of `items` is raised in its
    place, after the items before it. Closing the iterator, or leaving its loop, ends the thread
    after the item that it is reading. With a depth of 0 there is no thread: each item is read when
    it is asked for.

    An item is handed over as it is, whatever it is made of. If `items` fills the same arrays again
    and again, it has to copy them.
    """
    iterator = _arguments.iterator(items, "read_ahead: items")
    depth = _arguments.integer(depth, "read_ahead: depth")
    if depth < 0:
        raise InvalidRequest(f"read_ahead: depth {depth} is negative")
    if depth == 0:
        return iterator

    return _read_by_thread(iterator, depth)


def _read_by_thread(items: Iterator[T], depth: int) -> Iterator[T]:
    process = os.getpid()
    queue = _Queue(items, depth)
    threading.Thread(target=queue.fill, name="read-ahead", daemon=True).start()
    try:
        while queue.wait_for_item():
            yield queue.take()
            if os.getpid() != process:
                raise forking.of_the_parent("what is read ahead here")
    finally:
        if os.getpid() == process:
            queue.close()


class _Queue(Generic[T]):
    """Items between the thread that reads them and the one that takes them.

    `_changed` guards everything but the reading itself.
    """

    def __init__(self, items: Iterator[T], depth: int) -> None:
        self._items = items
        self._depth = depth
        self._changed = threading.Condition()
        self._read: deque[T] = deque()
        self._error: BaseException | None = None
        self._is_ended = False  # there are no more items, or reading them failed
        self._is_closed = False

    def fill(self) -> None:
        """Read items while there is room for them, until the end."""
        try:
            while self._wait_for_room():
                item = next(self._items)
                with self._changed:
                    self._read.append(item)
                    self._changed.notify_all()
        except StopIteration:
            self._end(None)
        except BaseException as error:  # raised again in the thread that takes the items
            self._end(error)

    def wait_for_item(self) -> bool:
        """Whether there is an item to take; an error is raised after the last one."""
        with self._changed:
            self._changed.wait_for(lambda: self._read or self._is_ended)
            if self._read:
                return True
            if self._error is not None:
                raise self._error

            return False

    def take(self) -> T:
        with self._changed:
            item = self._read.popleft()
            self._changed.notify_all()
            return item

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _wait_for_room(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or len(self._read) < self._depth)
            return not self._is_closed

    def _end(self, error: BaseException | None) -> None:
        with self._changed:
            self._error = error
            self._is_ended = True
            self._changed.notify_all()
