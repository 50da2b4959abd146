"""How a training program gets its Cluster."""

from typing import Any

import numpy as np

from megalith.client import _arguments
from megalith.client._cluster import Cluster
from megalith.client._transport.servers import Servers
from megalith.control.connection import FindAddress
from megalith.control.controller import Controller
from megalith.errors import InvalidRequest
from megalith.wire import arrays, channel


def connect(
    address: str | FindAddress | None = None,
    *,
    model_dir: str | None = None,
    timeout_s: float = 60.0,
    connect_timeout_s: float = 20.0,
    max_message_bytes: int = channel.DEFAULT_MAX_MESSAGE_BYTES,
    max_inflight: int = 8,
    max_inflight_bytes: int = 1 << 30,
    row_dtype: str = "float32",
    gradient_dtype: str = "float32",
    bulk_lane: bool = True,
) -> Cluster:
    """Connect to a cluster.

    It is found by its controller's host:port, by a function that returns that, or by its model
    directory.

    Parameters
    ----------
    address, model_dir
        Exactly one of them.
    timeout_s
        How long a call may wait for servers that start, move or come back, in all.
    connect_timeout_s
        How long to wait here for a controller that answers. If none does, this raises
        PeerUnreachable; a controller whose cluster is still forming has answered. 0 asks nobody: a
        wrong address is then found by the first call.
    max_message_bytes
        Largest request or reply; not above the servers' --max-message-bytes.
    max_inflight
        Calls of begin_pull and begin_push that may be on their way; the next one waits for the
        oldest.
    max_inflight_bytes
        Bytes of pulls and pushes that may be on their way at once; the next call waits.
    row_dtype, gradient_dtype
        float32, or float16 for half the bytes: what travels in a pull and in a push. Servers
        compute in float32.
    bulk_lane
        False sends pulls and pushes as unary gRPC calls, also where servers offer the faster lane.
    """
    max_inflight = _arguments.integer(max_inflight, "max_inflight")
    max_inflight_bytes = _arguments.integer(max_inflight_bytes, "max_inflight_bytes")
    for setting, value in (("timeout_s", timeout_s), ("connect_timeout_s", connect_timeout_s)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
            raise InvalidRequest(f"{setting}={value!r} is not a number of seconds")

    if max_inflight < 1 or max_inflight_bytes < 1:
        raise InvalidRequest(
            f"max_inflight={max_inflight}, max_inflight_bytes={max_inflight_bytes}: below 1"
        )

    row = _wire_dtype("row", row_dtype)
    gradient = _wire_dtype("gradient", gradient_dtype)
    controller = Controller(address, model_dir, timeout_s)

    if connect_timeout_s:
        try:
            controller.reach(min(connect_timeout_s, timeout_s))
        except BaseException:
            controller.close()
            raise

    servers = Servers(
        controller, max_message_bytes, max_inflight_bytes, max_inflight, use_lane=bulk_lane
    )
    return Cluster(controller, servers, timeout_s, row, gradient)


def _wire_dtype(name: str, value: str) -> np.dtype[Any]:
    dtypes: dict[str, np.dtype[Any]] = {"float32": arrays.VALUE, "float16": arrays.HALF}
    if value not in dtypes:
        raise InvalidRequest(f"{name}_dtype={value!r}: expected float32 or float16")

    return dtypes[value]
