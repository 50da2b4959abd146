"""How fast parameter servers push and pull for this worker, found out before any of them holds the model."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np

from megalith.protos import benchmark_pb2, benchmark_pb2_grpc
from megalith.wire import arrays, channel
from megalith.wire.status import error_from_rpc

logger = logging.getLogger(__name__)

ROWS = 4096  # per call: about what a step of 2048 examples asks one of a few servers for
DIM = 16
_ID_SPACE = 1 << 20
_CALL_S = 30.0  # a server compiles its kernels in the first call


def measure(
    addresses: Sequence[str], seconds: float, is_stopping: Callable[[], bool]
) -> dict[str, float]:
    """Rows per second pushed to and pulled from each server while all of them are asked at once.

    One that does not answer gets 0. The first call to each is not counted: it opens the connection, makes the table and
    compiles kernels. All begin to count together.
    """
    if not addresses:
        return {}
    together = threading.Barrier(len(addresses))
    with ThreadPoolExecutor(len(addresses), thread_name_prefix="measure") as pool:
        rates = pool.map(
            lambda address: _rows_per_s(address, seconds, together, is_stopping), addresses
        )
        return dict(zip(addresses, rates, strict=True))


def _rows_per_s(
    address: str, seconds: float, together: threading.Barrier, is_stopping: Callable[[], bool]
) -> float:
    keys = np.random.default_rng(1).choice(_ID_SPACE, ROWS, replace=False).astype(arrays.KEY)
    request = benchmark_pb2.ExchangeRequest(
        keys=arrays.encode(keys), gradients=arrays.encode(np.ones((ROWS, DIM), arrays.VALUE))
    )
    with channel.open_channel(address) as server:
        exchange = benchmark_pb2_grpc.BenchmarkStub(server).Exchange
        try:
            exchange(request, timeout=_CALL_S)
        except grpc.RpcError as error:
            logger.warning("cannot measure ps at %s: %s", address, error_from_rpc(error, address))
            together.wait(2 * _CALL_S)
            return 0.0
        together.wait(2 * _CALL_S)
        calls, started = 0, time.monotonic()
        try:
            while time.monotonic() - started < seconds and not is_stopping():
                exchange(request, timeout=_CALL_S)
                calls += 1
        except grpc.RpcError as error:
            logger.warning(
                "ps at %s was not measured to the end: %s", address, error_from_rpc(error, address)
            )
            return 0.0
        return calls * ROWS / (time.monotonic() - started)
