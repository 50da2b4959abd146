"""How to tell the model directory of a job: by the files that its controller leaves there."""

import os
from pathlib import Path

from megalith.controller import journal
from megalith.wire import controller_address

LOCK = "controller.lock"
GENERATIONS = "controller.generation"


def is_of_a_job(directory: Path) -> bool:
    """Whether it is the model directory of a job, also of one that is over."""
    names = (LOCK, GENERATIONS, journal.FILE_NAME, controller_address.FILE_NAME)
    return any(os.path.lexists(directory / name) for name in names)
