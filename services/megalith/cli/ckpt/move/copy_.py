"""Copy a checkpoint with its increments, from which another job starts.

CHECKPOINT is a folder like model.ckpt-120, or a model directory, of which the newest is taken.
Both may be URLs of an object store. Every file is checked on the way.
"""

from megalith.checkpoint.moving.copying import Copied, copy
from megalith.checkpoint.storage.location import Location, name_of
from megalith.cli.ckpt.calls import (
    Bar,
    CheckpointCall,
    checkpoint_argument,
    checkpoint_at,
    command,
    model_dir_option,
)
from megalith.cli.ckpt.text import print_removed, size
from megalith.runtime.counting import counted


@command(
    checkpoint_argument(),
    model_dir_option(),
    examples=("megalith ckpt copy model --out s3://bucket/models/ctr",),
)
def copy_(call: CheckpointCall, checkpoint: Location, out: Location) -> None:
    with Bar() as bar:
        copied = copy(checkpoint_at(checkpoint), out, progress=bar)

    call.answer(copied, _show)


def _show(copied: Copied) -> None:
    print_removed(copied.removed)
    files = counted(copied.files, "file")
    num_bytes = size(copied.bytes)
    print(f"copied {files}, {num_bytes}, to {copied.path}")

    old_name = name_of(copied.source)
    new_name = name_of(copied.path)
    if new_name != old_name:
        print(f"{old_name} is called {new_name} there, because it is the first of its step")
