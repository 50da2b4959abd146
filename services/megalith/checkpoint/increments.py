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
from dataclasses import dataclass
from pathlib import Path

from megalith.checkpoint import manifest
from megalith.checkpoint.format import MANIFEST
from megalith.checkpoint.manifest import Link, Manifest
from megalith.errors import CheckpointDamaged, CheckpointNotFound
from megalith.runtime.files import sync, write_atomically

logger = logging.getLogger(__name__)

FOLDER = "increments"
NEWEST = "newest.json"
_REMOVED = "removing-"  # and the name of the checkpoint


@dataclass(frozen=True, slots=True)
class Increment:
    directory: Path
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Chain:
    """A checkpoint and all of its increments, in order."""

    directory: Path
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
    def folders(self) -> list[tuple[Path, Manifest]]:
        """The checkpoint and its increments, in order: where each is, and what it consists of."""
        increments = [(increment.directory, increment.manifest) for increment in self.increments]
        return [(self.directory, self.base), *increments]

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

    def next_link(self) -> Link:
        return Link(self.base.save_id, self.number + 1, self.sha256)

    def __str__(self) -> str:
        if not self.increments:
            return str(self.directory)

        return f"{self.directory} with {self.number} increments"


def read_chain(directory: Path) -> Chain:
    """A checkpoint with its increments; the files of rows are not looked at.

    CheckpointDamaged names an increment that is missing, damaged or of another checkpoint.
    """
    base = manifest.read(directory)
    chain = Chain(directory, base)
    if not base.save_id:
        return chain  # of an early version, which had none

    folder = _folder_of(directory)
    numbers = sorted(int(path.name) for path in folder.glob("[0-9]*") if path.name.isdigit())
    newest = _newest(directory)
    last = max([newest, *numbers])

    for number in range(1, last + 1):
        increment = _read(folder / _name_of(number), chain)
        chain = Chain(directory, base, (*chain.increments, increment))

    return chain


def _read(directory: Path, before: Chain) -> Increment:
    expected = before.next_link()
    try:
        content = manifest.read(directory)
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

    return Increment(directory, content)


def _ways_out(before: Chain) -> str:
    folder = before.directory.parent / FOLDER
    return (
        f"put it back, or go back to the checkpoint of step {before.base.step} on purpose, which "
        f"loses what was trained since: mv {folder} {folder}-moved-away"
    )


def publish(work: Path, base: Path, number: int) -> Path:
    """Give a complete increment its name, from which on it is part of the chain."""
    folder = _folder_of(base)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / _name_of(number)
    if path.exists():
        raise FileExistsError(errno.EEXIST, "there is an increment of that number", str(path))

    os.rename(work, path)
    sync(folder)
    sync(folder.parent)
    sync(base.parent)  # without the folder of all increments, nobody would miss them
    newest = {"base": base.name, "number": number}
    write_atomically(folder.parent / NEWEST, json.dumps(newest).encode())
    return path


def remove_all(model_dir: Path) -> None:
    """Remove the increments of a directory whose newest checkpoint has just been saved.

    It has what they have. Some may be left of an older checkpoint of the same name, which was moved
    away. Those of a checkpoint lose their name together before they go: the first few of them would
    be a chain too, to whoever starts from that checkpoint later.
    """
    folder = model_dir / FOLDER
    (folder / NEWEST).unlink(missing_ok=True)
    for path in sorted(folder.glob("model.ckpt-*")):
        aside = folder / f"{_REMOVED}{path.name}"
        shutil.rmtree(aside, ignore_errors=True)
        os.rename(path, aside)

    for path in sorted(folder.glob(f"{_REMOVED}*")):
        shutil.rmtree(path, ignore_errors=True)


def _folder_of(base: Path) -> Path:
    return base.parent / FOLDER / base.name


def _name_of(number: int) -> str:
    return f"{number:06}"


def _newest(base: Path) -> int:
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
