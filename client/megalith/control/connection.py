"""One channel to a controller or an AppMaster, which is looked for again when it has moved."""

from __future__ import annotations  # grpc's generic types are generic for type checkers only

import threading
from collections.abc import Callable
from typing import TypeVar

import grpc

from megalith.control.address_file import AddressFile
from megalith.errors import InvalidRequest, MegalithError, PeerUnreachable
from megalith.wire import channel, forking
from megalith.wire.status import translated

RequestMessage = TypeVar("RequestMessage")
Answer = TypeVar("Answer")
FindAddress = Callable[[], str]  # host:port now; PeerUnreachable while nobody knows it
Method = Callable[[grpc.Channel], "grpc.UnaryUnaryMultiCallable[RequestMessage, Answer]"]


class Connection:
    """A channel that is opened at the first call. Thread-safe: `_lock` guards the channel.

    The server is found by an address, by a function that says where it is now, or by the file that
    it writes into its model directory. By the last two it may come back at another address.
    """

    def __init__(
        self, file: AddressFile, address: str | FindAddress | None, model_dir: str | None
    ) -> None:
        self._file = file
        self._given_address = address
        self._model_dir = model_dir
        self._lock = threading.Lock()
        self._channel: grpc.Channel | None = None
        self._address = ""
        self._is_closed = False
        forking.renew_in_child(self)

    def renew_after_fork(self) -> None:
        """A forked child opens a channel of its own."""
        self._lock = threading.Lock()
        self._channel = None

    @property
    def address(self) -> str:
        """host:port of the server now."""
        return self._open()[1]

    @property
    def name(self) -> str:
        """Where the server is looked for, for messages."""
        if self._model_dir is not None:
            return f"model directory {self._model_dir}"
        if isinstance(self._given_address, str):
            return self._given_address

        return "its discovery"

    def call(
        self, method: Method[RequestMessage, Answer], request: RequestMessage, timeout_s: float
    ) -> Answer:
        """One try of a call; its errors are MegalithErrors that name the server."""
        opened, address = self._open()
        try:
            with forking.calls, translated(f"{self._file.server.lower()} {address}"):
                return method(opened)(request, timeout=timeout_s)
        except PeerUnreachable:
            self._forget(opened, address)
            raise

    def close(self) -> None:
        """Disconnect. A call that is being repeated on another thread ends at its next try."""
        with self._lock:
            self._is_closed = True
            if self._channel is not None:
                self._channel.close()
                self._channel = None

    def _open(self) -> tuple[grpc.Channel, str]:
        with self._lock:
            if self._is_closed:
                raise InvalidRequest(f"the connection to the {self._file.server} is closed")

            if self._channel is None:
                self._address = self._find()
                self._channel = channel.open_channel(self._address)

            return self._channel, self._address

    def _forget(self, failed: grpc.Channel, address: str) -> None:
        """Close the channel to a server that has moved.

        A channel to the same address stays: it reconnects by itself.
        """
        if isinstance(self._given_address, str):
            return

        try:
            if self._find() == address:
                return
        except MegalithError:
            return  # nobody knows it now; the old address is as good as any

        with self._lock:
            if self._channel is failed:
                failed.close()
                self._channel = None

    def _find(self) -> str:
        if callable(self._given_address):
            return self._given_address()
        if self._given_address is not None:
            return self._given_address

        address = self._file.read(str(self._model_dir))
        if address is None:
            server = self._file.server
            raise PeerUnreachable(
                f"no {self._file.name} in {self._model_dir}: "
                f"no {server} serves this model directory; "
                f"start the job, or name its model directory or its {server}'s address"
            )

        return address
