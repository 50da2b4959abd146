"""The checkpoints of a model directory: which folder gets which name, and which is the newest.

A save writes into a folder of its own, which gets its name once it is complete. So a folder named
model.ckpt-* never changes: no save writes into it or replaces it. What is not kept is renamed
before it is removed, so that there is no moment at which a part of it has its name.

The list names a checkpoint after its folder got its name. So before a directory gets its first
folder, it gets a list that says so. A controller that dies between the two leaves a folder that the
next one finds; a folder without any list means that somebody took the list away.
"""

import errno
import logging
import os
import re
import shlex
import shutil
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple

from megalith.checkpoint import exempt_list, listing, manifest, row_counts
from megalith.checkpoint.format import LIST, MANIFEST
from megalith.checkpoint.retention import Retention
from megalith.errors import CheckpointDamaged, CheckpointNotFound
from megalith.runtime.files import sync

logger = logging.getLogger(__name__)

_FOLDER = re.compile(r"model\.ckpt-(r(?P<number>\d+)-)?(?P<step>\d+)")
_OWN_WORK = re.compile(r"saving-\d+-[0-9a-f]+")
_REMOVED = "removing-"  # and the name that it had
_MOST_NAMES = 5  # of folders in a message


# --- saves under way ---


def work_directory(model_dir: Path, step: int, save_id: str, *, is_own: bool = True) -> Path:
    """Where a save writes until it is complete.

    `is_own` = the job saves into its own model directory.
    """
    return model_dir / (f"saving-{step}-{save_id}" if is_own else f"saving-{step}-{save_id}-export")


def own_work_directories(model_dir: Path) -> list[Path]:
    """Of saves of the job of that directory.

    Each but the one under way was left by a controller that died.
    """
    found = []
    for path in sorted(model_dir.glob("saving-*")):
        if _OWN_WORK.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
            found.append(path)

    return found


# --- giving a complete folder its name ---


def publish(work: Path, model_dir: Path, step: int) -> Path:
    """Make a complete folder the checkpoint of its step; returns where it is.

    It gets a name that none has had. Of two that publish the same step at once, one gets the next
    name.
    """
    _announce_first(model_dir)
    while True:
        path = free_directory(model_dir, step)
        try:
            os.rename(work, path)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
        else:
            sync(model_dir)
            return path


def _announce_first(model_dir: Path) -> None:
    """Write the list of a directory that has no checkpoint yet."""
    with listing.locked(model_dir):
        if _folders(model_dir):
            return  # they have a list; if it was taken away meanwhile, that must stay visible

        text = listing.read_text(model_dir)
        if text is None or not listing.is_list(text):
            listing.write(model_dir, listing.FIRST_IS_PUBLISHED)


def free_directory(model_dir: Path, step: int) -> Path:
    """Where the next checkpoint of that step goes; NotADirectoryError if a file has that name.

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

    path = model_dir / (f"model.ckpt-r{number}-{step}" if number else f"model.ckpt-{step}")
    if os.path.lexists(path) and not path.is_dir():
        raise NotADirectoryError(
            errno.ENOTDIR, "there is a file where the checkpoint's folder belongs", str(path)
        )

    return path


def step_of(name: str) -> int | None:
    """The step in the name of a checkpoint's folder; None if that is no such name."""
    parts = _FOLDER.fullmatch(name)
    return int(parts["step"]) if parts else None


def _folders(model_dir: Path) -> list[Path]:
    return sorted(path for path in model_dir.glob("model.ckpt-*") if path.is_dir())


# --- the newest ---


def latest(model_dir: Path) -> Path | None:
    """Directory of the checkpoint that the list names as the newest.

    None in a directory that has never had a checkpoint. Where there is a trace of one, but it
    cannot be found, this is a CheckpointNotFound or CheckpointDamaged: a job never starts empty
    because a file is missing.
    """
    path_of_list = model_dir / LIST
    text = listing.read_text(model_dir)
    if text == listing.FIRST_IS_PUBLISHED:
        return _newest_folder(model_dir)

    if text is None:
        folders = [path.name for path in _folders(model_dir)]
        if not folders:
            return None

        raise CheckpointNotFound(
            f"{path_of_list} is missing, and {model_dir} has {', '.join(folders[-_MOST_NAMES:])}; "
            "to start from one of them, write one line into that file: "
            f'model_checkpoint_path: "{folders[-1]}"; {_how_to_start_empty(model_dir)}'
        )

    newest = listing.Listing.parse(text).newest
    if newest is None:
        raise CheckpointDamaged(
            f"{path_of_list} names no checkpoint: it has no line like "
            'model_checkpoint_path: "model.ckpt-120"; '
            f"correct it, or {_how_to_start_empty(model_dir)}"
        )

    path = model_dir / newest
    if not (path / MANIFEST).exists():
        raise CheckpointNotFound(
            f"{path_of_list} names {newest} as the newest checkpoint, but {path / MANIFEST} is "
            f"missing; {ways_out(model_dir)}"
        )

    return path


def newest_time_s(model_dir: Path) -> float:
    """When the newest of all listed checkpoints was saved, Unix seconds; 0 if none says it."""
    return listing.read(model_dir).newest_time_s


class Recorded(NamedTuple):
    """What naming a checkpoint in the list has changed.

    `removed` are the checkpoints that were removed from disk because they are not kept.
    """

    is_newest: bool
    removed: tuple[str, ...] = ()


def record_latest(
    model_dir: Path,
    directory: Path,
    saved_at_s: float,
    check_current: Callable[[], None] = lambda: None,
    is_whole: bool = True,
    retention: Retention | None = None,
    needed: Collection[str] = (),
) -> Recorded:
    """Name `directory` as the newest checkpoint in the list, and remove what is not kept.

    It is listed only if the list has a newer one because another controller has saved meanwhile,
    and if it is not whole: the next job must not start from a part of a model. `check_current`
    raises, and nothing is written, if this controller was replaced. Without a `retention` all
    older ones stay; `needed` names those that something depends on.
    """
    with listing.locked(model_dir):
        check_current()
        listed = listing.read(model_dir)
        is_newest = listed.add(directory.name, saved_at_s, is_whole=is_whole)
        dropped = None
        if retention is not None:
            dropped = _drop(model_dir, listed, retention, needed)

        listing.write(model_dir, listed.text())
        if dropped is None:
            return Recorded(is_newest)

        aside = _set_aside(model_dir / dropped)

    if aside is None:
        return Recorded(is_newest)

    shutil.rmtree(aside, ignore_errors=True)
    _remove_row_counts(model_dir, dropped)
    return Recorded(is_newest, (dropped,))


def remove(model_dir: Path, name: str) -> bool:
    """Remove a checkpoint and take it out of the list.

    False, and nothing is changed, if the list names it as the newest by now, or if it is gone.
    """
    with listing.locked(model_dir):
        listed = listing.read(model_dir)
        if listed.newest == name:
            return False

        if listed.time_by_name.pop(name, None) is not None:
            listing.write(model_dir, listed.text())

        aside = _set_aside(model_dir / name)

    if aside is None:
        return False

    shutil.rmtree(aside, ignore_errors=True)
    _remove_row_counts(model_dir, name)
    return True


def _remove_row_counts(model_dir: Path, dropped: str) -> None:
    """The counts of a step go with its last checkpoint."""
    parts = _FOLDER.fullmatch(dropped)
    if parts is None:
        return

    step = int(parts["step"])
    left = [_FOLDER.fullmatch(path.name) for path in _folders(model_dir)]
    if step not in [int(each["step"]) for each in left if each]:
        row_counts.path_of(model_dir, step).unlink(missing_ok=True)


def _drop(
    model_dir: Path, listed: listing.Listing, retention: Retention, needed: Collection[str]
) -> str | None:
    """Which checkpoint goes; none while it is not known which ones are exempt."""
    exempt = exempt_list.read(model_dir)
    if exempt is None and exempt_list.is_unreadable(model_dir):
        logger.warning(
            "no checkpoint is removed: which ones are exempt cannot be read from %s; correct it",
            model_dir / exempt_list.FILE,
        )
        return None

    return retention.drop(listed, exempt.names if exempt else (), needed)


def _set_aside(folder: Path) -> Path | None:
    """Take the name from a checkpoint that goes; None if it is gone already, or has to stay."""
    aside = folder.with_name(f"{_REMOVED}{folder.name}")
    try:
        os.rename(folder, aside)
        sync(folder.parent)
    except FileNotFoundError:
        return None
    except OSError as error:
        logger.warning("%s is not kept, and cannot be removed: %s", folder, error)
        return None

    return aside


def remove_dropped(model_dir: Path) -> None:
    """Remove what is left of checkpoints whose removal was cut short."""
    for path in sorted(model_dir.glob(f"{_REMOVED}model.ckpt-*")):
        logger.info("removing %s, left of a controller that died", path)
        shutil.rmtree(path, ignore_errors=True)


def recover_list(model_dir: Path) -> None:
    """Drop what is gone from the list, before a job saves there again.

    The checkpoint that it names as the newest stays in it: whoever starts from it has to hear that
    it is gone. A time that is missing is taken from the manifest.
    """
    with listing.locked(model_dir):
        listed = listing.read(model_dir)
        before = listed.text()
        for name in list(listed.time_by_name):
            folder = model_dir / name
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
    known = {Path(name).name for name in (listed.newest or "", *listed.time_by_name)}
    for name in sorted(exempt.names - known if exempt else ()):
        logger.warning(
            "%s exempts %s, which is not in the list", model_dir / exempt_list.FILE, name
        )


def complete_list(model_dir: Path) -> None:
    """Name the first checkpoint, if its controller died before the list named it."""
    if listing.read_text(model_dir) != listing.FIRST_IS_PUBLISHED:
        return

    with listing.locked(model_dir):
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


def _newest_folder(model_dir: Path) -> Path | None:
    """The complete folder that was saved last.

    Only for a directory whose list does not name one yet.
    """
    complete = [path for path in _folders(model_dir) if (path / MANIFEST).exists()]
    return max(complete, key=lambda path: manifest.read(path).saved_at_s, default=None)


def is_newest(model_dir: Path, directory: Path) -> bool:
    """Whether the list names `directory` as the newest checkpoint."""
    return listing.read(model_dir).newest == directory.name


def is_listed(model_dir: Path, directory: Path) -> bool:
    """Whether the list names `directory`, as the newest checkpoint or as an older one."""
    return listing.read(model_dir).names(directory.name)


def withdraw(model_dir: Path, directory: Path) -> bool:
    """Make a folder that has its name already no checkpoint any more, so that it may be removed.

    False, and nothing is changed, if the list names it, or if that cannot be known: without the
    folder that its list names, a job would not start again.
    """
    try:
        with listing.locked(model_dir):
            if is_listed(model_dir, directory):
                return False

            (directory / MANIFEST).unlink(missing_ok=True)
            return True
    except OSError as error:
        logger.warning("whether the list names %s is not known: %s", directory, error)
        return False


# --- for people ---


def ways_out(model_dir: Path) -> str:
    """What an operator may do about a checkpoint that a job cannot start from."""
    return (
        f"put it back, or name an older checkpoint in {model_dir / LIST} (model_checkpoint_path), "
        f"or {_how_to_start_empty(model_dir)}"
    )


def _how_to_start_empty(model_dir: Path) -> str:
    here = shlex.quote(str(model_dir))
    away = shlex.quote(str(model_dir / "moved-away"))
    return (
        "to start with an empty model on purpose, take another --model-dir or move the checkpoints "
        f"away: mkdir {away} && mv {here}/checkpoint {here}/model.ckpt-* {away}"
    )
