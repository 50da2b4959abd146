"""What a ps remembers of applied pushes, so that a repeated one is answered and not applied again."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from megalith.wire.errors import ClientIdTaken, SequenceExpired

R = TypeVar("R")

WINDOW = 64  # replies kept per client: more than a client has in flight
_MAX_CLIENTS = 4096  # the client that pushed longest ago is forgotten first


class AppliedPushes(Generic[R]):
    """Replies by (client id, sequence).

    `_lock` guards the map of clients. Each client's own lock is held while one of its pushes is applied: a retry that
    overtakes its original waits for it and gets its reply.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clients: OrderedDict[str, _Client[R]] = OrderedDict()

    def once(self, client_id: str, sequence: int, apply: Callable[[], R], incarnation: int = 0) -> R:
        """The reply of `apply`, called unless this push was applied before. If it raises, nothing is remembered.

        A client id belongs to the incarnation that used it first: another one would begin again at sequence 1, and its
        pushes would be answered as repeated ones.
        """
        client = self._client(client_id, incarnation)
        with client.lock:
            if client.incarnation != incarnation:
                raise ClientIdTaken(f"another client pushes as {client_id!r}; use a client id of your own")
            if sequence in client.replies:
                return client.replies[sequence]
            if sequence <= client.newest - WINDOW:
                raise SequenceExpired(
                    f"push {sequence} of client {client_id} is older than the last {WINDOW} up to {client.newest}; "
                    "whether it was applied is not known: use a new client id"
                )
            reply = apply()
            client.remember(sequence, reply)
            return reply

    def _client(self, client_id: str, incarnation: int) -> "_Client[R]":
        with self._lock:
            client = self._clients.setdefault(client_id, _Client(incarnation))
            self._clients.move_to_end(client_id)
            if len(self._clients) > _MAX_CLIENTS:
                self._clients.popitem(last=False)
            return client


class _Client(Generic[R]):
    def __init__(self, incarnation: int) -> None:
        self.incarnation = incarnation
        self.lock = threading.Lock()
        self.replies: OrderedDict[int, R] = OrderedDict()
        self.newest = 0

    def remember(self, sequence: int, reply: R) -> None:
        self.replies[sequence] = reply
        self.newest = max(self.newest, sequence)
        if len(self.replies) > WINDOW:
            del self.replies[min(self.replies)]
