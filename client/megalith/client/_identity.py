"""Who a client is to the servers, and the numbers of its writes, by which they tell a repeated one from a new one."""

import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from megalith.client._begun import Begun
from megalith.protos import parameter_server_pb2 as pb
from megalith.wire import forking

R = TypeVar("R")
Write = pb.PushRequest | pb.AssignRowsRequest | pb.ReinitializeRowsRequest


class Identity:
    """Stamps writes, of which one at a time is on its way: the next one settles one that was begun.

    `_lock` guards the sequence numbers and the write begun last, and is held while a write is sent and, unless it is
    begun only, until it is answered.

    A forked child is another client: it numbers its own writes, and none of them is taken for one of its parent's.
    """

    def __init__(self) -> None:
        self._start_over()
        forking.renew_in_child(self)

    def renew_after_fork(self) -> None:
        self._start_over()

    def _start_over(self) -> None:
        self._client_id = secrets.token_hex(8)
        self._incarnation = secrets.randbits(64)
        self._lock = threading.Lock()
        self._sequences: dict[int, int] = {}
        self._begun: Begun[Any] | None = None

    @contextmanager
    def stamped(self, messages: Mapping[int, Write]) -> Iterator[None]:
        """Inside, each message is the next write to its ps index, and no other write of this client is sent."""
        with self._lock:
            self._settle_begun()
            for index, message in messages.items():
                self._sequences[index] = self._sequences.get(index, 0) + 1
                message.client_id, message.incarnation = self._client_id, self._incarnation
                message.sequence = self._sequences[index]
            yield

    def begin(self, messages: Mapping[int, Write], send: Callable[[], Begun[R]]) -> Begun[R]:
        """What `send` has begun: the messages as the next writes. It is on its way until it is settled."""
        with self.stamped(messages):
            self._begun = begun = send()
        return begun

    def settle(self) -> None:
        """Wait for the outcome of the write that was begun last."""
        with self._lock:
            self._settle_begun()

    def _settle_begun(self) -> None:
        if self._begun is not None:
            self._begun.settle()
            self._begun = None
