"""gRPC reflection, on threads of its own.

A tool that stays connected takes no thread from the calls of a server.
"""

from collections.abc import Iterator
from typing import Any

import grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from megalith.runtime.rpc.silent_calls import CallPool, SilentCalls

_THREADS = 4  # streams at once; with more, those that ask nothing give way
_IDLE_S = 10.0  # between two questions of a stream


class Reflection(reflection.ReflectionServicer):  # type: ignore[misc]  # it has no types
    """Tells which services a server has, and what their messages are."""

    def __init__(self, services: list[str], idle_s: float = _IDLE_S) -> None:
        super().__init__([*services, reflection.SERVICE_NAME])
        self._idle_s = idle_s
        self._pool = CallPool(_THREADS, "reflection")
        self._silent = SilentCalls(self._pool, idle_s)

    def add_to(self, server: grpc.Server) -> None:
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(self, server)

    def start(self) -> None:
        self._silent.start()

    def stop(self) -> None:
        self._silent.stop()
        self._pool.shutdown(wait=False)

    @property
    def ServerReflectionInfo(self) -> Any:
        """How gRPC answers a stream; it looks for the pool at the function itself."""

        def answer(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
            yield from reflection.ReflectionServicer.ServerReflectionInfo(
                self, self._asked(requests, context), context
            )

        answer.experimental_thread_pool = self._pool  # type: ignore[attr-defined]
        return answer

    def _asked(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        while True:
            try:
                yield self._silent.next_message(requests, context, self._idle_s)
            except StopIteration:
                return
