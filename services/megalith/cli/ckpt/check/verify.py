"""Check every byte and every row of a checkpoint.

Each file has the size and the checksum that the manifest says. Each row is in its bucket, no id
is there twice, every number is finite, and every variable has all of its parts.

Exit status 0 if the checkpoint is whole. 1 if it is not, with a line for each fault that names
the file.
"""

import sys

from click.exceptions import Exit

from megalith.checkpoint.inspection.verification import Verification
from megalith.checkpoint.inspection.verification import verify as verify_checkpoint
from megalith.checkpoint.storage.location import Location
from megalith.cli.ckpt.calls import (
    Bar,
    CheckpointCall,
    checkpoint_argument,
    checkpoint_at,
    command,
)
from megalith.cli.ckpt.text import size
from megalith.runtime.counting import counted


@command(checkpoint_argument(), examples=("megalith ckpt verify model/model.ckpt-120",))
def verify(call: CheckpointCall, checkpoint: Location) -> None:
    with Bar() as bar:
        found = verify_checkpoint(checkpoint_at(checkpoint), bar)

    call.answer(found, _show, is_whole=found.is_whole)
    if not found.is_whole:
        raise Exit(1)


def _show(found: Verification) -> None:
    path = found.path
    for problem in found.problems:
        print(f"{path}/{problem.file}: {problem.what}", file=sys.stderr)

    for name in found.unnamed:
        print(f"{path}/{name}: the manifest does not name it; a restore ignores it")

    if not found.is_whole:
        faults = counted(len(found.problems), "fault")
        print(f"{path} is damaged: {faults}", file=sys.stderr)
        return

    more = ""
    if found.increments:
        increments = counted(found.increments, "increment")
        more = f" with {increments}"

    files = counted(found.files, "file")
    num_bytes = size(found.bytes)
    rows = counted(found.rows, "row")
    print(f"{path} is whole{more}: {files}, {rows}, {num_bytes}")
