"""Starting from another checkpoint than the newest one: of this directory, or of another job's.

Nothing is copied. The list of the model directory names the chosen checkpoint as the newest; one of
another directory by its absolute path, and as exempt.
"""

import logging
import os
from dataclasses import replace
from pathlib import Path

from megalith.checkpoint.directory import exempt_list, listing, users
from megalith.checkpoint.directory.exempt_list import ExemptList
from megalith.checkpoint.directory.listing import Listing
from megalith.checkpoint.format import LIST, MANIFEST
from megalith.checkpoint.layout import manifest
from megalith.checkpoint.storage import files as stored
from megalith.checkpoint.storage.location import Location, locate, name_of, resolved
from megalith.errors import CheckpointDamaged, CheckpointNotFound

logger = logging.getLogger(__name__)

MARKER = "restore_ckpt"  # the choice that was made; its content is the path


def apply(model_dir: Location, checkpoint: str = "", source_dir: str = "") -> None:
    """Have the next start take `checkpoint`, and take it from `source_dir` if that is given.

    Each choice is made once: a marker says which one was, so that a process that is started again
    with the same settings goes on with what was trained since. A choice of another checkpoint is a
    new one. Monolith makes one choice for each directory, and takes one that does not exist; here
    that is a CheckpointNotFound.
    """
    if source_dir:
        _point_into(model_dir, locate(source_dir), checkpoint)
    if checkpoint:
        _go_back(model_dir, checkpoint, source_dir)


def _point_into(model_dir: Location, source: Location, checkpoint: str) -> None:
    """Make the list of a directory that has none yet of one checkpoint of another directory."""
    if listing.read_text(model_dir) is not None:
        logger.info(
            "%s has checkpoints of its own: none is taken from %s any more", model_dir, source
        )
        return

    listed = listing.read(source)
    name = checkpoint or listed.newest
    if not name:
        raise CheckpointNotFound(
            f"{source / LIST} names no checkpoint; correct --restore-dir, or leave it out to start "
            "with an empty model"
        )

    path = _existing(source, name_of(name) if checkpoint else name, listed)
    exempt = exempt_list.read(source) or ExemptList()
    with stored.locked(model_dir):
        if exempt_list.is_unreadable(model_dir):
            raise CheckpointDamaged(
                f"which checkpoints are exempt cannot be read from {model_dir / exempt_list.FILE}; "
                "correct it, or move it away"
            )

        own = exempt_list.read(model_dir) or ExemptList()
        started = replace(exempt, paths=(*own.paths, str(path)))
        stored.write(model_dir / exempt_list.FILE, started.text().encode())

    users.note(source, str(path), model_dir.absolute())
    time = listed.time_by_name.get(name, "0.0")
    listing.write(model_dir, Listing(str(path), {str(path): time}).text())
    logger.info("starting from %s of another directory; nothing is copied", path)


def _go_back(model_dir: Location, checkpoint: str, source_dir: str) -> None:
    """Name a checkpoint as the newest in the list, once.

    One that was taken from `source_dir` is not looked for here when the process starts again.
    """
    with stored.locked(model_dir):
        listed = listing.read(model_dir)
        name = checkpoint
        if listed.newest:
            folder = listed.newest.removesuffix(name_of(listed.newest))
            name = folder + name_of(checkpoint)

        choices = [name]
        if source_dir:
            choices.append(str(_absolute(locate(source_dir) / name_of(checkpoint))))

        marker = model_dir / MARKER
        if marker.exists() and marker.read_text(errors="replace") in choices:
            logger.info(
                "--restore-ckpt %s was obeyed before: the job goes on from %s. "
                "To go back once more, remove %s",
                checkpoint,
                listed.newest,
                marker,
            )
            return

        _existing(model_dir, name, listed)
        if name == listed.newest:
            logger.warning("--restore-ckpt %s is the newest checkpoint already", checkpoint)
        else:
            logger.warning("going back from %s to %s", listed.newest, name)
            # One that has left the list, to stay on disk for good, does not come back into it: it
            # would leave it again, and be removed.
            listed.newest = name
            listing.write(model_dir, listed.text())

        stored.write(marker, name.encode())


def _absolute(location: Location) -> Location:
    return Path(os.path.abspath(location)) if isinstance(location, Path) else location


def _existing(directory: Location, name: str, listed: Listing) -> Location:
    """The path of a complete checkpoint; CheckpointNotFound, with those that there are."""
    path = _absolute(resolved(directory, name))
    if (path / MANIFEST).exists():
        manifest.check_has_rows(path, manifest.read(path))
        return path

    known = listed.time_by_name
    there = [each for each in known if (resolved(directory, each) / MANIFEST).exists()]
    raise CheckpointNotFound(
        f"--restore-ckpt={name}: {path / MANIFEST} does not exist; "
        f"{directory} has {', '.join(there) or 'no checkpoint'}"
    )
