"""One controller for a model directory.

A second one is refused, and one that was thought dead steps down.
"""

import contextlib
import logging
import os
import socket
from pathlib import Path
from typing import IO

import grpc

from megalith.control import address_file
from megalith.controller.members import job_files
from megalith.errors import InvalidSetting, ModelDirInUse, NotReady
from megalith.protos import coordination_pb2, coordination_pb2_grpc
from megalith.runtime import files
from megalith.wire import channel

logger = logging.getLogger(__name__)

_PROBE_S = 1.0  # for a controller on another machine to answer; a dead one refuses at once
_WITHDRAWN = ".withdrawn"


class ModelDirOwnership:
    """Held from construction until `release`, or the death of the process.

    The kernel drops the file lock when the process dies.

    A lock may not reach other machines, or not exist at all on a shared file system. Then the
    controller at the written address is asked. One that does not answer may only be paused, so each
    controller also claims a generation, one above all earlier ones, by making a file that must not
    exist: `controller.generation/<number>`. A controller that finds a higher one has been replaced:
    it must not write any more, and ends. The claim of one that did not start is kept as
    `<number>.withdrawn`: it replaces nobody, and its number is not given to another, because
    members obey no controller with a lower number than one they have known.
    """

    def __init__(self, model_dir: Path, job: str) -> None:
        self._model_dir = model_dir
        self._lock = _open_lock(model_dir)
        try:
            _take(self._lock, model_dir, job)
            self.generation = _claim(model_dir / job_files.GENERATIONS)
        except BaseException:
            self._lock.close()
            raise

    def release(self) -> None:
        self._lock.close()

    def withdraw(self) -> None:
        """Release it for a controller that did not start: the one before it goes on."""
        claim = self._model_dir / job_files.GENERATIONS / str(self.generation)
        try:
            claim.rename(claim.with_name(claim.name + _WITHDRAWN))
        except FileNotFoundError:
            pass  # a newer controller has removed it
        except OSError as error:
            logger.warning(
                "%s is not withdrawn (%s): an older controller of the directory ends", claim, error
            )

        self.release()

    @property
    def is_replaced(self) -> bool:
        """Whether a newer controller has claimed the directory.

        A directory that cannot be read replaces nobody.
        """
        try:
            names = _names(self._model_dir / job_files.GENERATIONS)
            return any(
                number > self.generation
                for name, number in names.items()
                if not name.endswith(_WITHDRAWN)
            )
        except OSError as error:
            logger.warning("cannot see whether this controller has been replaced: %s", error)
            return False

    def check(self) -> None:
        """NotReady if a newer controller has claimed the directory: that one is to be asked."""
        if self.is_replaced:
            raise NotReady(f"{self.replacement}; ask the one that --model-dir names now")

    @property
    def replacement(self) -> str:
        """For people: what has happened to this controller."""
        return (
            f"a newer controller serves {self._model_dir}; this one, generation "
            f"{self.generation}, steps down"
        )


def check_free(model_dir: Path, job: str) -> None:
    """ModelDirInUse while a controller serves the directory.

    It only looks: it claims nothing and replaces nobody.
    """
    with _open_lock(model_dir) as lock:
        _take(lock, model_dir, job)


def hold(model_dir: Path) -> IO[bytes]:
    """Keep controllers away from the directory until the file that is returned is closed.

    ModelDirInUse while one serves it, or somebody else holds it.
    """
    lock = _open_lock(model_dir)
    try:
        _take(lock, model_dir, None)
    except BaseException:
        lock.close()
        raise

    return lock


def refusal(model_dir: Path, address: str | None) -> ModelDirInUse:
    """For whoever finds the directory taken; the address is that of the last controller there."""
    by = f"a controller at {address} serves it" if address else "a controller is starting there"
    return ModelDirInUse(
        f"--model-dir={model_dir} is in use: {by}, or a program trains there with local_train; "
        "end that one first, or choose another directory"
    )


def _open_lock(model_dir: Path) -> IO[bytes]:
    try:
        return files.open_plain(model_dir / job_files.LOCK, "r+b")
    except OSError as error:
        raise InvalidSetting(
            f"--model-dir={model_dir}: {job_files.LOCK}: {error.strerror}"
        ) from error


def _take(lock: IO[bytes], model_dir: Path, job: str | None) -> None:
    """Lock the directory for the controller of a job; None = for somebody else.

    Where locks do not reach, that one gives way to any controller that answers.
    """
    address = address_file.CONTROLLER.read(model_dir)
    try:
        is_locked = files.lock(lock)
    except BlockingIOError:
        raise refusal(model_dir, address) from None

    if not is_locked:
        logger.warning(
            "%s has no file locks: a second controller is only found if it answers", model_dir
        )

    if address is None or (is_locked and job is None):
        return

    served = _job_at(address)
    if served is not None and job in (None, served):
        raise refusal(model_dir, address)


def _claim(directory: Path) -> int:
    """A number above all that were claimed before; the older ones are forgotten."""
    try:
        directory.mkdir(exist_ok=True)
        while True:
            generation = max(_names(directory).values(), default=0) + 1
            try:
                claim = os.open(
                    directory / str(generation),
                    os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW,
                    0o644,
                )
            except FileExistsError:
                continue  # somebody was faster

            with (
                contextlib.suppress(OSError),
                open(claim, "w") as file,
            ):  # for people; a full disk stops nobody
                file.write(f"{socket.gethostname()} {os.getpid()}\n")

            break

        for name, older in _names(directory).items():
            if older < generation:
                (directory / name).unlink(missing_ok=True)
    except OSError as error:
        raise InvalidSetting(
            f"directory {directory}: {error.strerror}; it numbers the controllers"
        ) from error

    return generation


def _names(directory: Path) -> dict[str, int]:
    """The numbers that were claimed, also those withdrawn, by the name of their file."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return {}

    numbers = {name: name.removesuffix(_WITHDRAWN) for name in names}
    return {
        name: int(number)
        for name, number in numbers.items()
        if number.isascii() and number.isdigit() and len(number) <= 15
    }


def _job_at(address: str) -> str | None:
    """The job of the controller that answers there; None if none does."""
    with channel.open_channel(address) as probe:
        stub = coordination_pb2_grpc.CoordinationStub(probe)
        try:
            return stub.GetStatus(coordination_pb2.GetStatusRequest(), timeout=_PROBE_S).job
        except grpc.RpcError:
            return None
