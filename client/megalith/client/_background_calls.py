"""Calls that a thread makes while the caller goes on."""

import logging
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, ParamSpec, Self

from megalith.client import _arguments
from megalith.errors import InvalidRequest
from megalith.wire import forking

logger = logging.getLogger(__name__)

P = ParamSpec("P")


class BackgroundCalls:
    """Functions that are called one after the other, by a thread, beside the caller's own work.

        with BackgroundCalls() as calls:
            for batch in batches:
                loss = train(batch)
                calls.make(write_to_a_slow_disk, loss)

    At most `depth` calls are unfinished when `make` returns. With a depth of 1 the call of a step
    is over when the next step makes its own. With 0 a call is made at once, by the caller.

    An error of a call is raised by the next `make`, `drain` or `close`. Calls that were made
    after the one that failed are not affected. If several fail before anybody asks, the first is
    raised and the others are logged. Arguments are not copied.

    Used by one thread; `_changed` guards what it shares with the thread that makes the calls. In a
    forked child nothing is under way: what the parent made is the parent's.
    """

    def __init__(self, *, depth: int = 1) -> None:
        self._depth = _arguments.integer(depth, "background calls: depth")
        if depth < 0:
            raise InvalidRequest(f"background calls: depth {depth} is negative")

        self.renew_after_fork()
        forking.renew_in_child(self)

    def renew_after_fork(self) -> None:
        self._changed = threading.Condition()
        self._unfinished: deque[Callable[[], object]] = deque()  # the first one is being made

        self._error: Exception | None = None
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
            return

        try:
            self.close()
        except Exception as later:  # the error that left the block is the one to raise
            logger.warning("a call in the background failed too: %s", later)

    def make(self, function: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call the function; its result is dropped."""
        if self._is_closed:
            raise InvalidRequest("these background calls are closed")
        if self._depth == 0:
            function(*args, **kwargs)
            return

        with self._changed:
            self._changed.wait_for(lambda: len(self._unfinished) < self._depth)
            self._raise_error()
            self._unfinished.append(partial(function, *args, **kwargs))
            self._changed.notify_all()

        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="background-calls", daemon=True)
            self._thread.start()

    @property
    def is_idle(self) -> bool:
        """Whether all calls are over; then `make` does not wait."""
        with self._changed:
            return not self._unfinished

    def drain(self) -> None:
        """Wait until all calls are over."""
        with self._changed:
            self._changed.wait_for(lambda: not self._unfinished)
            self._raise_error()

    def close(self) -> None:
        """Drain, and end the thread."""
        try:
            self.drain()
        finally:
            with self._changed:
                self._is_closed = True
                self._changed.notify_all()

            if self._thread is not None:
                self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._unfinished or self._is_closed)
                if not self._unfinished:
                    return

                call = self._unfinished[0]

            error = _error_of(call)
            with self._changed:
                self._unfinished.popleft()
                if self._error is None:
                    self._error = error
                elif error is not None:
                    logger.error("another call in the background failed: %s", error)

                self._changed.notify_all()

    def _raise_error(self) -> None:
        error = self._error
        self._error = None
        if error is not None:
            raise error


def _error_of(call: Callable[[], object]) -> Exception | None:
    try:
        call()
    except Exception as error:
        return error

    return None
