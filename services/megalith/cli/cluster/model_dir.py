"""One `megalith up` or `train` for a model directory: a second one is refused."""

import logging
from pathlib import Path
from typing import IO

from megalith.control import address_file
from megalith.controller.ownership import check_free, refusal
from megalith.errors import InvalidSetting, ModelDirInUse
from megalith.runtime import files

logger = logging.getLogger(__name__)

LOCK_FILE = "up.lock"


def take(model_dir: Path, job: str) -> IO[bytes]:
    """Take the directory for this process, until the file that is returned is closed.

    ModelDirInUse while another job uses the directory; nothing of that job has been touched then.
    The lock of `up` comes first. If it is taken, the controller's own lock is left alone: a look at
    it would keep the other job's controller from starting again at that moment.

    Where the file system has no locks, another job is found only if its controller answers.
    """
    file = _open(model_dir)
    try:
        _lock(file, model_dir)
        check_free(model_dir, job)
    except BaseException:
        file.close()
        raise

    return file


def _open(model_dir: Path) -> IO[bytes]:
    try:
        return files.open_plain(model_dir / LOCK_FILE, "r+b")
    except OSError as error:
        raise InvalidSetting(f"--model-dir={model_dir}: {LOCK_FILE}: {error.strerror}") from error


def _lock(file: IO[bytes], model_dir: Path) -> None:
    try:
        is_locked = files.lock(file)
    except BlockingIOError:
        address = address_file.CONTROLLER.read(model_dir)
        if address:
            raise refusal(model_dir, address) from None

        raise ModelDirInUse(
            f"--model-dir={model_dir}: another megalith up or train is starting there; "
            "stop that one or choose another"
        ) from None

    if not is_locked:
        logger.warning("%s has no file locks: do not start a second job in it", model_dir)
