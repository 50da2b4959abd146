"""Saving a model without servers as a checkpoint, which a cluster can start from too.

Each rank writes a shard, as a ps of its index would. Rank 0 names them in the manifest, and it is
the manifest that makes a checkpoint of them.
"""

import base64
import dataclasses
import json
import secrets
import shutil
import time
from pathlib import Path

from megalith.checkpoint.directory import catalog, increments
from megalith.checkpoint.layout import manifest
from megalith.checkpoint.layout.manifest import Manifest, ShardFile
from megalith.checkpoint.saving.save import save_shard
from megalith.checkpoint.storage.location import Location
from megalith.collective.ranks import Ranks
from megalith.local.model import LocalModel


def save(
    model: LocalModel,
    model_dir: Path,
    step: int,
    cursor: bytes,
    ranks: Ranks,
    input_name: str = "",
) -> Location:
    """Write the checkpoint of a step and name it as the newest; the folder that it got.

    `cursor` is where the input of this rank goes on, which a job calls `input_name`. The checkpoint
    exists whole, or not at all. All ranks call it, with directories that are the same one.
    """
    model.check_copies()
    save_id = ranks.told(secrets.token_hex(4))
    began_at_s = max(time.time(), catalog.newest_time_s(model_dir))
    folder = catalog.work_directory(model_dir, step, save_id, is_own=False).absolute()
    try:
        if ranks.is_first:
            catalog.free_directory(model_dir, step)  # what cannot get its name is not written
            folder.mkdir()

        ranks.barrier()
        with model.as_saved():
            saved = save_shard(model, folder, save_id, ranks.index, ranks.count)

        said = ranks.gather_texts(_shard_as_text(saved.files, cursor))
        if ranks.is_first:
            manifest.write(folder, _manifest(said, step, save_id, began_at_s, input_name))
            path = catalog.publish(folder, model_dir, step)
            catalog.record_latest(model_dir, path, began_at_s)
        else:
            path = folder

        name = ranks.told(path.name)
    except BaseException:
        if ranks.is_first:
            shutil.rmtree(folder, ignore_errors=True)
        raise

    return model_dir / name


def saved_cursors(directory: Location, num_increments: int) -> tuple[bytes, ...]:
    """Where the input of each worker was when a checkpoint was saved; none if it does not say.

    With increments: when the last of them was saved, whose rows and step are restored too.
    """
    texts = increments.read_chain(directory, num_increments).last.cursors
    return tuple(base64.b64decode(text) for text in texts)


def _shard_as_text(files: list[ShardFile], cursor: bytes) -> str:
    """What a rank tells rank 0 of its shard."""
    about_files = [dataclasses.asdict(file) for file in files]
    return json.dumps({"files": about_files, "cursor": base64.b64encode(cursor).decode()})


def _manifest(
    said: list[str], step: int, save_id: str, began_at_s: float, input_name: str
) -> Manifest:
    """What all ranks have written."""
    shards = [json.loads(text) for text in said]
    files: list[ShardFile] = []
    for shard in shards:
        files += [manifest.file_of(about) for about in shard["files"]]

    cursors = tuple(shard["cursor"] for shard in shards)
    return Manifest(
        step=step,
        num_ps=len(shards),
        saved_at_s=began_at_s,
        files=tuple(files),
        cursors=cursors if any(cursors) else (),
        input_name=input_name if any(cursors) else "",
        save_id=save_id,
    )
