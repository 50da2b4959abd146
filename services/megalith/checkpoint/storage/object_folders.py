"""How a checkpoint comes to be, and goes, on an object store, where no folder can be renamed.

    model.ckpt-120/saving                   made first, if there is none: whose save it is
    model.ckpt-120/table-...arrow           its files
    model.ckpt-120/manifest-unpublished-ID  it is complete, but its controller may not publish it
    model.ckpt-120/manifest.json            made last, if there is none: now it is a checkpoint
    model.ckpt-120/removing                 it goes; the manifest goes first, this object last

So the manifest is what makes a checkpoint exist, and a folder without one is none. Of two saves
that want one name, one makes the first object. It stays there, so that nobody takes the name later.

A controller that was paused may wake up after another one has removed what it had begun, and has
taken the name itself. So all objects of a save have its id, and what a save does to its folder as a
whole it does only while `saving` names that id.
"""

import errno
from collections.abc import Iterator

from megalith.checkpoint.format import MANIFEST
from megalith.checkpoint.storage import files
from megalith.checkpoint.storage.object_path import ObjectPath
from megalith.checkpoint.storage.parallel import in_parallel

COMMAND = "command-"  # before the id of a save that a command makes, which no job is
_UNPUBLISHED = "manifest-unpublished-"
_SAVING = "saving"
_REMOVING = "removing"
_OWN = b"own "
_EXPORT = b"export "
_PUBLISHED = b"published"  # if it has no manifest then, somebody has taken that away


def begin(folder: ObjectPath, save_id: str, *, is_own: bool) -> None:
    """Take a name for a save; FileExistsError if another one has it.

    `is_own` = the job saves into its own directory.
    """
    mark = folder / _SAVING
    mark.store.create(mark.url, (_OWN if is_own else _EXPORT) + save_id.encode())


def unpublished(folder: ObjectPath, save_id: str) -> ObjectPath:
    """Where the manifest of a save is until it is published."""
    return folder / f"{_UNPUBLISHED}{save_id}"


def publish(folder: ObjectPath, save_id: str = "") -> None:
    """Make a complete folder a checkpoint; FileExistsError if it is one already.

    Or if another save has its name by now. Without an id it is that of whichever save has it.
    """
    holder = _holder(folder)
    save_id = save_id or holder
    if save_id != holder:
        raise FileExistsError(errno.EEXIST, "another save has this name by now", str(folder))

    manifest = folder / MANIFEST
    manifest.store.create(manifest.url, unpublished(folder, save_id).read_bytes())
    files.write(folder / _SAVING, _PUBLISHED + b" " + save_id.encode())
    unpublished(folder, save_id).unlink(missing_ok=True)


def is_of_another(folder: ObjectPath, save_id: str) -> bool:
    """Whether another save has the name by now; not if nobody has it."""
    return _holder(folder) not in ("", save_id)


def _holder(folder: ObjectPath) -> str:
    """The id of the save that has the name, published or not; empty if none has."""
    _, _, save_id = _mark(folder).decode().partition(" ")
    return save_id.removeprefix(COMMAND)


def remove_own(folder: ObjectPath, save_id: str) -> None:
    """Remove what a save has left in a folder that is another one's by now."""
    for path in _objects_below(folder):
        if save_id in path.name:
            path.unlink(missing_ok=True)


def begin_removal(folder: ObjectPath) -> None:
    """From now on it is no checkpoint any more; FileNotFoundError if there is no such folder.

    It may be a folder of such folders too.
    """
    if not folder.is_dir():
        raise FileNotFoundError(errno.ENOENT, "no such folder", str(folder))

    files.write(folder / _REMOVING, b"")
    (folder / MANIFEST).unlink(missing_ok=True)


def remove(folder: ObjectPath) -> None:
    """Remove what `begin_removal` has begun; if that is cut short, the mark is still there."""
    folder.store.abandon_uploads(folder.url)
    mark = folder / _REMOVING
    others = [path for path in _objects_below(folder) if path != mark]
    in_parallel(_unlink, others, "remove")  # the increments of a large job are thousands
    mark.unlink(missing_ok=True)


def _unlink(path: ObjectPath) -> None:
    path.unlink(missing_ok=True)


def _objects_below(folder: ObjectPath) -> Iterator[ObjectPath]:
    for child in folder.store.children(folder.url):
        path = folder / child.name
        if child.is_folder:
            yield from _objects_below(path)
        else:
            yield path


def is_mark(name: str) -> bool:
    """Whether it is an object that says what a folder is, and no part of a checkpoint."""
    return name in (_REMOVING, _SAVING) or name.startswith(_UNPUBLISHED)


def is_published(folder: ObjectPath) -> bool:
    return (folder / MANIFEST).is_file()


def is_left_of_removal(folder: ObjectPath) -> bool:
    return (folder / _REMOVING).is_file()


def is_trace(folder: ObjectPath) -> bool:
    """Whether there is a checkpoint, or was one whose manifest somebody has taken away."""
    if is_published(folder):
        return True

    return _mark(folder).startswith(_PUBLISHED) and not is_left_of_removal(folder)


def is_begun(folder: ObjectPath) -> bool:
    """Whether somebody saves here, or has saved here; not after that was given up."""
    return _mark(folder) != b"" and not is_left_of_removal(folder)


def is_own_save(folder: ObjectPath) -> bool:
    """Whether a job has begun to save here into its own directory, and has not published it."""
    return _unfinished_save(folder).startswith(_OWN)


def own_save_id(folder: ObjectPath) -> str:
    """The id of such a save; empty if there is none."""
    return _unfinished_save(folder).removeprefix(_OWN).decode() if is_own_save(folder) else ""


def is_save_of_another(folder: ObjectPath) -> bool:
    """The same of a job that was told to save here, and whose directory is another one."""
    return _unfinished_save(folder).startswith(_EXPORT)


def _unfinished_save(folder: ObjectPath) -> bytes:
    """Whose it is; empty if it is none, or not unfinished."""
    owner = _mark(folder)
    return b"" if owner.startswith(_PUBLISHED) or is_published(folder) else owner


def _mark(folder: ObjectPath) -> bytes:
    try:
        return (folder / _SAVING).read_bytes()
    except FileNotFoundError:
        return b""
