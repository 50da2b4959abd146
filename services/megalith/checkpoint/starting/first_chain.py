"""Through which increment a job loads a checkpoint that is in the directory of another job.

That job may add increments while this one starts. So the first start notes how many there are, and
all servers load as many: also one that is replaced, and under a later controller, until this job
has a checkpoint of its own.
"""

import json
from typing import Any

from megalith.checkpoint.directory import increments
from megalith.checkpoint.directory.increments import Chain
from megalith.checkpoint.layout import manifest
from megalith.checkpoint.storage import files as stored
from megalith.checkpoint.storage.location import Location
from megalith.errors import CheckpointDamaged
from megalith.runtime.counting import counted

FILE = "restored_increments.json"


def read(model_dir: Location, checkpoint: Location) -> Chain:
    """The checkpoint with as many increments as this job has loaded first."""
    note = model_dir / FILE
    save_id = manifest.read(checkpoint).save_id
    number = _noted(note, save_id)
    if number is None:
        chain = increments.read_chain(checkpoint)
        noted = {"save_id": save_id, "increments": chain.number}
        stored.write(note, json.dumps(noted).encode())
        return chain

    try:
        return increments.read_chain(checkpoint, through=number)
    except CheckpointDamaged as error:
        loaded = counted(number, "increment")
        raise CheckpointDamaged(
            f"{error}; this job has loaded {loaded} of {checkpoint} before: to load "
            f"those that are there now, end it, remove {note} and start it again"
        ) from error


def _noted(note: Location, save_id: str) -> int | None:
    """None if nothing is noted of that checkpoint."""
    try:
        noted: Any = json.loads(note.read_bytes())
        return int(noted["increments"]) if noted["save_id"] == save_id else None
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointDamaged(
            f"{note} does not say how many increments this job has loaded: {error!r}; "
            "remove it to load those that are there now"
        ) from error
