"""Files that are whole or absent, and files that others might have put in our way."""

import errno
import fcntl
import logging
import os
import re
import secrets
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

from megalith.errors import InvalidSetting

logger = logging.getLogger(__name__)

_OPEN_FLAGS = {
    "rb": os.O_RDONLY,
    "ab": os.O_WRONLY | os.O_APPEND | os.O_CREAT,
    "r+b": os.O_RDWR | os.O_CREAT,
}
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)  # of a file system that has none
# As `write_atomically` and `prepare_model_dir` name them
_TEMPORARY = re.compile(r"(.+-tmp|\.write-probe)-[0-9a-f]{8}")


class NotPlainFile(OSError):
    """A link, a pipe, a device or a directory stands where a file is expected."""


def write_atomically(
    path: Path,
    content: bytes,
    mode: int = 0o666,
    may_replace: Callable[[], bool] = lambda: True,
) -> bool:
    """Replace `path` in one rename.

    A reader sees the old content or the new, also after a crash. `may_replace` is asked right
    before the rename, after the content is on disk. If it says no, nothing is replaced and the
    answer is False.
    """
    temporary = path.with_name(f"{path.name}-tmp-{secrets.token_hex(4)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    try:
        descriptor = os.open(temporary, flags, mode)
        with open(descriptor, "wb") as file:
            file.write(content)

        sync(temporary)
        if not may_replace():
            temporary.unlink(missing_ok=True)
            return False

        os.replace(temporary, path)
        sync(path.parent)
        return True
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def remove_temporaries(directory: Path, older_than_s: float) -> None:
    """Remove the files of writes and probes that were killed on the way.

    Those that are younger may belong to somebody who is writing now.
    """
    newest_s = time.time() - older_than_s
    for path in sorted(directory.iterdir()):
        if not _TEMPORARY.fullmatch(path.name):
            continue

        with suppress(OSError):  # what cannot be removed is in nobody's way
            about = path.lstat()

            if stat.S_ISREG(about.st_mode) and about.st_mtime < newest_s:
                path.unlink()
                logger.info("removed %s, left of a write that was killed", path)


def open_plain(path: Path, mode: str) -> IO[bytes]:
    """Open a file for "rb", "ab" or "r+b". The latter two make it if it is missing; none cuts it.

    Only a plain file is opened: a symbolic link would lead into somebody else's file, a pipe would
    block for ever. NotPlainFile or IsADirectoryError otherwise.
    """
    flags = _OPEN_FLAGS[mode] | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    refusal = "not a plain file; remove it"
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        is_link_or_pipe = error.errno in (errno.ELOOP, errno.ENXIO)
        if is_link_or_pipe:
            raise NotPlainFile(error.errno, refusal, str(path)) from error

        raise

    kind = os.fstat(descriptor).st_mode
    if stat.S_ISREG(kind):
        return open(descriptor, mode)

    os.close(descriptor)
    if stat.S_ISDIR(kind):
        message = os.strerror(errno.EISDIR)
        raise IsADirectoryError(errno.EISDIR, message, str(path))

    raise NotPlainFile(errno.EINVAL, refusal, str(path))


def add_line(path: Path, line: str) -> None:
    """Add a line to a file: the whole of it, or OSError.

    A line that a killed write has cut off stays, and spoils none that comes after it.
    """
    with open_plain(path, "ab") as file:
        before = os.fstat(file.fileno()).st_size
        start = "" if _ends_a_line(path, before) else "\n"
        content = f"{start}{line}\n".encode()
        written = 0
        try:
            while written < len(content):
                written += os.write(file.fileno(), content[written:])
        except OSError:
            # Whoever else adds lines may have added one behind the part of this one.
            if os.fstat(file.fileno()).st_size == before + written:
                os.ftruncate(file.fileno(), before)

            raise


def _ends_a_line(path: Path, size: int) -> bool:
    if not size:
        return True

    with open_plain(path, "rb") as file:
        file.seek(size - 1)
        return file.read(1) == b"\n"


def lock(file: IO[bytes]) -> bool:
    """Lock the open file for this process alone.

    False where the file system has no locks; BlockingIOError if another process has it. The kernel
    drops the lock when the process ends, however it ends.
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
