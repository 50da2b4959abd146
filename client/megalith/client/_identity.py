"""Who a client is to the servers, and the numbers of its writes, by which they tell a repeated one from a new one."""

import secrets
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from megalith.protos import parameter_server_pb2 as pb

Write = pb.PushRequest | pb.AssignRowsRequest | pb.ReinitializeRowsRequest


class Identity:
    """Stamps writes. `_lock` guards the sequence numbers and is held while a write is on its way: one at a time."""

    def __init__(self) -> None:
        self._client_id, self._incarnation = secrets.token_hex(8), secrets.randbits(64)
        self._lock = threading.Lock()
        self._sequences: dict[int, int] = {}

    @contextmanager
    def stamped(self, messages: Mapping[int, Write]) -> Iterator[None]:
        """Inside, each message is the next write to its ps index, and no other write of this client is sent."""
        with self._lock:
            for index, message in messages.items():
                self._sequences[index] = self._sequences.get(index, 0) + 1
                message.client_id, message.incarnation = self._client_id, self._incarnation
                message.sequence = self._sequences[index]
            yield
