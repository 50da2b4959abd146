"""The directory that a command gives its first checkpoint: an import or a copy.

What such a command writes is told from the saves of jobs by its save id. So the next command can
remove what a killed one has left, and never takes a save under way of a job for that. Of two
commands that fill one directory at once, the earlier one fails, and on an object store both may.
"""

from pathlib import Path

from megalith.checkpoint.directory import catalog, increments, listing
from megalith.checkpoint.storage import object_folders
from megalith.checkpoint.storage.location import Location
from megalith.checkpoint.storage.object_path import ObjectPath
from megalith.errors import InvalidRequest, SaveFailed


def save_id_of(save_id: str) -> str:
    """What a folder is begun with, so that it can be told from one of a job."""
    return f"{catalog.COMMAND}{save_id}"


def check_held(work: Location, save_id: str) -> None:
    """SaveFailed if another command has removed this folder, or has it now."""
    if isinstance(work, Path):
        is_held = work.is_dir()
    else:
        is_held = object_folders.own_save_id(work) == save_id_of(save_id)

    if not is_held:
        raise SaveFailed(f"{work} was taken by another command; run one at a time")


def make_empty(model_dir: Location) -> tuple[str, ...]:
    """Remove what killed commands have left; returns the paths that were removed.

    InvalidRequest, and nothing is removed, if there are checkpoints, because a job that has them
    would start from another one, or increments, whose checkpoint may only have been moved away.
    """
    left = _left_of_commands(model_dir)
    others = [path for path in model_dir.glob("model.ckpt-*") if path not in left]
    text = listing.read_text(model_dir)
    is_listed = text is not None and text != listing.FIRST_IS_PUBLISHED
    if others or is_listed:
        raise InvalidRequest(
            f"{model_dir} has checkpoints already, and a job would start from the new one; "
            "give another --out"
        )

    increments.check_none(model_dir)
    for path in left:
        catalog.give_up(path)

    return tuple(str(path) for path in left)


def _left_of_commands(model_dir: Location) -> list[Location]:
    if not isinstance(model_dir, Path):
        folders = model_dir.glob("model.ckpt-*")
        return [path for path in folders if _is_left(path)]

    own = catalog.own_work_directories(model_dir)
    return [path for path in own if f"-{catalog.COMMAND}" in path.name]


def _is_left(folder: ObjectPath) -> bool:
    if object_folders.is_left_of_removal(folder):
        return True

    return object_folders.own_save_id(folder).startswith(catalog.COMMAND)
