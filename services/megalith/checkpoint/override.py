"""Starting from another checkpoint than the newest one: of this directory, or of another job's.

Nothing is copied. The list of the model directory names the chosen checkpoint as the newest; one of
another directory by its absolute path, and as exempt.
"""

import logging
import os
from dataclasses import replace
from pathlib import Path

from megalith.checkpoint import exempt_list, listing
from megalith.checkpoint.exempt_list import ExemptList
from megalith.checkpoint.format import LIST, MANIFEST
from megalith.checkpoint.listing import Listing
from megalith.errors import CheckpointNotFound
from megalith.runtime.files import write_atomically

logger = logging.getLogger(__name__)

MARKER = "restore_ckpt"  # the choice that was made; its content is the path


def apply(model_dir: Path, checkpoint: str = "", source_dir: str = "") -> None:
    """Have the next start take `checkpoint`, and take it from `source_dir` if that is given.

    Each choice is made once: a marker says which one was, so that a process that is started again
    with the same settings goes on with what was trained since. A choice of another checkpoint is a
    new one. Monolith makes one choice for each directory, and takes one that does not exist; here
    that is a CheckpointNotFound.
    """
    if source_dir:
        _point_into(model_dir, Path(source_dir), checkpoint)
    if checkpoint:
        _go_back(model_dir, checkpoint, source_dir)


def _point_into(model_dir: Path, source: Path, checkpoint: str) -> None:
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

    path = _existing(source, Path(name).name if checkpoint else name, listed)
    exempt = exempt_list.read(source) or ExemptList()
    own = exempt_list.read(model_dir) or ExemptList()
    started = replace(exempt, paths=(*own.paths, str(path)))
    write_atomically(model_dir / exempt_list.FILE, started.text().encode())

    time = listed.time_by_name.get(name, "0.0")
    listing.write(model_dir, Listing(str(path), {str(path): time}).text())
    logger.info("starting from %s of another directory; nothing is copied", path)


def _go_back(model_dir: Path, checkpoint: str, source_dir: str) -> None:
    """Name a checkpoint as the newest in the list, once.

    One that was taken from `source_dir` is not looked for here when the process starts again.
    """
    with listing.locked(model_dir):
        listed = listing.read(model_dir)
        current = Path(listed.newest or "")
        name = str(current.with_name(Path(checkpoint).name)) if listed.newest else checkpoint
        choices = [name]
        if source_dir:
            choices.append(os.path.abspath(Path(source_dir) / Path(checkpoint).name))

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
            listed.newest = name
            listed.time_by_name.setdefault(name, "0.0")
            listing.write(model_dir, listed.text())

        write_atomically(marker, name.encode())


def _existing(directory: Path, name: str, listed: Listing) -> Path:
    """The path of a complete checkpoint; CheckpointNotFound, with those that there are."""
    path = Path(os.path.abspath(directory / name))
    if (path / MANIFEST).exists():
        return path

    there = [each for each in listed.time_by_name if (directory / each / MANIFEST).exists()]
    raise CheckpointNotFound(
        f"--restore-ckpt={name}: {path / MANIFEST} does not exist; "
        f"{directory} has {', '.join(there) or 'no checkpoint'}"
    )
