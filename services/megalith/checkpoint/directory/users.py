"""Which checkpoints of a model directory other jobs start from: they stay until those have saved.

A job that starts from the model of another one (--restore-dir) leaves a note in that directory. The
owner of the directory looks into the list of the job that the note names: once it names another
checkpoint, the note goes. The increments of such a checkpoint stay with it.
"""

import hashlib
import logging

from megalith.checkpoint.directory import listing
from megalith.checkpoint.storage import files as stored
from megalith.checkpoint.storage.location import Location, locate, name_of
from megalith.errors import MegalithError

logger = logging.getLogger(__name__)

_NOTE = "used_by-"  # and a hash of who uses it


def note(source: Location, checkpoint: str, user: Location) -> None:
    """Say in `source` that the job of the directory `user` starts from one of its checkpoints."""
    digest = hashlib.sha256(str(user).encode()).hexdigest()[:8]
    try:
        stored.write(source / f"{_NOTE}{digest}", f"{checkpoint}\n{user}\n".encode())
    except OSError as error:
        logger.warning(
            "%s has to stay until this job has saved, and its own job cannot be told so: %s",
            checkpoint,
            error,
        )


def in_use(model_dir: Location) -> set[str]:
    """Names of the checkpoints that other jobs still start from."""
    names = set()
    notes: list[Location] = list(model_dir.glob(f"{_NOTE}*"))
    for path in notes:
        try:
            text = path.read_text(errors="replace")
        except FileNotFoundError:
            continue  # somebody else has looked meanwhile

        checkpoint, _, user = text.strip().partition("\n")
        newest = _newest_of(user, checkpoint) if user else None
        if newest is not None and newest != checkpoint:
            path.unlink(missing_ok=True)  # the job has saved since
        else:
            names.add(name_of(checkpoint))

    return names


def _newest_of(user: str, checkpoint: str) -> str | None:
    """What the list of a job names; None if nobody can say it, which must not fail our save."""
    try:
        return listing.read(locate(user)).newest
    except (OSError, MegalithError) as error:
        logger.warning(
            "%s stays: whether the job of %s still starts from it is not known: %s",
            checkpoint,
            user,
            error,
        )
        return None
