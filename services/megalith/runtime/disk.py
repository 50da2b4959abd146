"""What went wrong with a disk, for people: which one, and how full it is."""

import errno
import os
import shutil
from pathlib import Path

_FULL = (errno.ENOSPC, errno.EDQUOT)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)


def is_full(error: BaseException) -> bool:
    """Whether it says that there is no room, or that the user's share of it is used up."""
    return isinstance(error, OSError) and error.errno in _FULL


def why(error: Exception, directory: Path) -> str:
    """Why something cannot be written into a directory; other errors say it themselves."""
    number = error.errno if isinstance(error, OSError) else None
    if number in _FULL:
        return f"no space left on {_disk(directory)}; make room there ({error})"
    if number in _FORBIDDEN:
        return f"user {os.geteuid()} may not write into {directory}: {error}"

    return str(error)


def _disk(directory: Path) -> str:
    """Such as "the disk at /data, 12 of 4000 MB are free without the unfinished files".

    What was written in vain is removed by then, so that its room is free again.
    """
    at = directory.absolute()
    while not at.is_mount() and at != at.parent:
        at = at.parent

    try:
        usage = shutil.disk_usage(at)
    except OSError:
        return f"the disk of {directory}"

    free = usage.free // 10**6
    total = usage.total // 10**6
    return f"the disk at {at}, {free} of {total} MB are free without the unfinished files"
