"""Every call passes here: errors become statuses, outcomes and times become metrics."""

from __future__ import annotations  # grpc's generic types are generic for type checkers only

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import grpc
from google.protobuf.message import DecodeError

from megalith.errors import InternalError, InvalidRequest, MegalithError
from megalith.runtime.monitoring.metrics import Metrics
from megalith.runtime.rpc.silent_calls import SilentCalls
from megalith.wire.status import metadata_of, status_of

logger = logging.getLogger(__name__)

_MAX_MESSAGE_BYTES = 2000


class ErrorInterceptor(grpc.ServerInterceptor):
    """Turns raised MegalithErrors into their status and `code`.

    Anything else that is raised becomes INTERNAL, with a traceback in the log. Every method is
    answered as one whose requests are a stream, which on the wire is the same: only so is the
    thread ours while it waits for the message, and the call one that `silent` can give up.
    """

    def __init__(
        self,
        metrics: Metrics,
        silent: SilentCalls,
        request_timeout_s: float,
        first_message_s: float,
    ) -> None:
        """How long a peer may take to send its message.

        `request_timeout_s` is for that of a unary call, `first_message_s` for the first of a
        stream.
        """
        self._metrics = metrics
        self._silent = silent
        self._request_timeout_s = request_timeout_s
        self._first_message_s = first_message_s

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler[Any, Any] | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        handler = continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None:  # unknown method
            return None
        if method.startswith("/grpc."):  # health and reflection speak for themselves
            return self._foreign(handler)

        parse = handler.request_deserializer
        write = handler.response_serializer
        if handler.response_streaming:
            stream = self._stream(method, handler.stream_stream)
            return grpc.stream_stream_rpc_method_handler(stream, parse, write)

        # Parsed in `_unary`: grpc (1.85) answers bytes that are no message with INTERNAL and logs a
        # traceback for each, and the server grew by 40 MB with 4,000 of them.
        unary = self._unary(method, handler.unary_unary, parse)
        return grpc.stream_unary_rpc_method_handler(unary, None, write)

    def _unary(
        self, method: str, behavior: Any, parse: Any
    ) -> Callable[[Any, grpc.ServicerContext], Any]:
        seconds = self._metrics.rpc_seconds.labels(method)
        total = self._metrics.rpc_total

        def answer(requests: Iterator[bytes], context: grpc.ServicerContext) -> Any:
            start = time.perf_counter()
            try:
                data = self._silent.only_message(requests, context, self._request_timeout_s)
                start = time.perf_counter()
                request = _parsed(method, parse, data)
                response = behavior(request, context)
            except grpc.RpcError:
                total.labels(method, "cancelled").inc()
                raise  # gRPC knows its own
            except Exception as error:
                self._abort(method, error, context)
            finally:
                seconds.observe(time.perf_counter() - start)

            total.labels(method, "ok").inc()
            return response

        return answer

    def _stream(
        self, method: str, behavior: Any
    ) -> Callable[[Any, grpc.ServicerContext], Iterator[Any]]:
        def answer(requests: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            timely = self._with_timely_first(requests, context)
            try:
                yield from behavior(timely, context)
            except (grpc.RpcError, GeneratorExit):
                # GeneratorExit: the caller has gone between two answers, and gRPC asks for no more
                self._metrics.rpc_total.labels(method, "cancelled").inc()
                raise
            except Exception as error:
                self._abort(method, error, context)

            self._metrics.rpc_total.labels(method, "ok").inc()

        return answer

    def _with_timely_first(
        self, requests: Iterator[Any], context: grpc.ServicerContext
    ) -> Iterator[Any]:
        """The messages of a stream, of which the first must come in time."""
        try:
            yield self._silent.next_message(requests, context, self._first_message_s)
        except StopIteration:
            return

        yield from requests

    def _foreign(self, handler: grpc.RpcMethodHandler[Any, Any]) -> grpc.RpcMethodHandler[Any, Any]:
        """A method of gRPC's own services that takes one message.

        What takes a stream stays as it is.
        """
        parse: Any = handler.request_deserializer
        write = handler.response_serializer
        if handler.request_streaming:
            return handler

        def message(requests: Iterator[bytes], context: grpc.ServicerContext) -> Any:
            data = self._silent.only_message(requests, context, self._first_message_s)
            return parse(data)

        if handler.response_streaming:
            behavior: Any = handler.unary_stream

            def stream(requests: Iterator[bytes], context: grpc.ServicerContext, *more: Any) -> Any:
                return behavior(message(requests, context), context, *more)

            vars(stream).update(vars(behavior))  # in which pool it runs, and whether it blocks
            return grpc.stream_stream_rpc_method_handler(stream, None, write)

        single: Any = handler.unary_unary

        def unary(requests: Iterator[bytes], context: grpc.ServicerContext) -> Any:
            return single(message(requests, context), context)

        return grpc.stream_unary_rpc_method_handler(unary, None, write)

    def _abort(self, method: str, error: Exception, context: grpc.ServicerContext) -> NoReturn:
        known = as_megalith_error(method, error)
        self._metrics.rpc_total.labels(method, known.code).inc()

        context.set_trailing_metadata(metadata_of(known))
        status = status_of(type(known))
        text = bounded_text(str(known))
        context.abort(status, text)


def bounded_text(message: str) -> str:
    """The message, cut to what fits where errors travel.

    gRPC takes 8 KB of metadata, and writes some bytes as three.
    """
    data = message.encode(errors="replace")
    excess = len(data) - _MAX_MESSAGE_BYTES
    if excess <= 0:
        return message

    kept = data[:_MAX_MESSAGE_BYTES].decode(errors="ignore")
    return f"{kept}... ({excess} bytes more)"


def _parsed(method: str, parse: Any, data: bytes) -> Any:
    if parse is None:
        return data

    try:
        return parse(data)
    except DecodeError as error:
        raise InvalidRequest(f"{len(data)} bytes are not a request of {method}") from error


def as_megalith_error(method: str, error: Exception) -> MegalithError:
    """What a caller is told: the error itself, or plain words for an unforeseen one.

    The traceback of an unforeseen one is logged here.
    """
    if isinstance(error, MegalithError):
        return error

    logger.error("unforeseen error method=%s", method, exc_info=error)
    return InternalError(f"{method} failed unexpectedly; the server's log has the traceback")
