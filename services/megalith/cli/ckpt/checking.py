"""`megalith ckpt verify`: whether a checkpoint is whole."""

import sys
from pathlib import Path

from click.exceptions import Exit

from megalith.checkpoint.inspection.verification import Verification
from megalith.checkpoint.inspection.verification import verify as verify_checkpoint
from megalith.cli.ckpt.calls import (
    Bar,
    CheckpointCall,
    checkpoint_argument,
    checkpoint_at,
    command,
)
from megalith.cli.ckpt.text import counted, size


@command("verify", checkpoint_argument(), examples=("megalith ckpt verify model/model.ckpt-120",))
def verify(call: CheckpointCall, checkpoint: Path) -> None:
    """Check every byte and every row of a checkpoint.

    Each file has the size and the checksum that the manifest says. Each row is in its bucket, no id
    is there twice, every number is finite, and every variable has all of its parts.

    Exit status 0 if the checkpoint is whole. 1 if it is not, with a line for each fault that names
    the file.
    """
    with Bar() as bar:
        found = verify_checkpoint(checkpoint_at(checkpoint), bar)

    call.answer(found, _show, is_whole=found.is_whole)
    if not found.is_whole:
        raise Exit(1)


def _show(found: Verification) -> None:
    for problem in found.problems:
        print(f"{found.path}/{problem.file}: {problem.what}", file=sys.stderr)

    for name in found.unnamed:
        print(f"{found.path}/{name}: the manifest does not name it; a restore ignores it")

    if found.is_whole:
        more = ""
        if found.increments:
            increments = counted(found.increments, "increment")
            more = f" with {increments}"

        files = counted(found.files, "file")
        num_bytes = size(found.bytes)
        print(f"{found.path} is whole{more}: {files}, {found.rows:,} rows, {num_bytes}")
    else:
        faults = counted(len(found.problems), "fault")
        print(f"{found.path} is damaged: {faults}", file=sys.stderr)
