"""The increments of a checkpoint: which there are, and whether one is missing.

    <model_dir>/increments/model.ckpt-120/000001/     the first increment of model.ckpt-120
    <model_dir>/increments/newest.json                says that there was one, and which is the last

A checkpoint with its increments is a chain. Each manifest names the checksum of the one before it,
so an increment that is missing in the middle, was changed, or belongs to another checkpoint does
not fit. One that is missing at the end is missed because newest.json names it. Without the whole
folder `increments` there are none: that is how an operator goes back to the checkpoint itself.

Only the checkpoint that is the newest has increments. The next full save makes them needless.
"""

import errno
import json
import logging
import os
import shutil
from collections.abc import Collection
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from megalith.checkpoint.directory import catalog
from megalith.checkpoint.format import MANIFEST, FileKind
from megalith.checkpoint.layout import manifest
from megalith.checkpoint.layout.manifest import Link, Manifest, ShardFile
from megalith.checkpoint.storage import files as stored
from megalith.checkpoint.storage import object_folders
from megalith.checkpoint.storage.location import Location
from megalith.checkpoint.storage.object_path import ObjectPath
from megalith.checkpoint.storage.parallel import REQUESTS, in_parallel, threads
from megalith.errors import CheckpointDamaged, CheckpointNotFound, InvalidRequest
from megalith.runtime.counting import counted

logger = logging.getLogger(__name__)

FOLDER = "increments"
NEWEST = "newest.json"
_REMOVED = "removing-"  # and the name of the checkpoint
_READ_AHEAD = 64  # manifests; what notes the newest number may be spoiled, and name a billion


@dataclass(frozen=True, slots=True)
class Increment:
    directory: Location
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Chain:
    """A checkpoint and all of its increments, in order."""

    directory: Location
    base: Manifest
    increments: tuple[Increment, ...] = ()

    @property
    def number(self) -> int:
        """Of the newest increment; 0 = there is none."""
        return len(self.increments)

    @property
    def last(self) -> Manifest:
        """The manifest of the newest increment, or of the checkpoint itself."""
        return self.increments[-1].manifest if self.increments else self.base

    @property
    def folders(self) -> list[tuple[Location, Manifest]]:
        """The checkpoint and its increments, in order: where each is, and what it consists of."""
        increments = [(increment.directory, increment.manifest) for increment in self.increments]
        return [(self.directory, self.base), *increments]

    @property
    def files(self) -> list[tuple[Location, ShardFile]]:
        """All files, each with its folder, in that order."""
        found = []
        for directory, content in self.folders:
            for file in content.files:
                found.append((directory, file))

        return found

    def files_of(self, kind: FileKind) -> list[tuple[Location, ShardFile]]:
        return [(directory, file) for directory, file in self.files if file.kind == kind]

    @property
    def base_bytes(self) -> int:
        return sum(file.bytes for file in self.base.files)

    @property
    def increment_bytes(self) -> int:
        total = 0
        for increment in self.increments:
            total += sum(file.bytes for file in increment.manifest.files)

        return total

    @property
    def sha256(self) -> str:
        """Of the newest manifest: what the next increment names as the one before it."""
        directory = self.increments[-1].directory if self.increments else self.directory
        return manifest.sha256_of(directory / MANIFEST)

    def with_next(self, increment: Increment) -> "Chain":
        return Chain(self.directory, self.base, (*self.increments, increment))

    def next_link(self) -> Link:
        return Link(self.base.save_id, self.number + 1, self.sha256)

    def __str__(self) -> str:
        if not self.increments:
            return str(self.directory)

        return f"{self.directory} with {counted(self.number, 'increment')}"


def read_chain(directory: Location, through: int | None = None) -> Chain:
    """A checkpoint with its increments, or with those up to `through`; rows are not looked at.

    CheckpointDamaged names an increment that is missing, damaged or of another checkpoint.
    """
    base, sha256 = manifest.read_with_sha256(directory)
    chain = Chain(directory, base)
    if not base.save_id:
        return chain  # of an early version, which had none

    folder = _folder_of(directory)
    last = _last_of(directory) if through is None else through
    with threads("increments", REQUESTS) as pool:
        while chain.number < last:
            first = chain.number + 1
            end = min(first + _READ_AHEAD, last + 1)
            paths = [folder / _name_of(number) for number in range(first, end)]
            reading = [pool.submit(manifest.read_with_sha256, path) for path in paths]
            for path, content in zip(paths, reading, strict=True):
                link = Link(base.save_id, chain.number + 1, sha256)
                increment, sha256 = _checked(path, content, chain, link)
                chain = chain.with_next(increment)

    return chain


def has_any(base: Location) -> bool:
    """Whether a checkpoint has increments, or lacks some that it had."""
    try:
        return _last_of(base) > 0
    except CheckpointDamaged:
        return True


def _last_of(base: Location) -> int:
    """The number of the newest increment, as noted or found; 0 = there is none."""
    return max([_newest(base), *_published(_folder_of(base))])


def _published(folder: Location) -> list[int]:
    """The numbers of increments that were published, whatever has become of them since."""
    if isinstance(folder, Path):
        return [int(path.name) for path in folder.glob("[0-9]*") if path.name.isdigit()]

    found = [path for path in folder.glob("[0-9]*") if path.name.isdigit()]
    are_published = in_parallel(object_folders.is_published, found, "increments")
    if found and object_folders.is_left_of_removal(folder):
        return []  # asked last: some may have gone while the others were looked at

    return [int(path.name) for path, is_one in zip(found, are_published, strict=True) if is_one]


def is_unchanged(chain: Chain) -> bool:
    """Whether there are just as many increments as when a chain was read; none is read again."""
    expected = {_name_of(number) for number in range(1, chain.number + 1)}
    found = {path.name for path in _folder_of(chain.directory).glob("[0-9]*")}
    return found == expected and _newest(chain.directory) == chain.number


def _checked(
    directory: Location, read: Future[tuple[Manifest, str]], before: Chain, expected: Link
) -> tuple[Increment, str]:
    """An increment, if it goes on from what is before it, and the checksum of its manifest."""
    try:
        content, sha256 = read.result()
    except (CheckpointNotFound, CheckpointDamaged) as error:
        raise CheckpointDamaged(
            f"increment {expected.number} of {before.directory} is missing or damaged: {error}; "
            f"{_ways_out(before)}"
        ) from error

    if content.link != expected:
        raise CheckpointDamaged(
            f"{directory} does not go on from what is before it: it names {content.link}, "
            f"and {expected} was expected; {_ways_out(before)}"
        )

    return Increment(directory, content), sha256


def _ways_out(before: Chain) -> str:
    folder = before.directory.parent / FOLDER
    is_local = isinstance(folder, Path)
    how = f"mv {folder} {folder}-moved-away" if is_local else f"move all of {folder}/ away"
    return (
        f"put it back, or go back to the checkpoint of step {before.base.step} on purpose, which "
        f"loses what was trained since: {how}"
    )


def check_none(model_dir: Location) -> None:
    """InvalidRequest if there are increments, in a directory that has no checkpoint.

    Those of a checkpoint of the same name would become increments of the first one there.
    """
    folder = model_dir / FOLDER
    if any(folder.glob("model.ckpt-*")):
        raise InvalidRequest(
            f"{folder} has increments of a checkpoint that is not there: a copy was killed, or "
            "somebody has moved the checkpoint away; remove that folder, or give another --out"
        )


def begin(base: Location, number: int, step: int, save_id: str) -> Location:
    """Make the folder that an increment is written into until it is complete.

    A job writes increments one at a time. So on an object store what is left there of one that
    failed while the store could not be reached is nobody's, and goes. Commands take turns with
    nobody: what another one has begun stays.
    """
    if isinstance(base, Path):
        return catalog.begin(base.parent, step, save_id)

    folder = base.parent / FOLDER / base.name / _name_of(number)
    if not save_id.startswith(catalog.COMMAND) and _is_left(folder):
        logger.warning("removing %s, left of an increment that failed", folder)
        object_folders.begin_removal(folder)
        object_folders.remove(folder)

    object_folders.begin(folder, save_id, is_own=True)
    return folder


def _is_left(folder: ObjectPath) -> bool:
    return object_folders.is_left_of_removal(folder) or object_folders.is_own_save(folder)


def publish(work: Location, base: Location, number: int, save_id: str = "") -> Location:
    """Make a complete increment part of the chain; returns where it is.

    If this fails it may be part of the chain all the same: see `is_published`. The id is for an
    object store, as in `catalog.publish`.
    """
    folder = _folder_of(base)
    path = folder / _name_of(number)

    if isinstance(work, Path):
        _rename(work, Path(str(path)))
    else:
        object_folders.publish(work, save_id)

    newest = {"base": base.name, "number": number}
    stored.write(folder.parent / NEWEST, json.dumps(newest).encode())
    return path


def is_published(work: Location) -> bool:
    """Whether what `begin` has made is part of a chain by now, or another one is: then it stays.

    newest.json may name it, also where writing that has failed: the answer of an object store may
    be lost. Without the increment that it names no job starts from the chain.
    """
    if isinstance(work, Path):
        return not work.exists()  # it has another name since

    return object_folders.is_published(work)


def _rename(work: Path, path: Path) -> None:
    folder = path.parent
    folder.mkdir(parents=True, exist_ok=True)
    if path.exists():
        raise FileExistsError(errno.EEXIST, "there is an increment of that number", str(path))

    os.rename(work, path)
    stored.sync(folder)
    stored.sync(folder.parent)
    stored.sync(folder.parent.parent)  # without the folder of all increments, nobody misses them


def remove_all(model_dir: Location, needed: Collection[str] = ()) -> None:
    """Remove the increments of a directory whose newest checkpoint has just been saved.

    It has what they have. Those of the checkpoints in `needed` stay: other jobs start from them.

    Some may be left of an older checkpoint of the same name, which was moved away. Those of a
    checkpoint lose their name together before they go: the first few of them would be a chain too,
    to whoever starts from that checkpoint later.
    """
    folder = model_dir / FOLDER
    (folder / NEWEST).unlink(missing_ok=True)
    if not isinstance(folder, Path):
        _remove_objects(folder, needed)
        return

    for path in sorted(folder.glob("model.ckpt-*")):
        if path.name in needed:
            continue

        aside = folder / f"{_REMOVED}{path.name}"
        shutil.rmtree(aside, ignore_errors=True)
        os.rename(path, aside)

    for path in sorted(folder.glob(f"{_REMOVED}*")):
        shutil.rmtree(path, ignore_errors=True)


def _remove_objects(folder: ObjectPath, needed: Collection[str]) -> None:
    for path in folder.glob("model.ckpt-*"):
        if path.name not in needed:
            object_folders.begin_removal(path)
            object_folders.remove(path)


def unfinished(model_dir: Location) -> list[Location]:
    """On an object store: what a controller has begun to write or to remove, and did not end."""
    found: list[Location] = []
    if isinstance(model_dir, Path):
        return found  # those are among the work directories

    for chain in (model_dir / FOLDER).glob("model.ckpt-*"):
        if object_folders.is_left_of_removal(chain):
            found.append(chain)
        else:
            found += [path for path in chain.iterdir() if object_folders.is_own_save(path)]

    return found


def _folder_of(base: Location) -> Location:
    return base.parent / FOLDER / base.name


def _name_of(number: int) -> str:
    return f"{number:06}"


def _newest(base: Location) -> int:
    """The number of the newest increment of a checkpoint, as noted; 0 = none is."""
    path = base.parent / FOLDER / NEWEST
    try:
        noted = json.loads(path.read_bytes())
        return int(noted["number"]) if noted["base"] == base.name else 0
    except FileNotFoundError:
        if any(_folder_of(base).glob("[0-9]*")):
            logger.warning("%s is missing: whether an increment is missing is not known", path)

        return 0
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointDamaged(
            f"{path} does not say which increment is the newest: {error!r}; "
            f"remove {path.parent} to start from {base} itself"
        ) from error
