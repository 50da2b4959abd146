"""Whether every ps sees the storage that the controller sees: found out before anything is trained.

The controller leaves a file in the directory of checkpoints. Each ps reads it when it starts, and
writes and removes one of its own.
"""

import contextlib
import os
import secrets
import socket
import time
from dataclasses import dataclass

from megalith.checkpoint.storage import files
from megalith.checkpoint.storage.location import Location, locate
from megalith.errors import InvalidSetting

_NAME = ".storage-probe-"
_APPEAR_S = 5.0  # for a file of another machine to be seen here
_LOOK_S = 0.1


@dataclass(frozen=True, slots=True)
class StorageProbe:
    """A file of the controller; `text` is its content, and says who wrote it."""

    path: str
    text: str


def leave(directory: Location) -> StorageProbe:
    """Write the file of a controller; those of earlier ones go."""
    for old in [*directory.glob(f"{_NAME}*")]:
        with contextlib.suppress(OSError):
            old.unlink()

    token = secrets.token_hex(4)
    text = f"controller on {socket.gethostname()}, process {os.getpid()}, {token}"
    path = directory / f"{_NAME}{token}"
    files.write(path, text.encode())
    return StorageProbe(str(path), text)


def take_back(probe: StorageProbe) -> None:
    """The controller ends; no ps that starts now would find it anyway."""
    with contextlib.suppress(OSError):
        locate(probe.path).unlink()


def answer(probe: StorageProbe, who: str) -> None:
    """InvalidSetting unless `who` reads the file of the controller, and can write beside it."""
    path = locate(probe.path)
    here = f"{who} on {socket.gethostname()}, process {os.getpid()},"
    try:
        found = _read(path)
        if found == probe.text.encode():
            own = path.with_name(f"{path.name}-{secrets.token_hex(4)}")
            files.write(own, here.encode())
            own.unlink()
            return
    except OSError as error:
        raise InvalidSetting(
            f"{here} cannot use {path.parent}, where the {probe.text} keeps the checkpoints: "
            f"{files.why(error, path.parent)}"
        ) from error

    said = "finds no such file" if found is None else f"finds {found[:80]!r} in it"
    raise InvalidSetting(
        f"the {probe.text} has written {path}, and {here} {said}: they do not see the same "
        "storage; mount one directory on both machines, or give the controller a "
        "--checkpoint-dir that all of them reach"
    )


def _read(path: Location) -> bytes | None:
    """None if it is not there, also not after a while."""
    deadline = time.monotonic() + _APPEAR_S
    while True:
        try:
            return path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            if time.monotonic() > deadline:
                return None

        time.sleep(_LOOK_S)
