"""How fast parameter servers push and pull for this worker.

Found out before any of them holds the model, so that the controller can choose among them.
"""

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

    One that does not answer gets 0. The first call to each is not counted: it opens the connection,
    makes the table and compiles kernels. All begin to count together.
    """
    if not addresses:
        return {}

    together = threading.Barrier(len(addresses))

    def measured(address: str) -> float:
        return _rows_per_s(address, seconds, together, is_stopping)

    with ThreadPoolExecutor(len(addresses), thread_name_prefix="measure") as pool:
        rates = pool.map(measured, addresses)
        return dict(zip(addresses, rates, strict=True))


def _rows_per_s(
    address: str, seconds: float, together: threading.Barrier, is_stopping: Callable[[], bool]
) -> float:
    rng = np.random.default_rng(1)
    ids = rng.choice(_ID_SPACE, ROWS, replace=False)
    gradients = np.ones((ROWS, DIM), arrays.VALUE)
    request = benchmark_pb2.ExchangeRequest(
        ids=arrays.encode(ids.astype(arrays.ID)), gradients=arrays.encode(gradients)
    )
    with channel.open_channel(address) as server:
        exchange = benchmark_pb2_grpc.BenchmarkStub(server).Exchange
        try:
            exchange(request, timeout=_CALL_S)
        except grpc.RpcError as error:
            why = error_from_rpc(error, address)
            logger.warning("cannot measure ps at %s: %s", address, why)
            together.wait(2 * _CALL_S)
            return 0.0

        together.wait(2 * _CALL_S)
        calls = 0
        started = time.monotonic()
        try:
            while time.monotonic() - started < seconds and not is_stopping():
                exchange(request, timeout=_CALL_S)
                calls += 1
        except grpc.RpcError as error:
            why = error_from_rpc(error, address)
            logger.warning("ps at %s was not measured to the end: %s", address, why)
            return 0.0

        elapsed_s = time.monotonic() - started
        return calls * ROWS / elapsed_s
