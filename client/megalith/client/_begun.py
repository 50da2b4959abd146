"""Calls that were sent and are answered when asked: work beside them costs no thread."""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Generic, TypeVar

from megalith.client._exchange import Exchange
from megalith.wire import forking
from megalith.wire.errors import OutcomeUnknown

R = TypeVar("R")


class Begun(Generic[R]):
    """A pull or push whose requests are on their way. Any thread may ask for its result, any number of times.

    Nothing happens here between `begin_pull` or `begin_push` and the question: the servers work meanwhile, and their
    replies wait in the connections. `_lock` guards the outcome, and is held while somebody waits for it.

    A write whose outcome is not known in time is not settled: each later question asks the servers again.
    """

    def __init__(
        self,
        exchange: Exchange[Any],
        read: Callable[[dict[int, Any]], R],
        let_go: Callable[["Begun[Any]"], None],
    ) -> None:
        """`read` makes the result of the replies; `let_go` is told when the first wait for them is over."""
        self._exchange: Exchange[Any] | None = exchange
        self._read = read
        self._let_go: Callable[[Begun[Any]], None] | None = let_go
        self._lock = threading.Lock()
        self._value: R | None = None
        self._error: BaseException | None = None
        self._is_unattended = False

    def leave_unattended(self) -> None:
        """The caller goes on and may never ask: until it does, who settles this says what went wrong."""
        self._is_unattended = True

    @property
    def is_unattended(self) -> bool:
        """Whether nobody waits for the outcome, or was told it."""
        return self._is_unattended

    def untold_error(self) -> BaseException | None:
        """What a settled call that nobody has asked about failed with; once."""
        if not self._is_unattended or self._error is None:
            return None
        self._is_unattended = False
        return self._error

    @property
    def is_settled(self) -> bool:
        """Whether `result` returns, or raises, without waiting for any server."""
        return self._exchange is None

    def send(self) -> None:
        """Send the requests, once; nothing if who needed room has sent and settled them, or `close` gave them up."""
        with self._lock:
            if self._exchange is None:
                return
            with self._kept_while_open() as exchange:
                try:
                    exchange.send()
                except (
                    BaseException
                ):  # the caller is told; what becomes of an open write it may never ask
                    self._is_unattended = exchange.is_open
                    raise

    def result(self) -> R:
        """Wait for the servers' answers, as long as the ordinary call would; raises what that would.

        After OutcomeUnknown it may be asked again: the same write is repeated, under the same number.
        """
        self._is_unattended = False
        try:
            self.settle()
        except (
            BaseException
        ):  # who was told that it is unknown, or was interrupted, may never ask again
            self._is_unattended = self._exchange is not None
            raise
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # set, unless there is an error

    def settle(self) -> None:
        """Wait for the outcome and keep it, an error too, for `result`. OutcomeUnknown if it is not known in time."""
        with self._lock:
            if self._exchange is None:
                return
            with self._kept_while_open() as exchange:
                try:
                    self._value = self._read(exchange.finish())
                except Exception as error:
                    if exchange.is_open:
                        raise
                    self._error = error
            self._end()

    @contextmanager
    def _kept_while_open(self) -> Iterator[Exchange[Any]]:
        """Inside, what is raised ends the call, unless it is a write that is open; that is to be asked about again."""
        exchange = self._exchange
        assert exchange is not None
        try:
            yield exchange
        except BaseException as error:
            if exchange.is_open:
                self._make_room()
            else:
                self._error = error
                self._end()
            raise

    def abandon(self, reason: Exception) -> None:
        """Give the call up, unless it is settled or somebody waits for it; `result` then raises `reason`.

        A push that is given up may have been applied, or not, by each server.
        """
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self._exchange is not None:
                self._exchange.abandon()
                self._error = reason
                self._is_unattended = False  # who gives it up says so
                self._end()
        finally:
            self._lock.release()

    def disown(self) -> None:
        """In a forked child: the parent has the call and its answer, and nothing here touches them."""
        self._lock = threading.Lock()
        forking.never_end(self._exchange)
        self._exchange = None
        self._error = forking.of_the_parent("this call")

    @property
    def open_parts(self) -> list[int]:
        """Servers whose answer to this write is missing."""
        exchange = self._exchange
        return [] if exchange is None else exchange.open_parts

    def _end(self) -> None:
        """Let go of connections and arrays too."""
        self._exchange = None
        del self._read
        self._make_room()

    def _make_room(self) -> None:
        """For other calls: this one no longer counts among those under way, nor its bytes."""
        if self._let_go is not None:
            let_go = self._let_go
            self._let_go = None
            let_go(self)


class UnderWay:
    """Begun calls that are not settled, oldest first; `_lock` guards them.

    Who needs room settles the oldest, so that calls that nobody asks about cannot fill it for ever.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: deque[Begun[Any]] = deque()
        forking.renew_in_child(self)

    def renew_after_fork(self) -> None:
        """The calls are the parent's."""
        self._lock = threading.Lock()
        for call in self._calls:
            call.disown()
        self._calls = deque()

    def __len__(self) -> int:
        with self._lock:
            return len(self._calls)

    def add(self, call: Begun[Any]) -> None:
        with self._lock:
            self._calls.append(call)

    def remove(self, call: Begun[Any]) -> None:
        with self._lock:
            if call in self._calls:
                self._calls.remove(call)

    def settle_oldest(self) -> bool:
        """Wait for the outcome of the oldest call; False if there is none."""
        with self._lock:
            if not self._calls:
                return False
            oldest = self._calls[0]
        with suppress(OutcomeUnknown):  # told to who asks for it; it is not in the way any more
            oldest.settle()
        return True

    def all(self) -> list[Begun[Any]]:
        with self._lock:
            return list(self._calls)
