"""Every call passes here: errors become statuses, outcomes and times become metrics."""

from __future__ import annotations  # grpc's generic types are generic for type checkers only

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import grpc
from google.protobuf.message import DecodeError

from megalith.runtime.metrics import Metrics
from megalith.wire.errors import InternalError, InvalidRequest, MegalithError
from megalith.wire.status import CODE_KEY, status_of

logger = logging.getLogger(__name__)

_MAX_MESSAGE_BYTES = 2000


class ErrorInterceptor(grpc.ServerInterceptor):
    """Turns raised MegalithErrors into their status and `code`; anything else into INTERNAL with a logged traceback."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler[Any, Any] | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        handler = continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or method.startswith("/grpc."):  # unknown method; health and reflection speak for themselves
            return handler
        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(
                self._stream(method, handler.stream_stream),
                handler.request_deserializer,
                handler.response_serializer,
            )
        # Parsed in `_unary`: grpc (1.85) answers bytes that are no message with INTERNAL and logs a traceback for each,
        # and the server grew by 40 MB with 4,000 of them.
        return grpc.unary_unary_rpc_method_handler(
            self._unary(method, handler.unary_unary, handler.request_deserializer), None, handler.response_serializer
        )

    def _unary(self, method: str, behavior: Any, parse: Any) -> Callable[[Any, grpc.ServicerContext], Any]:
        seconds, total = self._metrics.rpc_seconds.labels(method), self._metrics.rpc_total

        def answer(data: bytes, context: grpc.ServicerContext) -> Any:
            start = time.perf_counter()
            try:
                response = behavior(_parsed(method, parse, data), context)
            except Exception as error:
                self._abort(method, error, context)
            finally:
                seconds.observe(time.perf_counter() - start)
            total.labels(method, "ok").inc()
            return response

        return answer

    def _stream(self, method: str, behavior: Any) -> Callable[[Any, grpc.ServicerContext], Iterator[Any]]:
        def answer(requests: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            try:
                yield from behavior(requests, context)
            except Exception as error:
                self._abort(method, error, context)
            self._metrics.rpc_total.labels(method, "ok").inc()

        return answer

    def _abort(self, method: str, error: Exception, context: grpc.ServicerContext) -> NoReturn:
        known = as_megalith_error(method, error)
        self._metrics.rpc_total.labels(method, known.code).inc()
        context.set_trailing_metadata(((CODE_KEY, known.code),))
        context.abort(status_of(type(known)), bounded_text(str(known)))


def bounded_text(message: str) -> str:
    """A message that fits where errors travel: gRPC takes 8 KB of metadata, and writes some bytes as three."""
    data = message.encode(errors="replace")
    if len(data) <= _MAX_MESSAGE_BYTES:
        return message
    kept = data[:_MAX_MESSAGE_BYTES].decode(errors="ignore")
    return f"{kept}... ({len(data) - _MAX_MESSAGE_BYTES} bytes more)"


def _parsed(method: str, parse: Any, data: bytes) -> Any:
    if parse is None:
        return data
    try:
        return parse(data)
    except DecodeError as error:
        raise InvalidRequest(f"{len(data)} bytes are not a request of {method}") from error


def as_megalith_error(method: str, error: Exception) -> MegalithError:
    """What a caller is told: the error itself, or plain words for an unforeseen one whose traceback is logged here."""
    if isinstance(error, MegalithError):
        return error
    logger.error("unforeseen error method=%s", method, exc_info=error)
    return InternalError(f"{method} failed unexpectedly; the server's log has the traceback")
