"""Folders of this machine for what is on its way to or from an object store.

They are below the directory for temporary files (TMPDIR). Each is locked while it is used, so that
those of processes that were killed are known, and go with the next one.
"""

import fcntl
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

logger = logging.getLogger(__name__)

_PREFIX = "megalith-scratch-"


def root() -> Path:
    return Path(tempfile.gettempdir())


@contextmanager
def folder() -> Iterator[Path]:
    """An empty folder, which goes with all that is in it."""
    _remove_abandoned()
    path = Path(tempfile.mkdtemp(prefix=_PREFIX))
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(descriptor)


def _remove_abandoned() -> None:
    """Remove the folders of processes that were killed."""
    for path in root().glob(f"{_PREFIX}*"):
        with suppress(OSError):  # it is somebody else's, gone, or in use
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if any(path.iterdir()):  # an empty one may be locked in a moment
                    shutil.rmtree(path, ignore_errors=True)
                    logger.info("removed %s, left of a process that was killed", path)
            finally:
                os.close(descriptor)
