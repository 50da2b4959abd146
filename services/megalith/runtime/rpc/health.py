"""The gRPC health protocol: whether a server serves, asked once or watched."""

import threading
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

_WATCHERS = 16  # at once, each with a thread of its own; more are refused
_SPARE_THREADS = 2  # for the refusals

_Status = health_pb2.HealthCheckResponse.ServingStatus


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # it has no types
    """The status of each service, the same for all of them.

    `_changed` guards the status. Nothing is sent while it is held: a watcher that does not read
    holds up its own thread, and neither the others nor whoever changes the status.
    """

    def __init__(self, services: list[str]) -> None:
        self._services = frozenset(services)
        self._changed = threading.Condition()
        self._status = _Status.NOT_SERVING
        self._is_over = False
        self._free_watchers = threading.BoundedSemaphore(_WATCHERS)
        self._pool = futures.ThreadPoolExecutor(
            _WATCHERS + _SPARE_THREADS, thread_name_prefix="health"
        )

    def add_to(self, server: grpc.Server) -> None:
        health_pb2_grpc.add_HealthServicer_to_server(self, server)

    def set_serving(self, is_serving: bool) -> None:
        """What is answered from now on; after `shut_down` nothing changes any more."""
        with self._changed:
            if not self._is_over:
                self._status = _Status.SERVING if is_serving else _Status.NOT_SERVING
                self._changed.notify_all()

    def shut_down(self) -> None:
        """Answer NOT_SERVING for good; watchers are told that, and their streams end."""
        with self._changed:
            self._status = _Status.NOT_SERVING
            self._is_over = True
            self._changed.notify_all()

    def close(self) -> None:
        """End the threads of watchers, once the server takes no call any more.

        Not before: gRPC's only thread that takes calls ends by the error of a pool that is shut
        down, and a server without it never says that it has stopped.
        """
        self._pool.shutdown(wait=False)

    def Check(
        self, request: health_pb2.HealthCheckRequest, context: grpc.ServicerContext
    ) -> health_pb2.HealthCheckResponse:
        if request.service not in self._services:
            context.set_code(grpc.StatusCode.NOT_FOUND)
            return health_pb2.HealthCheckResponse()

        with self._changed:
            return health_pb2.HealthCheckResponse(status=self._status)

    @property
    def Watch(self) -> Any:
        """How gRPC answers a watcher; it looks for the pool at the function itself."""

        def watch(
            request: health_pb2.HealthCheckRequest, context: grpc.ServicerContext
        ) -> Iterator[health_pb2.HealthCheckResponse]:
            if not self._free_watchers.acquire(blocking=False):
                context.set_code(grpc.StatusCode.RESOURCE_EXHAUSTED)
                context.set_details(f"{_WATCHERS} watch the health already; ask with Check instead")
                return

            try:
                for status in self._statuses(request.service, context):
                    yield health_pb2.HealthCheckResponse(status=status)
            finally:
                self._free_watchers.release()

        watch.experimental_thread_pool = self._pool  # type: ignore[attr-defined]
        return watch

    def _statuses(self, service: str, context: grpc.ServicerContext) -> Iterator[Any]:
        """The status now, and each other one, until the watcher or this server is gone."""
        is_left = threading.Event()

        def leave() -> None:
            is_left.set()
            with self._changed:
                self._changed.notify_all()

        if not context.add_callback(leave):
            return

        told = None
        while True:
            status = self._next(told, service, is_left)
            if status is None:
                return

            told = status
            yield status

    def _next(self, told: Any, service: str, is_left: threading.Event) -> Any:
        """Wait for a status other than `told`; None once the watcher or this server is gone."""
        is_known = service in self._services

        def status() -> Any:
            return self._status if is_known else _Status.SERVICE_UNKNOWN

        def is_over() -> bool:
            return is_left.is_set() or self._is_over

        with self._changed:
            self._changed.wait_for(lambda: status() != told or is_over())
            if status() == told or is_left.is_set():
                return None

            return status()
