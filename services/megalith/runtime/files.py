"""Files that are whole or absent, and files that others might have put in our way."""

import errno
import fcntl
import logging
import os
import secrets
import stat
from pathlib import Path
from typing import IO

from megalith.wire.errors import InvalidSetting

logger = logging.getLogger(__name__)

_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)  # of a file system that has none


class NotPlainFile(OSError):
    """A link, a pipe, a device or a directory stands where a file is expected."""


def write_atomically(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Replace `path` in one rename; a reader sees the old content or the new, also after a crash."""
    temporary = path.with_name(f"{path.name}-tmp-{secrets.token_hex(4)}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
        with open(descriptor, "wb") as file:
            file.write(content)
        sync(temporary)
        os.replace(temporary, path)
        sync(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def open_plain(path: Path, mode: str) -> IO[bytes]:
    """Open for "rb", "ab" or "r+b", the latter two making the file if it is missing; it is never cut.

    Only a plain file is opened: a symbolic link would lead into somebody else's file, a pipe would block for ever.
    NotPlainFile or IsADirectoryError otherwise.
    """
    flags = {
        "rb": os.O_RDONLY,
        "ab": os.O_WRONLY | os.O_APPEND | os.O_CREAT,
        "r+b": os.O_RDWR | os.O_CREAT,
    }[mode]
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise NotPlainFile(error.errno, "not a plain file; remove it", str(path)) from error
        raise
    kind = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(kind):
        os.close(descriptor)
        if stat.S_ISDIR(kind):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise NotPlainFile(errno.EINVAL, "not a plain file; remove it", str(path))
    return open(descriptor, mode)


def lock(file: IO[bytes]) -> bool:
    """Lock the open file for this process alone; False where the file system has no locks, BlockingIOError if taken.

    The kernel drops the lock when the process ends, however it ends.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return False
    return True


def sync(path: Path) -> None:
    """Return once the file, or the names in the directory, would survive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def prepare_model_dir(model_dir: str) -> Path:
    """The directory as an absolute path, made if missing and proven writable."""
    if not model_dir:
        raise InvalidSetting(
            "--model-dir is not given; it holds checkpoints and the controller's address"
        )
    path = Path(model_dir).absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / f".write-probe-{secrets.token_hex(4)}"
        probe.touch()
        probe.unlink()
        owner = path.stat().st_uid
    except OSError as error:
        raise InvalidSetting(
            f"directory {model_dir}: not writable ({error.strerror}); choose another"
        ) from error
    if owner not in (0, os.geteuid()):
        logger.warning(
            "directory %s belongs to user %d, who can change the job's files there", path, owner
        )
    return path
