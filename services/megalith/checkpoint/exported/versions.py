"""The versions of an exported model in a folder: names, the state file, which ones go."""

import errno
import fcntl
import logging
import os
import re
import secrets
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from megalith.checkpoint.directory import exempt_list, state_text
from megalith.checkpoint.exported import about
from megalith.checkpoint.exported.about import ExportedModel
from megalith.checkpoint.storage import files as stored
from megalith.errors import CheckpointDamaged, CheckpointNotFound

logger = logging.getLogger(__name__)

FOLDER = "exported_models"  # in a model directory
STATE = "ExportSaverListenerState"  # Monolith's name
WORK = "exporting-"  # and the machine that writes there
_QUIET_S = 86_400.0  # after which what another machine has begun is nobody's


def all_versions(base: Path) -> list[Path]:
    """The folders of versions, oldest first. Others are left alone."""
    found = [path for path in base.glob("[0-9]*") if path.name.isdecimal() and path.is_dir()]
    return sorted(found, key=lambda path: int(path.name))


def newest(directory: Path) -> Path:
    """The newest version in a folder, or the folder itself if it is a version.

    CheckpointNotFound if there is none.
    """
    if (directory / about.FILE).exists():
        return directory

    found = all_versions(directory)
    if found:
        return found[-1]

    inside = all_versions(directory / FOLDER)
    if inside:
        raise CheckpointNotFound(
            f"{directory} has its exported models in {directory / FOLDER}: give that folder to "
            f"follow it, or {inside[-1]} to stay with its newest version"
        )

    about.read(directory)  # says what the folder is instead
    raise CheckpointNotFound(f"{directory} has no exported model; megalith export writes one")


@contextmanager
def begun(base: Path) -> Iterator[Path]:
    """A folder to write a version in, which is gone afterwards unless it was published.

    What exports left that were killed goes: nobody holds the lock of such a folder any more. Where
    folders cannot be locked, all of them stay. What another machine has begun stays for a day
    longer: locks of a shared folder may hold on one machine alone.
    """
    with stored.locked(base):
        for left in base.glob(f"{WORK}*"):
            if _is_abandoned(left):
                logger.warning("%s is removed: the export that wrote it has died", left)
                shutil.rmtree(left, ignore_errors=True)

        work = base / f"{_of_this_machine()}{secrets.token_hex(4)}"
        work.mkdir()
        descriptor = os.open(work, os.O_RDONLY)
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    try:
        yield work
    finally:
        os.close(descriptor)
        shutil.rmtree(work, ignore_errors=True)


def _of_this_machine() -> str:
    """What the names of folders begin with that exports of this machine write into."""
    host = re.sub(r"[^A-Za-z0-9.]", "-", socket.gethostname())
    return f"{WORK}{host}-"


def _is_abandoned(work: Path) -> bool:
    try:
        is_own = work.name.startswith(_of_this_machine())
        if not is_own and time.time() - stored.changed_at_s(work) < _QUIET_S:
            return False

        descriptor = os.open(work, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return False

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)


def publish(work: Path, base: Path, model: ExportedModel) -> tuple[Path, ExportedModel]:
    """Give a complete folder its name: its version, which is above all others.

    Returns where it is, and what it is with that version. Where folders cannot be locked, another
    export may get that name first: this one takes the next.
    """
    with stored.locked(base):
        taken = [int(path.name) for path in all_versions(base)]
        model = replace(model, version=max([model.version, *(each + 1 for each in taken)]))
        while not _has_name(work, base, model):
            model = replace(model, version=model.version + 1)

        stored.sync(base)
        _write_state(base)

    return base / str(model.version), model


def _has_name(work: Path, base: Path, model: ExportedModel) -> bool:
    """Give a folder the name of its version; False if another one has it."""
    about.write(work, model)
    try:
        os.rename(work, base / str(model.version))
        return True
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise

        return False


def clean_up(base: Path, model_dir: Path) -> list[str]:
    """Remove versions whose checkpoint is gone and not exempt; which ones. The newest stays."""
    exempt = exempt_list.read(model_dir)
    if exempt is None and exempt_list.is_unreadable(model_dir):
        logger.warning(
            "no exported model is removed: which checkpoints are exempt cannot be read from %s; "
            "correct it",
            model_dir / exempt_list.FILE,
        )
        return []

    names = exempt.names if exempt else frozenset()
    removed = []
    with stored.locked(base):
        for directory in all_versions(base)[:-1]:
            checkpoint = _checkpoint_of(directory)
            is_kept = checkpoint in names or (model_dir / checkpoint).exists()
            if checkpoint and not is_kept and _remove(directory):
                removed.append(directory.name)

        _write_state(base)

    return removed


def _remove(directory: Path) -> bool:
    """Remove a version; False if another export has.

    It loses its name first: a part of a version is none, also if this process dies meanwhile.
    """
    aside = directory.with_name(f"{_of_this_machine()}removing-{directory.name}")
    try:
        os.rename(directory, aside)
    except FileNotFoundError:
        return False

    shutil.rmtree(aside, ignore_errors=True)
    return True


def _checkpoint_of(directory: Path) -> str:
    """Empty for a folder that is not ours to remove."""
    try:
        return about.read(directory).checkpoint
    except (CheckpointNotFound, CheckpointDamaged) as error:
        logger.warning("%s stays: %s", directory, error)
        return ""


def _write_state(base: Path) -> None:
    """List all versions in Monolith's text format."""
    text = ""
    for directory in all_versions(base):
        try:
            step = about.read(directory).step
        except (CheckpointNotFound, CheckpointDamaged):
            continue  # said when it is looked at for removal, or loaded

        path = state_text.string_lines("export_dir", [directory.name])
        number = state_text.line("global_step", str(step))
        text += f"entries {{\n  {path}  {number}}}\n"

    stored.write(base / STATE, text.encode())
