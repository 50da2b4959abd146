"""What becomes of connections, locks and threads in a forked child.

A child has copies of its parent's objects: locks that a thread held which the child does not have,
and sockets that are the parent's too. Whatever the child sends, or shuts down, on such a socket
reaches the parent's peer. So at each fork, before the child runs anything else,

    * every object that was given to `renew_in_child` starts over, with locks, threads and
      connections of its own;
    * every socket that was given to `close_in_child` is closed here, which the parent does not
      notice;
    * what was given to `keep_in_child` is never touched again: grpc would say goodbye on the
      parent's connection.

gRPC itself survives a fork only while no thread is inside a call. So a fork waits for the calls
that `calls` counts, and holds back new ones meanwhile. Bulk lanes are plain sockets and need no
such care.
"""

import ctypes
import logging
import os
import socket
import threading
from collections.abc import Callable
from typing import Any, Protocol, TypeVar
from weakref import WeakSet

from megalith.errors import InvalidRequest

logger = logging.getLogger(__name__)

_WAIT_S = 5.0  # longer than nearly every call; a save may take an hour, and no fork waits that long


F = TypeVar("F", bound=Any)  # a grpc future, which this module knows by its add_done_callback only


class ForkAware(Protocol):
    """Something that a forked child must not use as it was."""

    def renew_after_fork(self) -> None:
        """Start over in the child.

        No other thread runs yet, and any lock may be held by one that is gone.
        """


class Calls:
    """The gRPC calls under way; there should be none at a fork. `_changed` guards the counts.

    with calls:          # a call that is waited for
        stub.Method(request)
    calls.follow(future) # one that is under way until it is answered
    """

    def __init__(self) -> None:
        self._start_over()
        self._is_unusable = False

    def _start_over(self) -> None:
        self._changed = threading.Condition()
        self._count = 0
        self._is_forking = False

    def __enter__(self) -> None:
        if self._is_unusable:
            raise InvalidRequest(
                "this process was forked while a gRPC call of its parent took more than "
                f"{_WAIT_S:.0f} s, after which gRPC does not work here; "
                "fork while no long call is under way, or start processes by spawn"
            )

        with self._changed:
            while self._is_forking:
                self._changed.wait()
            self._count += 1

    def __exit__(self, *error: object) -> None:
        self._leave()

    def follow(self, begin: Callable[[], F]) -> F:
        """The future of the call that `begin` sends.

        The call is under way until the future is done.
        """
        self.__enter__()
        try:
            future = begin()
        except BaseException:
            self._leave()
            raise

        future.add_done_callback(lambda _: self._leave())
        return future

    def _leave(self) -> None:
        with self._changed:
            self._count -= 1
            self._changed.notify_all()

    def before_fork(self) -> None:
        """Wait until no call is under way; those that would begin wait until the fork is over."""
        with self._changed:
            self._is_forking = True
            if not self._changed.wait_for(lambda: self._count == 0, _WAIT_S):
                logger.warning(
                    "fork while %d gRPC calls are under way since %.0f s: "
                    "the child cannot make any",
                    self._count,
                    _WAIT_S,
                )

    def after_fork_in_parent(self) -> None:
        with self._changed:
            self._is_forking = False
            self._changed.notify_all()

    def after_fork_in_child(self) -> None:
        self._is_unusable = self._is_unusable or self._count > 0
        self._start_over()


calls = Calls()
_renewed: WeakSet[Any] = WeakSet()
_sockets: WeakSet[socket.socket] = WeakSet()
_kept: WeakSet[Any] = WeakSet()


def renew_in_child(owner: ForkAware) -> None:
    """In a forked child, `owner.renew_after_fork()` is called first."""
    _renewed.add(owner)


def close_in_child(sock: socket.socket) -> None:
    """In a forked child, close this socket, also when a thread of the parent was using it."""
    _sockets.add(sock)


def keep_in_child(owner: Any) -> None:
    """In a forked child, never end this object, not even when nothing refers to it."""
    _kept.add(owner)


def never_end(owner: Any) -> None:
    """Hold an object for the rest of the process: also at its exit nothing of it is taken down."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(owner))


def of_the_parent(what: str) -> InvalidRequest:
    """The error for who asks, in a forked child, for something that the parent has under way."""
    return InvalidRequest(
        f"{what} was begun by the process that this one was forked from, which has its outcome; "
        "begin it in this process"
    )


def _renew_all() -> None:
    calls.after_fork_in_child()
    for owner in list(_kept):
        never_end(owner)

    _kept.clear()
    for sock in list(_sockets):
        sock.close()

    _sockets.clear()
    for renewed in list(_renewed):
        renewed.renew_after_fork()

    if _renewed and os.environ.get("GRPC_ENABLE_FORK_SUPPORT", "1").lower() in ("0", "false", "no"):
        logger.warning(
            "GRPC_ENABLE_FORK_SUPPORT is off: "
            "gRPC calls of this forked process %d may hang; leave it unset",
            os.getpid(),
        )


os.register_at_fork(
    before=calls.before_fork, after_in_parent=calls.after_fork_in_parent, after_in_child=_renew_all
)
