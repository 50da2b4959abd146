"""The connection to one target, and what became of a call."""

import threading
from collections.abc import Callable

import grpc

from megalith.protos import parameter_sync_pb2, tensorflow_serving_pb2
from megalith.ps.syncing.predict import predict_request
from megalith.ps.syncing.request import SyncRequest
from megalith.wire import channel

_METHOD = "/tensorflow.serving.PredictionService/Predict"
_HEALTH = "/grpc.health.v1.Health/Check"
_MAX_MESSAGE_BYTES = 32 * 1024 * 1024
_MS = 1000.0
# A connection that nobody uses stays. Otherwise it would be closed after half an hour without a
# change, and the next one taken for another process, which gets all rows.
_NEVER_IDLE = ("grpc.client_idle_timeout_ms", 2**31 - 1)
# Status codes of a target that does not answer; others are answers.
AWAY = {
    grpc.StatusCode.UNAVAILABLE.value[0],
    grpc.StatusCode.DEADLINE_EXCEEDED.value[0],
}


class TargetClient:
    """Sends pushes to one address, plaintext. One thread uses it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._channel = channel.open_channel(address, _MAX_MESSAGE_BYTES, [_NEVER_IDLE])
        self.connections = 0  # that were made: another one may lead to another process
        self._connected = threading.Event()
        self._channel.subscribe(self._note)
        self._ask_health: Callable[..., bytes] = self._channel.unary_unary(_HEALTH)
        self._predict = self._channel.unary_unary(
            _METHOD,
            request_serializer=tensorflow_serving_pb2.PredictRequest.SerializeToString,
            response_deserializer=tensorflow_serving_pb2.PredictResponse.FromString,
        )

    def reach(self, timeout_s: float) -> str:
        """Connect, if there is no connection. Returns why it is not reached; empty = it is.

        Only a call connects: without this one, a target that was started again while nothing
        changes would not be noticed. What it answers does not matter.
        """
        if self._connected.is_set():
            return ""

        try:
            self._ask_health(b"", timeout=timeout_s)
        except grpc.RpcError as error:
            if error.code().value[0] in AWAY:
                return f"it is not reached: {error.details()}"

        self._connected.wait(timeout_s)  # the connection is counted on another thread
        return ""

    def push(self, part: SyncRequest) -> parameter_sync_pb2.PushResponse:
        """What became of one part. To send it again is harmless: rows are set, not added to."""
        try:
            self._predict(predict_request(part), timeout=part.timeout_ms / _MS)
        except grpc.RpcError as error:
            return parameter_sync_pb2.PushResponse(
                target=self.address,
                status_code=error.code().value[0],
                error_message=error.details() or error.code().name,
                update_num=0,
            )

        return parameter_sync_pb2.PushResponse(
            target=self.address, status_code=0, error_message="", update_num=part.rows
        )

    def _note(self, state: grpc.ChannelConnectivity) -> None:
        if state is grpc.ChannelConnectivity.READY:
            self.connections += 1
            self._connected.set()
        else:
            self._connected.clear()

    def close(self) -> None:
        self._channel.unsubscribe(self._note)
        self._channel.close()
