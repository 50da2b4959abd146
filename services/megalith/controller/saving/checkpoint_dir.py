"""The directory of a job's checkpoints: its model directory, or another one that it owns.

Another one has the file `checkpoint_owner`, which names the job. And the model directory has the
file `checkpoint_dir.txt`, which names the other one, so that a job that is started without
--checkpoint-dir the next time does not begin with an empty model.
"""

import errno
import json
import os
import secrets
import socket
from dataclasses import asdict, dataclass
from pathlib import Path

from megalith.checkpoint.directory import listing
from megalith.checkpoint.format import DENSE_ONLY
from megalith.checkpoint.storage import files as stored
from megalith.checkpoint.storage.location import Location
from megalith.checkpoint.storage.preparation import prepared
from megalith.controller.members import job_files
from megalith.errors import InvalidSetting, ModelDirInUse
from megalith.runtime.files import write_atomically

OWNER = "checkpoint_owner"
_NOTE = "checkpoint_dir.txt"


@dataclass(frozen=True, slots=True)
class _Note:
    """What the model directory remembers; `key` is what the owner's file has."""

    checkpoint_dir: str
    key: str


def check_model_dir(model_dir: Path) -> None:
    """ModelDirInUse if another job has its checkpoints here; nothing is written."""
    path = model_dir / OWNER
    if path.exists():
        _, _, job = path.read_text(errors="replace").partition(" ")
        raise ModelDirInUse(
            f"--model-dir={model_dir}: the job of {job} has its checkpoints there, and two jobs "
            f"would take each other's; to start from them, take another --model-dir and add "
            f"--restore-dir={model_dir}, or remove {path} if that job is over for good"
        )


def take(model_dir: Path, checkpoint_dir: str, restore_dir: str = "") -> Location:
    """The directory as `--checkpoint-dir` names it, proven writable, and owned by this job.

    `restore_dir` is where the first checkpoint comes from, if it is another job's.
    """
    note = _read_note(model_dir)
    if not checkpoint_dir:
        _check_not_elsewhere(model_dir, note)
        return model_dir

    directory = prepared(checkpoint_dir)
    if stored.is_same(directory, model_dir):
        _check_not_elsewhere(model_dir, note)
        return model_dir

    if note is not None and note.checkpoint_dir != str(directory):
        raise InvalidSetting(
            f"--checkpoint-dir={checkpoint_dir}: the checkpoints of {model_dir} are in "
            f"{note.checkpoint_dir}; give that, or take another --model-dir to begin elsewhere"
        )

    _check_own_checkpoints(model_dir, directory, restore_dir)
    key = note.key if note is not None else secrets.token_hex(8)
    _own(directory, key, model_dir)
    text = json.dumps(asdict(_Note(str(directory), key)))
    write_atomically(model_dir / _NOTE, text.encode())
    return directory


def is_of_a_job(directory: Location) -> bool:
    """Whether a job has its checkpoints there, also one that is over."""
    if isinstance(directory, Path) and job_files.is_of_a_job(directory):
        return True
    if directory.name == DENSE_ONLY:
        return is_of_a_job(directory.parent)

    return (directory / OWNER).is_file()


def _check_not_elsewhere(model_dir: Path, note: _Note | None) -> None:
    if note is not None:
        raise InvalidSetting(
            f"the checkpoints of {model_dir} are in {note.checkpoint_dir}: give --checkpoint-dir="
            f"{note.checkpoint_dir}, or take another --model-dir to begin with an empty model"
        )


def _check_own_checkpoints(model_dir: Path, directory: Location, restore_dir: str) -> None:
    """InvalidSetting if the job has trained before, and none of that would be in `directory`."""
    has_list = listing.read_text(model_dir) is not None
    if has_list and not restore_dir and listing.read_text(directory) is None:
        raise InvalidSetting(
            f"--checkpoint-dir={directory} has no checkpoint, and {model_dir} has some: to go on "
            f"from the newest of them, add --restore-dir={model_dir}; to begin with an empty "
            "model, take another --model-dir"
        )


def _own(directory: Location, key: str, model_dir: Path) -> None:
    """ModelDirInUse if the directory is that of another job."""
    path = directory / OWNER
    if isinstance(directory, Path) and job_files.is_of_a_job(directory):
        raise ModelDirInUse(
            f"--checkpoint-dir={directory}: it is the model directory of another job; "
            "choose another"
        )

    owner = f"{key} {socket.gethostname()}:{model_dir.absolute()}"
    try:
        _create(path, owner.encode())
    except FileExistsError:
        found = path.read_text(errors="replace")
        found_key, _, found_job = found.partition(" ")
        if found_key != key:
            raise ModelDirInUse(
                f"--checkpoint-dir={directory}: it belongs to the job of {found_job}, and two jobs "
                f"would take each other's checkpoints; choose another, or remove {path} if that "
                "job is over for good"
            ) from None

        if found != owner:
            _check_moved(directory, key, model_dir, found_job)
            stored.write(path, owner.encode())


def _check_moved(directory: Location, key: str, model_dir: Path, found_job: str) -> None:
    """ModelDirInUse if the model directory is a copy of another one, which is still there."""
    host, _, first = found_job.partition(":")
    if host != socket.gethostname():
        return  # a job may start on another machine, where its directory has another path

    is_there = os.path.isdir(first) and not os.path.samefile(first, model_dir)
    note = _read_note(Path(first)) if is_there else None
    if note is not None and note.key == key:
        raise ModelDirInUse(
            f"--model-dir={model_dir} is a copy of {first}, whose job has its checkpoints in "
            f"{directory}, and two jobs would take each other's; to start from them, take a new "
            f"--model-dir and add --restore-dir={directory}, or remove {first} if it was moved"
        )


def _create(path: Location, content: bytes) -> None:
    """FileExistsError if it is there."""
    if not isinstance(path, Path):
        path.store.create(path.url, content)
        return

    with stored.locked(path.parent):  # of two jobs that start at once, one makes it
        if path.exists():
            raise FileExistsError(errno.EEXIST, "there is such a file", str(path))

        write_atomically(path, content)


def _read_note(model_dir: Path) -> _Note | None:
    path = model_dir / _NOTE
    try:
        return _Note(**json.loads(path.read_text()))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise InvalidSetting(
            f"{path} does not say where the checkpoints are: {error}; put it back, or remove it"
        ) from error
