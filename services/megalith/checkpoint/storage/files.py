"""Files and folders of a storage: what is done in one way locally and in another on a store."""

import contextlib
import fcntl
import functools
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from megalith.checkpoint.storage import scratch
from megalith.checkpoint.storage.location import Location
from megalith.errors import AccessDenied, LimitExceeded
from megalith.runtime import disk
from megalith.runtime import files as local_files

logger = logging.getLogger(__name__)


def is_same(one: Location, other: Location) -> bool:
    """Whether both are one folder, perhaps by different names."""
    if isinstance(one, Path) and isinstance(other, Path):
        return one.samefile(other)

    return one == other


def write(path: Location, content: bytes) -> None:
    """Replace a file: a reader sees the old content or the new, also after a crash."""
    if isinstance(path, Path):
        local_files.write_atomically(path, content)
    else:
        path.store.write(path.url, content)


def move(path: Location, to: Location) -> None:
    """Give a file another name."""
    if isinstance(path, Path):
        os.replace(path, str(to))
    else:
        path.store.copy(path.url, str(to))
        path.unlink()


def bytes_in(folder: Location) -> int:
    """Of the files in a folder, without those in folders below."""
    if isinstance(folder, Path):
        return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())

    return sum(child.size for child in folder.store.children(folder.url))


def changed_at_s(folder: Location) -> float:
    """When something in a folder last changed, Unix seconds."""
    if isinstance(folder, Path):
        return max(path.stat().st_mtime for path in (folder, *folder.iterdir()))

    changes = [child.changed_at_s for child in folder.store.children(folder.url)]
    return max(changes, default=0.0)


def sizes_in(folder: Location) -> dict[str, int]:
    """Of the files in a folder, by name; nothing if there is none."""
    if not isinstance(folder, Path):
        return {child.name: child.size for child in folder.store.children(folder.url)}

    sizes = {}
    with contextlib.suppress(FileNotFoundError):
        for path in folder.iterdir():
            sizes[path.name] = path.stat().st_size

    return sizes


def sync(path: Location) -> None:
    """Return once a file or the names in a folder would survive a loss of power.

    An object store answers only then.
    """
    if isinstance(path, Path):
        local_files.sync(path)


@contextmanager
def allowed(path: Location) -> Iterator[None]:
    """Inside, a file that may not be read is an AccessDenied, which names it and the way out."""
    try:
        yield
    except PermissionError as error:
        raise AccessDenied(
            f"{path} may not be read by user {os.geteuid()}: {error}; give that user the right to "
            "read it and to look into its folder, or start as the user who owns it"
        ) from error


@functools.cache
def _say_unlocked(folder: Path, why_not: str) -> None:
    logger.warning(
        "%s cannot be locked (%s): two processes that change its state files at once may each lose "
        "what the other wrote",
        folder,
        why_not,
    )


@contextmanager
def locked(folder: Location) -> Iterator[None]:
    """Two jobs that change the state files of a folder take turns, where folders can be locked.

    Where they cannot, that is logged once.
    """
    if not isinstance(folder, Path):
        yield
        return

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            _say_unlocked(folder, str(error))

        yield
    finally:
        os.close(descriptor)


# --- the files of a shard ---


def read_part(path: Location, offset: int, size: int) -> bytes:
    """So many bytes from `offset` on; fewer where the file ends."""
    if not isinstance(path, Path):
        return path.store.read_part(path.url, offset, size)

    with (
        allowed(path),
        open(path, "rb") as file,
    ):  # buffered: one that is not may read less than there is
        file.seek(offset)
        return file.read(size)


def open_file(path: Location) -> IO[bytes]:
    """For reading; AccessDenied for one that may not be read."""
    if not isinstance(path, Path):
        return path.store.open(path.url)

    with allowed(path):
        return open(path, "rb")


@contextmanager
def opened(path: Location) -> Iterator[Any]:
    """A source for pyarrow; AccessDenied for one that may not be read.

    The file is read, not mapped into memory: if it is cut short meanwhile, that is an error here,
    and would be the end of the process there.
    """
    if isinstance(path, Path):
        with allowed(path):
            file = pa.OSFile(str(path))
        with file as source:
            yield source
    else:
        with path.store.open(path.url) as file, pa.PythonFile(file, "r") as source:
            yield source


def put(copy: Path, path: Location) -> None:
    """Make a file with the content of `copy`, which is on disk or in the store afterwards."""
    if isinstance(path, Path):
        shutil.copyfile(copy, path)
        sync(path)
    else:
        path.store.upload(copy, path.url)


@contextmanager
def fetched(path: Location) -> Iterator[Path]:
    """A file of this machine with the same content, which is there inside.

    LimitExceeded if there is no room for a copy.
    """
    if isinstance(path, Path):
        yield path
        return

    with scratch.folder() as folder:
        copy = folder / path.name
        try:
            path.store.download(path.url, copy)
        except OSError as error:
            if not disk.is_full(error):
                raise

            raise LimitExceeded(
                f"{path} cannot be copied to this machine: {disk.why(error, scratch.root())}"
            ) from error

        yield copy


# --- for people ---


def why(error: Exception, folder: Location) -> str:
    """Why something cannot be written into a folder."""
    if isinstance(folder, Path):
        return disk.why(error, folder)

    # What goes to a store is first written to a disk of this machine.
    return str(error) if isinstance(error, PermissionError) else disk.why(error, scratch.root())
