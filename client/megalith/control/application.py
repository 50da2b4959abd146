"""What a job says to the resource manager that runs it, by primus.AppMasterService.

`PRIMUS_AM_RPC_HOST` and `PRIMUS_AM_RPC_PORT` name the AppMaster; without both there is none and
nothing is said. With the host `unix` the port is the path of a socket. No call here raises when the
AppMaster is away or refuses: it is logged, and training goes on.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping

import grpc
from google.protobuf.wrappers_pb2 import Int64Value

from megalith.protos import appmaster_pb2 as pb
from megalith.protos import appmaster_pb2_grpc
from megalith.wire.addresses import local_host
from megalith.wire.channel import open_channel
from megalith.wire.status import error_from_rpc

__all__ = [
    "create_primus_save_point",
    "get_local_host",
    "has_appmaster",
    "maybe_finish_application",
    "maybe_kill_application",
    "report_outcome",
]

logger = logging.getLogger(__name__)

_CALL_S = 10.0
_GRACE_MS = 20_000
_POLL_S = 5.0
_STATES = pb.CreateSavepointStatusResponse

_channels: dict[str, grpc.Channel] = {}
_channels_lock = threading.Lock()  # guards the cache: one channel per address and process

get_local_host = local_host


def maybe_kill_application(reason: str, environ: Mapping[str, str] = os.environ) -> bool:
    """End the whole job as a failure. True once the AppMaster has taken it.

    False if there is none or it did not.
    """
    address = _appmaster_address(environ)
    if not address:
        logger.info("Current framework doesn't support kill. Ignore killing...")
        return False

    request = pb.KillRequest(
        exit_code=1, diagnose=reason, graceful_shutdown_timeout_ms=Int64Value(value=_GRACE_MS)
    )
    return _say(address, "kill", lambda stub: stub.kill(request, timeout=_CALL_S))


def maybe_finish_application(environ: Mapping[str, str] = os.environ) -> bool | None:
    """End the whole job as a success. True once the AppMaster has taken it, None without one.

    False if it did not take it. Monolith returns None there too, so that its callers cannot tell
    the two cases apart.
    """
    address = _appmaster_address(environ)
    if not address:
        return None

    request = pb.SucceedRequest(graceful_shutdown_timeout_ms=Int64Value(value=_GRACE_MS))
    return _say(address, "succeed", lambda stub: stub.succeed(request, timeout=_CALL_S))


def has_appmaster(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the environment names one."""
    return bool(_appmaster_address(environ))


def report_outcome(succeeded: bool, reason: str) -> None:
    """Tell the AppMaster, if there is one, how the job ended."""
    if succeeded:
        maybe_finish_application()
    elif has_appmaster():
        maybe_kill_application(reason)


def create_primus_save_point(
    dst: str,
    *,
    timeout_s: float | None = None,
    environ: Mapping[str, str] = os.environ,
    sleep: Callable[[float], None] = time.sleep,
) -> bool | None:
    """Have the AppMaster save the job to `dst` and wait for it.

    It waits for at most `timeout_s`; None = as long as it takes. True when the savepoint is
    complete, False when it was refused, failed, timed out or the AppMaster did not answer, None
    without an AppMaster.
    """
    address = _appmaster_address(environ)
    if not address:
        return None

    stub = _stub(address)
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    try:
        created = stub.createSavepoint(
            pb.CreateSavepointRequest(savepoint_dir=dst), timeout=_CALL_S
        )
        if created.code != 0:
            logger.error(
                "the AppMaster refused a savepoint code=%d message=%s",
                created.code,
                created.message,
            )
            return False

        ask = pb.CreateSavepointStatusRequest(savepoint_restore_id=created.savepoint_id)

        while True:
            answer = stub.createSavepointStatus(ask, timeout=_CALL_S)
            if answer.create_savepoint_state not in (_STATES.PENDING, _STATES.RUNNING):
                break

            if deadline is not None and time.monotonic() > deadline:
                logger.error(
                    "savepoint %s is not complete after %s s", created.savepoint_id, timeout_s
                )
                return False

            sleep(_POLL_S)
    except grpc.RpcError as error:
        logger.error("savepoint: %s", error_from_rpc(error, f"appmaster {address}"))
        return False

    if answer.create_savepoint_state == _STATES.SUCCEEDED:
        logger.info("savepoint %s complete dir=%s", created.savepoint_id, dst)
        return True

    logger.error("savepoint %s failed message=%s", created.savepoint_id, answer.message)
    return False


def _appmaster_address(environ: Mapping[str, str]) -> str:
    """What the environment says; empty without an AppMaster."""
    host = environ.get("PRIMUS_AM_RPC_HOST", "")
    port = environ.get("PRIMUS_AM_RPC_PORT", "")
    return f"{host}:{port}" if host and port else ""


def _stub(address: str) -> appmaster_pb2_grpc.AppMasterServiceStub:
    with _channels_lock:
        if address not in _channels:
            _channels[address] = open_channel(address)

        return appmaster_pb2_grpc.AppMasterServiceStub(_channels[address])


def _say(
    address: str, what: str, call: Callable[[appmaster_pb2_grpc.AppMasterServiceStub], object]
) -> bool:
    try:
        call(_stub(address))
    except grpc.RpcError as error:
        logger.error("%s: %s", what, error_from_rpc(error, f"appmaster {address}"))
        return False

    logger.info("told the AppMaster call=%s address=%s", what, address)
    return True
