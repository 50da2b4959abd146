"""Who a client is to the servers, and the numbers of its writes, by which they tell a repeated one from a new one."""

import logging
import secrets
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from megalith.client._begun import Begun
from megalith.protos import parameter_server_pb2 as pb
from megalith.wire import forking
from megalith.wire.errors import OutcomeUnknown

logger = logging.getLogger(__name__)

R = TypeVar("R")
Write = pb.PushRequest | pb.AssignRowsRequest | pb.ReinitializeRowsRequest


class Identity:
    """Stamps writes, of which one at a time is on its way: the next one settles the one before it.

    `_lock` guards the sequence numbers and the last write, and is held while a write is sent and while the one before
    it is settled.

    A forked child is another client: it numbers its own writes, and none of them is taken for one of its parent's.
    """

    def __init__(self) -> None:
        self._start_over()
        forking.renew_in_child(self)

    def renew_after_fork(self) -> None:
        if self._begun is not None:
            self._begun.disown()
        self._start_over()

    def _start_over(self) -> None:
        self._client_id = secrets.token_hex(8)
        self._incarnation = secrets.randbits(64)
        self._lock = threading.Lock()
        self._sequences: dict[int, int] = {}
        self._begun: Begun[Any] | None = None
        self._failed_unasked = 0

    def write(self, messages: Mapping[int, Write], prepare: Callable[[], Begun[R]]) -> Begun[R]:
        """Send the call that `prepare` makes of the messages, each of which is the next write to its ps index.

        It is on its way until it is settled, and it is the only one: the write before it is settled first. If that
        cannot be, nothing is sent (OutcomeUnknown).
        """
        with self._lock:
            self._settle_last()
            for index, message in messages.items():
                self._sequences[index] = self._sequences.get(index, 0) + 1
                message.client_id, message.incarnation = self._client_id, self._incarnation
                message.sequence = self._sequences[index]
            self._begun = begun = prepare()
            begun.send()
        return begun

    def last(self) -> Begun[Any] | None:
        """The write sent last, if nobody has settled it since."""
        with self._lock:
            return self._begun

    def last_at_once(self) -> Begun[Any] | None:
        """Like `last`, but None while a write is being sent: its caller hears what becomes of it."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            return self._begun
        finally:
            self._lock.release()

    def say_untold(self, call: Begun[Any]) -> None:
        """A write that failed is said though nobody asks for its result: what it would have trained is not trained."""
        error = call.untold_error()
        if error is None:
            return
        self._failed_unasked += 1
        logger.warning(
            "a write failed before anybody asked for its result: %s (such writes of this client so far: %d)",
            error,
            self._failed_unasked,
        )

    def _settle_last(self) -> None:
        if self._begun is None:
            return
        try:
            self._begun.settle()
        except OutcomeUnknown as error:
            raise OutcomeUnknown(
                f"nothing of this write was sent, because of the one before it: {error}"
            ) from error
        self.say_untold(self._begun)
        self._begun = None
