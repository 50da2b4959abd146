"""The checkpoints of a model directory: which folder gets which name, and which is the newest.

A save writes into a folder of its own, which gets its name once it is complete. So a folder named
model.ckpt-* never changes: no save writes into it or replaces it. What is not kept is renamed
before it is removed, so that there is no moment at which a part of it has its name.

On an object store no folder can be renamed. There a folder is a checkpoint while it has a manifest,
which comes last and goes first (storage/object_folders.py).

The list names a checkpoint after its folder got its name. So before a directory gets its first
folder, it gets a list that says so. A controller that dies between the two leaves a folder that the
next one finds; a folder without any list means that somebody took the list away.
"""

import contextlib
import errno
import logging
import os
import re
import shlex
import shutil
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple

from megalith.checkpoint.directory import exempt_list, listing, row_counts, users
from megalith.checkpoint.directory.retention import Retention
from megalith.checkpoint.format import LIST, MANIFEST
from megalith.checkpoint.layout import manifest
from megalith.checkpoint.storage import files as stored
from megalith.checkpoint.storage import object_folders
from megalith.checkpoint.storage.location import Location, name_of, resolved
from megalith.errors import CheckpointDamaged, CheckpointNotFound

logger = logging.getLogger(__name__)

_FOLDER = re.compile(r"model\.ckpt-(r(?P<number>\d+)-)?(?P<step>\d+)")
COMMAND = object_folders.COMMAND
_OWN_WORK = re.compile(rf"saving-\d+-({COMMAND})?[0-9a-f]+")
_REMOVED = "removing-"  # and the name that it had
_MOST_NAMES = 5  # of folders in a message


# --- saves under way ---


def begin(model_dir: Location, step: int, save_id: str, *, is_own: bool = True) -> Location:
    """Make the folder that a save writes into until it is complete.

    `is_own` = the job saves into its own directory.
    """
    if isinstance(model_dir, Path):
        work = work_directory(model_dir, step, save_id, is_own=is_own).absolute()
        work.mkdir()
        return work

    while True:
        folder = model_dir / _free_name(model_dir, step)
        try:
            object_folders.begin(folder, save_id, is_own=is_own)
        except FileExistsError:
            continue  # somebody was faster
        else:
            return folder


def work_directory(model_dir: Path, step: int, save_id: str, *, is_own: bool = True) -> Path:
    name = f"saving-{step}-{save_id}"
    if not is_own:
        name += "-export"

    return model_dir / name


def own_work_directories(model_dir: Location) -> list[Location]:
    """Of saves of the job of that directory.

    Each but the one under way was left by a controller that died.
    """
    if not isinstance(model_dir, Path):
        return [path for path in model_dir.glob("model.ckpt-*") if object_folders.is_own_save(path)]

    found: list[Location] = []
    for path in sorted(model_dir.glob("saving-*")):
        if _OWN_WORK.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
            found.append(path)

    return found


def saves_of_others(model_dir: Location) -> list[Location]:
    """Of jobs of other directories that were told to save here, or what is left of them."""
    if isinstance(model_dir, Path):
        own = own_work_directories(model_dir)
        return [path for path in sorted(model_dir.glob("saving-*")) if path not in own]

    folders = model_dir.glob("model.ckpt-*")
    return [path for path in folders if object_folders.is_save_of_another(path)]


# --- giving a complete folder its name ---


def publish(work: Location, model_dir: Location, step: int, save_id: str = "") -> Location:
    """Make a complete folder the checkpoint of its step; returns where it is.

    It gets a name that none has had. Of two that publish the same step at once, one gets the next
    name. On an object store it has its name already: with the id of the save, FileExistsError if
    the name is another one's by now, whose controller has taken this one for dead.
    """
    _announce_first(model_dir)
    if not isinstance(work, Path):
        object_folders.publish(work, save_id)
        return work

    while True:
        path = free_directory(model_dir, step)
        try:
            os.rename(work, str(path))
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
        else:
            stored.sync(model_dir)
            return path


def _announce_first(model_dir: Location) -> None:
    """Write the list of a directory that has no checkpoint yet."""
    with stored.locked(model_dir):
        if _traces(model_dir):
            return  # they have a list; if it was taken away meanwhile, that must stay visible

        text = listing.read_text(model_dir)
        if text is None or not listing.is_list(text):
            listing.write(model_dir, listing.FIRST_IS_PUBLISHED)


def free_directory(model_dir: Location, step: int) -> Location:
    """Where the next checkpoint of that step goes; NotADirectoryError if a file has that name."""
    path = model_dir / _free_name(model_dir, step)
    is_there = os.path.lexists(path) if isinstance(path, Path) else path.is_file()
    if is_there and not path.is_dir():
        raise NotADirectoryError(
            errno.ENOTDIR, "there is a file where the checkpoint's folder belongs", str(path)
        )

    return path


def _free_name(model_dir: Location, step: int) -> str:
    """The name of the next checkpoint of that step.

    It is numbered after all that are there or in the list. So the name of one that was removed does
    not come back with another model in it.
    """
    names = [path.name for path in _folders(model_dir)]
    names += listing.read(model_dir).time_by_name
    number = 0

    for name in names:
        parts = _FOLDER.fullmatch(name)
        if parts is not None and int(parts["step"]) == step:
            number = max(number, int(parts["number"] or 0) + 1)

    return f"model.ckpt-r{number}-{step}" if number else f"model.ckpt-{step}"


def step_of(name: str) -> int | None:
    """The step in the name of a checkpoint's folder; None if that is no such name."""
    parts = _FOLDER.fullmatch(name)
    return int(parts["step"]) if parts else None


def _traces(model_dir: Location) -> list[Location]:
    """Folders of checkpoints, also damaged ones; not those of saves under way."""
    if isinstance(model_dir, Path):
        return _folders(model_dir)

    folders = model_dir.glob("model.ckpt-*")
    return [path for path in folders if object_folders.is_trace(path)]


def _folders(model_dir: Location) -> list[Location]:
    found = [path for path in model_dir.glob("model.ckpt-*") if path.is_dir()]
    return sorted(found, key=str)


# --- the newest ---


def latest(model_dir: Location) -> Location | None:
    """Directory of the checkpoint that the list names as the newest.

    None in a directory that has never had a checkpoint. Where there is a trace of one, but it
    cannot be found, this is a CheckpointNotFound or CheckpointDamaged: a job never starts empty
    because a file is missing.
    """
    path_of_list = model_dir / LIST
    text = listing.read_text(model_dir)
    if text is None:
        folders = [path.name for path in _traces(model_dir)]
        if not folders:
            return None

        text = listing.read_text(model_dir)  # the first one may have been published meanwhile
        if text is None:
            raise CheckpointNotFound(
                f"{path_of_list} is missing, and {model_dir} has "
                f"{', '.join(folders[-_MOST_NAMES:])}; "
                "to start from one of them, write one line into that file: "
                f'model_checkpoint_path: "{folders[-1]}"; {_how_to_start_empty(model_dir)}'
            )

    if text == listing.FIRST_IS_PUBLISHED:
        return _newest_folder(model_dir)

    newest = listing.read(model_dir).newest
    if newest is None:
        raise CheckpointDamaged(
            f"{path_of_list} names no checkpoint: it has no line like "
            'model_checkpoint_path: "model.ckpt-120"; '
            f"correct it, or {_how_to_start_empty(model_dir)}"
        )

    path = resolved(model_dir, newest)
    with stored.allowed(path / MANIFEST):
        is_there = (path / MANIFEST).exists()

    if not is_there and listing.read(model_dir).newest != newest:
        return latest(model_dir)  # a save has ended meanwhile, and that one was not kept
    if not is_there:
        raise CheckpointNotFound(
            f"{path_of_list} names {newest} as the newest checkpoint, but {path / MANIFEST} is "
            f"missing; {ways_out(model_dir)}"
        )

    return path


def newest_time_s(model_dir: Location) -> float:
    """When the newest of all listed checkpoints was saved, Unix seconds; 0 if none says it."""
    return listing.read(model_dir).newest_time_s


class Recorded(NamedTuple):
    """What naming a checkpoint in the list has changed.

    `removed` are the checkpoints that were removed from disk because they are not kept.
    """

    is_newest: bool
    removed: tuple[str, ...] = ()


def record_latest(
    model_dir: Location,
    directory: Location,
    saved_at_s: float,
    check_current: Callable[[], None] = lambda: None,
    is_whole: bool = True,
    retention: Retention | None = None,
    needed: Collection[str] = (),
    outdated: str = "",
) -> Recorded:
    """Name `directory` as the newest checkpoint in the list, and remove what is not kept.

    It is listed only if the list has a newer one because another controller has saved meanwhile,
    and if it is not whole: the next job must not start from a part of a model. `check_current`
    raises, and nothing is written, if this controller was replaced. Without a `retention` all
    older ones stay, and in any case those that other jobs start from; `needed` names those that
    something else depends on, and `outdated` one that was saved in place of an increment.
    """
    with stored.locked(model_dir):
        check_current()
        listed = listing.read(model_dir)
        is_newest = listed.add(directory.name, saved_at_s, is_whole=is_whole)
        dropped = None
        if retention is not None:
            dropped = _drop(model_dir, listed, retention, needed, outdated)

        listing.write(model_dir, listed.text())
        if dropped is None:
            return Recorded(is_newest)

        aside = _set_aside(model_dir / dropped)

    if aside is None:
        return Recorded(is_newest)

    _remove_aside(aside)
    _remove_row_counts(model_dir, dropped)
    return Recorded(is_newest, (dropped,))


def remove(model_dir: Location, name: str) -> bool:
    """Remove a checkpoint and take it out of the list.

    False, and nothing is changed, if the list names it as the newest by now, or if it is gone.
    """
    with stored.locked(model_dir):
        listed = listing.read(model_dir)
        if listed.newest == name:
            return False

        if listed.time_by_name.pop(name, None) is not None:
            listing.write(model_dir, listed.text())

        aside = _set_aside(model_dir / name)

    if aside is None:
        return False

    _remove_aside(aside)
    _remove_row_counts(model_dir, name)
    return True


def _remove_row_counts(model_dir: Location, dropped: str) -> None:
    """The counts of a step go with its last checkpoint."""
    parts = _FOLDER.fullmatch(dropped)
    if parts is None:
        return

    step = int(parts["step"])
    for path in _folders(model_dir):
        left = _FOLDER.fullmatch(path.name)
        if left is not None and int(left["step"]) == step:
            return

    row_counts.path_of(model_dir, step).unlink(missing_ok=True)


def _drop(
    model_dir: Location,
    listed: listing.Listing,
    retention: Retention,
    needed: Collection[str],
    outdated: str,
) -> str | None:
    """Which checkpoint goes; none while it is not known which ones are exempt."""
    exempt = exempt_list.read(model_dir)
    if exempt is None and exempt_list.is_unreadable(model_dir):
        logger.warning(
            "no checkpoint is removed: which ones are exempt cannot be read from %s; correct it",
            model_dir / exempt_list.FILE,
        )
        return None

    exempt_names = exempt.names if exempt else frozenset[str]()
    all_needed = users.in_use(model_dir).union(needed)
    return retention.drop(listed, exempt_names, all_needed, outdated)


def _set_aside(folder: Location) -> Location | None:
    """Make a folder that goes no checkpoint any more; None if it is gone already, or has to stay.

    Returns where it is now.
    """
    aside = folder
    try:
        if isinstance(folder, Path):
            aside = folder.with_name(f"{_REMOVED}{folder.name}")
            os.rename(folder, aside)
            stored.sync(folder.parent)
        else:
            object_folders.begin_removal(folder)
    except FileNotFoundError:
        return None
    except OSError as error:
        logger.warning("%s is not kept, and cannot be removed: %s", folder, error)
        return None

    return aside


def _remove_aside(aside: Location) -> None:
    if isinstance(aside, Path):
        shutil.rmtree(aside, ignore_errors=True)
        if aside.exists():
            logger.warning("files of %s are left, the next controller removes them", aside)

        return

    try:
        object_folders.remove(aside)
    except OSError as error:
        logger.warning("files of %s are left, the next controller removes them: %s", aside, error)


def give_up(work: Location) -> None:
    """Remove the folder of a save that failed, as far as possible.

    The manifest goes first: if this process dies meanwhile, what is left is no checkpoint.
    """
    with contextlib.suppress(OSError):
        if isinstance(work, Path):
            (work / MANIFEST).unlink(missing_ok=True)
        else:
            object_folders.begin_removal(work)

    _remove_aside(work)


def is_taken(work: Location, save_id: str) -> bool:
    """Whether another save has the folder of this one by now; on a file system it never has.

    If that cannot be known it may have: what is left of a save is removed by the next controller.
    """
    if isinstance(work, Path) or not save_id:
        return False

    try:
        return object_folders.is_of_another(work, save_id)
    except OSError:
        return True


def remove_own(work: Location, save_id: str) -> None:
    """Remove what a save has written into a folder that is another one's by now."""
    if not isinstance(work, Path):
        with contextlib.suppress(OSError):
            object_folders.remove_own(work, save_id)


def remove_dropped(model_dir: Location) -> None:
    """Remove what is left of checkpoints whose removal was cut short."""
    for path in _left_of_removals(model_dir):
        logger.info("removing %s, left of a controller that died", path)
        _remove_aside(path)


def _left_of_removals(model_dir: Location) -> list[Location]:
    if isinstance(model_dir, Path):
        return sorted(model_dir.glob(f"{_REMOVED}model.ckpt-*"))

    folders = model_dir.glob("model.ckpt-*")
    return [path for path in folders if object_folders.is_left_of_removal(path)]


def recover_list(model_dir: Location) -> None:
    """Drop what is gone from the list, before a job saves there again.

    The checkpoint that it names as the newest stays in it: whoever starts from it has to hear that
    it is gone. A time that is missing is taken from the manifest.
    """
    with stored.locked(model_dir):
        listed = listing.read(model_dir)
        before = listed.text()

        for name in list(listed.time_by_name):
            folder = resolved(model_dir, name)
            if not (folder / MANIFEST).exists() and name != listed.newest:
                logger.warning("%s is gone: it leaves the list", folder)
                del listed.time_by_name[name]
            elif not listed.time_of(name) and name != listed.newest:
                try:
                    listed.time_by_name[name] = repr(manifest.read(folder).saved_at_s)
                except CheckpointDamaged as error:
                    logger.warning("when %s was saved is not known: %s", folder, error)

        if listed.newest and listed.text() != before:
            listing.write(model_dir, listed.text())

    exempt = exempt_list.read(model_dir)
    known = {name_of(name) for name in (listed.newest or "", *listed.time_by_name)}
    for name in sorted(exempt.names - known if exempt else ()):
        logger.warning(
            "%s exempts %s, which is not in the list", model_dir / exempt_list.FILE, name
        )


def complete_list(model_dir: Location) -> None:
    """Name the first checkpoint, if its controller died before the list named it."""
    if listing.read_text(model_dir) != listing.FIRST_IS_PUBLISHED:
        return

    with stored.locked(model_dir):
        if listing.read_text(model_dir) != listing.FIRST_IS_PUBLISHED:
            return  # somebody else has done it meanwhile

        newest = _newest_folder(model_dir)
        if newest is None:
            return

        logger.warning(
            "%s was saved by a controller that died before it was listed; it is listed now", newest
        )
        listed = listing.read(model_dir)
        listed.add(newest.name, manifest.read(newest).saved_at_s)
        listing.write(model_dir, listed.text())


def _newest_folder(model_dir: Location) -> Location | None:
    """The complete folder that was saved last.

    Only for a directory whose list does not name one yet.
    """
    complete = [path for path in _folders(model_dir) if (path / MANIFEST).exists()]
    return max(complete, key=lambda path: manifest.read(path).saved_at_s, default=None)


def is_newest(model_dir: Location, directory: Location) -> bool:
    """Whether the list names `directory`, a folder beside it, as the newest checkpoint."""
    return listing.read(model_dir).newest == directory.name


def is_listed(model_dir: Location, directory: Location) -> bool:
    """Whether the list names `directory`, as the newest checkpoint or as an older one."""
    return listing.read(model_dir).names(directory.name)


def withdraw(model_dir: Location, directory: Location) -> bool:
    """Make a folder that has its name already no checkpoint any more, so that it may be removed.

    False, and nothing is changed, if the list names it, or if that cannot be known: without the
    folder that its list names, a job would not start again.
    """
    try:
        with stored.locked(model_dir):
            if is_listed(model_dir, directory):
                return False

            if isinstance(directory, Path):
                (directory / MANIFEST).unlink(missing_ok=True)
            else:
                object_folders.begin_removal(directory)

            return True
    except OSError as error:
        logger.warning("whether the list names %s is not known: %s", directory, error)
        return False


# --- for people ---


def ways_out(model_dir: Location) -> str:
    """What an operator may do about a checkpoint that a job cannot start from."""
    return (
        "put it back, or start from an older checkpoint (--restore-ckpt NAME, of those that "
        f"`megalith ckpt ls {model_dir}` lists), or {_how_to_start_empty(model_dir)}"
    )


def _how_to_start_empty(model_dir: Location) -> str:
    if not isinstance(model_dir, Path):
        return (
            "to start with an empty model on purpose, take another --checkpoint-dir or move "
            f"{model_dir / LIST} and all of {model_dir}/model.ckpt-* away"
        )

    here = shlex.quote(str(model_dir))
    away = shlex.quote(str(model_dir / "moved-away"))
    return (
        "to start with an empty model on purpose, take another --model-dir or move the checkpoints "
        f"away: mkdir {away} && mv {here}/checkpoint {here}/model.ckpt-* {away}"
    )
