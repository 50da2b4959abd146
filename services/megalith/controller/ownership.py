"""One controller for a model directory: a second one is refused with the first one's address while that one lives."""

import fcntl
from pathlib import Path
from typing import IO

import grpc

from megalith.protos import coordination_pb2, coordination_pb2_grpc
from megalith.wire import channel, controller_address
from megalith.wire.errors import ModelDirInUse

_LOCK_FILE = "controller.lock"
_PROBE_S = 1.0  # for a controller on another machine to answer; a dead one refuses at once


class ModelDirOwnership:
    """Held from construction until `release`, or the death of the process: the kernel then drops the file lock.

    On a shared file system whose locks do not reach other machines, the controller at the written address is asked too.
    """

    def __init__(self, model_dir: Path, job: str) -> None:
        self._model_dir, self._job = model_dir, job
        self._lock: IO[str] = open(model_dir / _LOCK_FILE, "w")  # noqa: SIM115  # held open for as long as this serves
        try:
            self._take()
        except BaseException:
            self._lock.close()
            raise

    def release(self) -> None:
        self._lock.close()

    def _take(self) -> None:
        address = controller_address.read(self._model_dir)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise self._refusal(address or "an address not written yet") from None
        if address is not None and _job_at(address) == self._job:
            raise self._refusal(address)

    def _refusal(self, address: str) -> ModelDirInUse:
        return ModelDirInUse(
            f"--model-dir={self._model_dir}: a controller at {address} serves it; stop that one or choose another"
        )


def _job_at(address: str) -> str | None:
    """The job of the controller that answers there; None if none does."""
    with channel.open_channel(address) as probe:
        stub = coordination_pb2_grpc.CoordinationStub(probe)
        try:
            return stub.GetStatus(coordination_pb2.GetStatusRequest(), timeout=_PROBE_S).job
        except grpc.RpcError:
            return None
