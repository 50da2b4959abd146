"""The checkpoints of a model directory at a glance, and what else saves have left there."""

import time
from dataclasses import dataclass, replace
from enum import StrEnum

from megalith.checkpoint.directory import catalog, exempt_list, listing
from megalith.checkpoint.layout import manifest
from megalith.checkpoint.storage import files as stored
from megalith.checkpoint.storage.location import Location
from megalith.errors import CheckpointNotFound, MegalithError

_PATTERNS = ("model.ckpt-*", "saving-*-*", "removing-model.ckpt-*")


class FolderStanding(StrEnum):
    """What a folder is."""

    COMPLETE = "complete"
    INCOMPLETE = "incomplete"  # a save or a removal under way, or left by one that died
    DAMAGED = "damaged"  # its manifest cannot be read
    MISSING = "missing"  # the list names it, but it is not there


@dataclass(frozen=True, slots=True)
class Entry:
    """One checkpoint, or what is left of one.

    `saved_at_s` is Unix seconds: when its save began, or when it last changed if it is not
    complete. `step`, `rows` and `saved_at_s` are None where nothing says them.
    """

    name: str
    standing: FolderStanding
    bytes: int
    step: int | None = None
    rows: int | None = None
    saved_at_s: float | None = None
    is_newest: bool = False
    is_listed: bool = False
    is_exempt: bool = False
    problem: str = ""

    def age_s(self, now_s: float) -> float | None:
        return None if self.saved_at_s is None else max(0.0, now_s - self.saved_at_s)


@dataclass(frozen=True, slots=True)
class Overview:
    """All of a model directory, the oldest first."""

    path: str
    now_s: float
    entries: tuple[Entry, ...]


def overview(model_dir: Location) -> Overview:
    """Look at all checkpoints of a model directory; only their manifests are read."""
    if not model_dir.is_dir():
        raise CheckpointNotFound(f"{model_dir} is no directory; name the --model-dir of a job")

    listed = listing.read(model_dir)
    exempt = exempt_list.read(model_dir)
    exempt_names = exempt.names if exempt else frozenset()
    entries = []
    for pattern in _PATTERNS:
        for path in model_dir.glob(pattern):
            if path.is_dir() and not path.is_symlink():
                entry = _entry(path, listed)
                entries.append(replace(entry, is_exempt=path.name in exempt_names))

    present = {entry.name for entry in entries}
    for name in {*listed.time_by_name, listed.newest or ""} - present - {""}:
        entries.append(
            Entry(
                name,
                FolderStanding.MISSING,
                0,
                catalog.step_of(name),
                is_newest=name == listed.newest,
                is_listed=True,
                problem="the list names it, but the folder is gone",
            )
        )

    # Saves after a clock was set back have equal times; then the later step is the newer one.
    entries.sort(key=lambda entry: (entry.saved_at_s or 0.0, entry.step or 0, entry.name))
    return Overview(str(model_dir), time.time(), tuple(entries))


def _entry(path: Location, listed: listing.Listing) -> Entry:
    size = stored.bytes_in(path)
    is_newest = path.name == listed.newest
    is_listed = listed.names(path.name)
    try:
        content = manifest.read(path)
    except MegalithError as error:
        is_incomplete = isinstance(error, CheckpointNotFound)
        standing = FolderStanding.INCOMPLETE if is_incomplete else FolderStanding.DAMAGED
        return Entry(
            path.name,
            standing,
            size,
            catalog.step_of(path.name),
            saved_at_s=stored.changed_at_s(path),
            is_newest=is_newest,
            is_listed=is_listed,
            problem=str(error),
        )

    # A folder that has its manifest, but not its name yet or no longer, is no checkpoint.
    has_name = catalog.step_of(path.name) is not None
    return Entry(
        path.name,
        FolderStanding.COMPLETE if has_name else FolderStanding.INCOMPLETE,
        size,
        content.step,
        content.rows,
        content.saved_at_s if has_name else stored.changed_at_s(path),
        is_newest,
        is_listed,
    )
