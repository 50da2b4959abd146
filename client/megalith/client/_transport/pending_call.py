"""Calls that were sent and are answered when asked: work beside them costs no thread."""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Generic, TypeVar

from megalith.client._transport.exchange import Exchange
from megalith.errors import OutcomeUnknown
from megalith.wire import forking

Result = TypeVar("Result")


class PendingCall(Generic[Result]):
    """A pull or push whose requests are on their way.

    Any thread may ask for its result, any number of times. Nothing happens here between
    `begin_pull` or `begin_push` and the question: the servers work meanwhile, and their replies
    wait in the connections. `_lock` guards the outcome, and is held while somebody waits for it.

    A write whose outcome is not known in time is not done: each later question asks the servers
    again.
    """

    def __init__(
        self,
        exchange: Exchange,
        read: Callable[[dict[int, Any]], Result],
        when_waited: Callable[["PendingCall[Any]"], None],
    ) -> None:
        """`read` makes the result of the replies.

        `when_waited` is called once, when the first wait for them is over.
        """
        self._exchange: Exchange | None = exchange  # None: the call is done
        self._read = read
        self._when_waited: Callable[[PendingCall[Any]], None] | None = when_waited

        self._lock = threading.Lock()
        self._value: Result | None = None
        self._error: BaseException | None = None
        self._is_unattended = False

    @property
    def is_done(self) -> bool:
        """Whether the outcome is known here: `result` asks no server for it."""
        return self._exchange is None

    @property
    def is_answered(self) -> bool:
        """Whether `result` would hardly wait: every server has begun to answer."""
        if not self._lock.acquire(blocking=False):
            return False  # somebody waits for it

        try:
            return self._exchange is None or self._exchange.has_replies()
        finally:
            self._lock.release()

    def result(self) -> Result:
        """Wait for the servers' answers, as long as the ordinary call would.

        Raises what that would. After OutcomeUnknown it may be asked again: the same write is
        repeated, under the same number.
        """
        self._is_unattended = False
        try:
            self.wait()
        except BaseException:
            # Who was told that it is unknown, or was interrupted, may never ask again.
            self._is_unattended = self._exchange is not None
            raise

        if self._error is not None:
            raise self._error

        return self._value  # type: ignore[return-value]  # set, unless there is an error

    def abandon(self, reason: Exception) -> list[int]:
        """Give the call up, unless it is done or somebody waits for it.

        `result` then raises `reason`. Returns the servers whose answers are given up. Each of them
        may have applied its part of a push, or not.
        """
        if not self._lock.acquire(blocking=False):
            return []

        try:
            if self._exchange is None:
                return []

            given_up = self._exchange.open_parts
            self._exchange.abandon()
            self._error = reason
            self._is_unattended = False  # who gives it up says so
            self._end()
            return given_up
        finally:
            self._lock.release()

    # --- for the rest of the SDK ---

    def send(self) -> None:
        """Send the requests, once.

        Nothing is sent if somebody who needed room has sent and finished them, or if `close` gave
        them up.
        """
        with self._lock:
            if self._exchange is None:
                return

            with self._kept_while_open() as exchange:
                try:
                    exchange.send()
                except BaseException:
                    # The caller is told; what becomes of an open write it may never ask.
                    self._is_unattended = exchange.is_open
                    raise

    def wait(self) -> None:
        """Wait for the outcome and keep it, an error too, for `result`.

        OutcomeUnknown if it is not known in time.
        """
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

    def leave_unattended(self) -> None:
        """The caller goes on and may never ask for the result.

        Until it asks, whoever waits for the outcome instead says what went wrong.
        """
        self._is_unattended = True

    @property
    def is_unattended(self) -> bool:
        """Whether nobody waits for the outcome, or was told it."""
        return self._is_unattended

    def take_untold_error(self) -> BaseException | None:
        """What a call that is done, and that nobody has asked about, failed with; once."""
        if not self._is_unattended or self._error is None:
            return None

        self._is_unattended = False
        return self._error

    def disown(self) -> None:
        """In a forked child: the call and its answer are the parent's, and stay untouched here."""
        self._lock = threading.Lock()
        forking.never_end(self._exchange)
        self._exchange = None
        self._error = forking.of_the_parent("this call")

    @contextmanager
    def _kept_while_open(self) -> Iterator[Exchange]:
        """Inside, what is raised ends the call, unless it is a write that is open.

        That one is to be asked about again.
        """
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

    def _end(self) -> None:
        """Drop connections and arrays too."""
        self._exchange = None
        del self._read
        self._make_room()

    def _make_room(self) -> None:
        """For other calls: this one no longer counts among those begun, nor its bytes."""
        if self._when_waited is not None:
            when_waited = self._when_waited
            self._when_waited = None
            when_waited(self)


class PendingCalls:
    """Calls begun and not done, oldest first; `_lock` guards them.

    Whoever needs room waits for the oldest, so that calls that nobody asks about cannot fill it for
    ever.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: deque[PendingCall[Any]] = deque()
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

    def add(self, call: PendingCall[Any]) -> None:
        with self._lock:
            self._calls.append(call)

    def remove(self, call: PendingCall[Any]) -> None:
        with self._lock:
            if call in self._calls:
                self._calls.remove(call)

    def wait_for_oldest(self) -> bool:
        """Wait for the outcome of the oldest call; False if there is none."""
        with self._lock:
            if not self._calls:
                return False
            oldest = self._calls[0]

        with suppress(OutcomeUnknown):  # told to who asks for it; it is not in the way any more
            oldest.wait()

        return True

    def abandon_all(self, reason: Exception) -> None:
        with self._lock:
            calls = list(self._calls)

        for call in calls:
            call.abandon(reason)
